-- counter: adds to a counter, or resets it.
-- KEYS     sequence counter
-- ARGV     number by ttl
--            number: of the call in its sequence; by: what to add, '' to reset; ttl: ms, '' for none
-- returns  the count, after the addition or before the reset. As text: the numbers of Lua end at 2^53
--#include once

return once(function()
  local before = redis.call('GET', KEYS.counter)
  if ARGV.by == '' then
    if not before then return '0' end
    redis.call('INCRBY', KEYS.counter, 0) -- refuses what is no counter before it is lost
    redis.call('DEL', KEYS.counter)
    return before
  end
  redis.call('INCRBY', KEYS.counter, ARGV.by)
  if not before and ARGV.ttl ~= '' then redis.call('PEXPIRE', KEYS.counter, ARGV.ttl) end
  return redis.call('GET', KEYS.counter)
end)
