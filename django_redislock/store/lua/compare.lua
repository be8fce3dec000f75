-- compare: replace or delete what is stored, if a value compares so with it.
-- KEYS     sequence stored
-- ARGV     number relations value eps new ttl most
--            number: of the call in its sequence; relations: which of < = > may hold between the value and what is
--            stored
--            new: what to store, '' to delete; ttl: ms, '' for none; most: bytes that a value may have
-- returns  '1' = done, '0' = not so (or there is nothing to delete), '?' and what is stored = cannot be compared,
--          '!' and its bytes = it is too long for that
--#include once

-- a number as JSON has it; nil for what we do not store: what is infinite, and integers that a double may miss
local function number(text)
  local digits, rest = string.match(text, '^%-?(%d+)(.*)$')
  if not digits or string.find(digits, '^0%d') then return nil end
  if rest == '' and (#digits > 16 or #digits == 16 and digits > '9007199254740992') then return nil end
  rest = string.gsub(string.gsub(rest, '^%.%d+', ''), '^[eE][+-]?%d+', '')
  local value = rest == '' and tonumber(text)
  return value and math.abs(value) < math.huge and value or nil
end

-- whether it is a text as JSON has it, and as json.dumps writes it: in ASCII
local function is_text(text)
  if string.find(text, '\\', 1, true) then
    text = string.gsub(string.gsub(text, '\\["\\/bfnrt]', ''), '\\u%x%x%x%x', '')
  end
  return string.find(text, '^"[]-\127#-[ !]*"$')
end

-- '<', '=', '>', or '<>' of what has no order; nil: cannot be compared, or what is stored is none of ours
local function compare(value, stored)
  if value == stored then return '=' end
  local a, b = number(value), number(stored)
  if a and b then
    -- one difference for all operators: exactly one of < = > holds
    local difference, eps = a - b, tonumber(ARGV.eps)
    return difference > eps and '>' or difference < -eps and '<' or '='
  end
  if (ARGV.relations == '=' or ARGV.relations == '<>') and (b or is_text(stored)) then
    return '<>'
  end
end

return once(function()
  local stored = redis.call('GET', KEYS.stored)
  if stored then
    if #stored > tonumber(ARGV.most) then return '!' .. #stored end
    local relation = compare(ARGV.value, stored)
    if not relation then return '?' .. stored end
    if not string.find(ARGV.relations, relation, 1, true) then return '0' end
  end
  if ARGV.new == '' then return tostring(redis.call('DEL', KEYS.stored)) end
  redis.call('SET', KEYS.stored, ARGV.new, unpack(ARGV.ttl == '' and {} or {'PX', ARGV.ttl}))
  return '1'
end)
