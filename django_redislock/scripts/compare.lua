-- compare: replace or delete what is stored, if a value compares so with it.
-- KEYS    slot, value
-- ARGV    number of the call in its slot, which of < = > may hold, value, eps, what to store or '' to delete,
--         ttl ms or ''
-- answer  '1' = done, '0' = not so (or there is nothing to delete), '?' and what is stored = cannot be compared
local call = redis.call
--#include once

local function number(text) return string.find(text, '^%-?%d[%d.eE+-]*$') and tonumber(text) end

-- '<', '=', '>', or '<>' of what has no order; nil: cannot be compared, or what is stored is none of ours
local function compare(value, stored)
  local a, b = number(value), number(stored)
  if a and b then
    -- one difference for all operators: exactly one of < = > holds
    local difference, eps = a - b, tonumber(ARGV[4])
    return difference > eps and '>' or difference < -eps and '<' or '='
  end
  if (ARGV[2] == '=' or ARGV[2] == '<>') and (b or string.find(stored, '^".*"$')) then
    return value == stored and '=' or '<>'
  end
end

return once(function()
  local stored = call('GET', KEYS[2])
  if stored then
    local relation = compare(ARGV[3], stored)
    if not relation then return '?' .. stored end
    if not string.find(ARGV[2], relation, 1, true) then return '0' end
  end
  if ARGV[5] == '' then return tostring(call('DEL', KEYS[2])) end
  if ARGV[6] == '' then
    call('SET', KEYS[2], ARGV[5])
  else
    call('SET', KEYS[2], ARGV[5], 'PX', ARGV[6])
  end
  return '1'
end)
