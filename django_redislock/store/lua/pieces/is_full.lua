-- (piece) whether as many others wait already as the caller accepts. Those who have died meanwhile do not count: they
-- are dropped here, as nobody else may do so for as long as the lock is held.
--#include is_dead
local function is_full(queue, waiters)
  local most = tonumber(ARGV.most)
  if redis.call('ZCARD', queue) < most --[[@most-waits-already]]or redis.call('ZSCORE', queue, ARGV.id) --[[@]]then return false end
  local ids, dead, absent = redis.call('ZRANGE', queue, 0, 99), {}, {}
  if #ids == 0 then return true end
  for i, entry in ipairs(redis.call('HMGET', waiters, unpack(ids))) do
    local channel, _, alive_until = parse_waiter(entry)
    if is_dead(channel, alive_until, absent) then dead[#dead + 1] = ids[i] end --@most-the-dead
  end
  if #dead == 0 then return true end
  redis.call('ZREM', queue, unpack(dead))
  redis.call('HDEL', waiters, unpack(dead))
  return redis.call('ZCARD', queue) >= most
end
