-- (piece) the lease of a lock that is a member of a pool.
--#include lock_member
-- milliseconds; -2: there is no lock; -1: it never ends, so somebody else has written it
local function lease_left() return member_left(member) end

local function move_end(ms) redis.call('ZADD', KEYS.busy, us + ms * 1000, member) end

-- the handoff with this flag is confirmed
local function clear_handoff(flag)
  if flag == 'h' then redis.call('HDEL', KEYS.waiters, '!') end
  if flag == 'p' then redis.call('HDEL', KEYS.line_waiters, '!' .. member) end
end
