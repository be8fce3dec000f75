-- compare: replace or delete what is stored, if a value compares so with it.
-- KEYS     slot stored
-- ARGV     number relations value eps new ttl
--            number: of the call in its slot; relations: which of < = > may hold between the value and what is stored
--            new: what to store, '' to delete; ttl: ms, '' for none
-- returns  '1' = done, '0' = not so (or there is nothing to delete), '?' and what is stored = cannot be compared
--#include once

local function number(text) return string.find(text, '^%-?%d[%d.eE+-]*$') and tonumber(text) end

-- '<', '=', '>', or '<>' of what has no order; nil: cannot be compared, or what is stored is none of ours
local function compare(value, stored)
  local a, b = number(value), number(stored)
  if a and b then
    -- one difference for all operators: exactly one of < = > holds
    local difference, eps = a - b, tonumber(ARGV.eps)
    return difference > eps and '>' or difference < -eps and '<' or '='
  end
  if (ARGV.relations == '=' or ARGV.relations == '<>') and (b or string.find(stored, '^".*"$')) then
    return value == stored and '=' or '<>'
  end
end

return once(function()
  local stored = redis.call('GET', KEYS.stored)
  if stored then
    local relation = compare(ARGV.value, stored)
    if not relation then return '?' .. stored end
    if not string.find(ARGV.relations, relation, 1, true) then return '0' end
  end
  if ARGV.new == '' then return tostring(redis.call('DEL', KEYS.stored)) end
  if ARGV.ttl == '' then
    redis.call('SET', KEYS.stored, ARGV.new)
  else
    redis.call('SET', KEYS.stored, ARGV.new, 'PX', ARGV.ttl)
  end
  return '1'
end)
