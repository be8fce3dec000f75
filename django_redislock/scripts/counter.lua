-- counter: add to a counter, or set it back.
-- KEYS    slot, counter
-- ARGV    number of the call in its slot, what to add or '' to set it back, ttl ms or ''
-- answer  the count: after the addition, or before it was set back. Text: the numbers of Lua end at 2^53
local call = redis.call
--#include once

return once(function()
  local before = call('GET', KEYS[2])
  if ARGV[2] == '' then
    if not before then return '0' end
    call('INCRBY', KEYS[2], 0) -- refuses what is no counter before it is lost
    call('DEL', KEYS[2])
    return before
  end
  call('INCRBY', KEYS[2], ARGV[2])
  if not before and ARGV[3] ~= '' then call('PEXPIRE', KEYS[2], ARGV[3]) end
  return call('GET', KEYS[2])
end)
