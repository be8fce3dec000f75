-- suspend: nobody is granted the lock for a while. Whoever holds it keeps it to the end: the suspension begins then.
-- KEYS     sequence @lock queue waiters index fence never
-- ARGV     number name channel known ms owner
--            ms: from now; owner: who suspends it, for people; a note may follow behind a line feed
-- returns  1 = begun, 0 = planned: somebody holds the lock
--#include hand_off
--#include once
return once(function()
  local value, ms = read_lock(), tonumber(ARGV.ms)
  local fence, since = next_fence()
  local suspension = holder_value('-', '-', 's', fence, since, '-', ARGV.owner)
  redis.call('HDEL', plans, plan)
  local _, _, flag = parse_holder(value)
  if value and flag ~= 's' then --@suspension-waits
    redis.call('HSET', plans, plan, string.format('%.0f', us + ms * 1000) .. ' ' .. suspension)
--#include @keep_plan
    return '0'
  end
  write_lock(suspension, ms)
  list_until(ms) --@suspension-listed
  tell_of_end()
  return '1'
end)
