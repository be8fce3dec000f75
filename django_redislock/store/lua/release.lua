-- release: gives the lock back, or leaves its queue (withdraws), and passes the lock on when it is free. One script for
-- both, since who leaves the queue may have been granted the lock at this moment.
-- KEYS     @lock queue waiters index fence never gone
--            never: on one server, it may be missing; gone: only while an acquire of this attempt may still arrive
-- ARGV     name id channel known how
--            how: missing = what this process holds: a detached lock goes on without it; bearer = whoever has the token
--            may; withdraw = an attempt that was given up: what it has adopted is left to the next bearer
-- returns  {1 = it was held, 0 = not, 2 = it is detached; 1 = dead waiters remain: call again; where somebody else
--            holds it: false, the value of the lock, lease left in ms}
local value
--#include @release_fast
--#include @hand_over_fast
--#include @lock
value = value or read_lock()
local mine = ARGV.id .. ' '
local held = value --[[@release-id]]and string.sub(value, 1, #mine) == mine--[[@]]
local channel, flag
if held then channel, flag = string.match(value, '^(%S+) (%S)', #mine + 1) end
if flag == 'd' and ARGV.how ~= 'bearer' then return {2, 0} end --@release-detached
local detaches = --[[@withdraw-adopted]]flag == 'a' and ARGV.how == 'withdraw'--[[@or]]false--[[@]]
if held and not detaches then erase_lock(flag, value) end
if KEYS.gone then redis.call('SET', KEYS.gone, '1', 'PX', 60000) end --@release-marks

-- (of a semaphore, whose fast path is for its only holder)
--#include @release_unwanted
--#include @grant_next
if detaches then
  -- at least 1 ms: Redis refuses to write a key for less
  write_lock(mine .. channel .. ' d' .. string.sub(value, #mine + #channel + 3), math.max(1, lease_left()))
  return {2, 0}
end
if held then
  -- the process that renews it must hear that it has ended
  if channel ~= ARGV.channel then tell(channel, 'r ' .. ARGV.id .. ' ' .. ARGV.name) end --@release-told
else
  redis.call('ZREM', KEYS.queue, ARGV.id)
  redis.call('HDEL', KEYS.waiters, ARGV.id)
--#include @note_leave
  if value then return {0, 0, false, value, lease_left()} end
end
return {held and 1 or 0, --[[@release-grants]]grant_next()--[[@or]]0--[[@]]}
