-- (piece) the lease and the queue of a lock that is a member of a pool.
--#include @lock
--#include one_permit
-- milliseconds; -2: there is no lock; -1: it never ends, so somebody else has written it
local function lease_left() return member_left(member) end

local function move_end(ms) redis.call('ZADD', KEYS.busy, us + ms * 1000, member) end

-- the handoff with this flag is confirmed
local function clear_handoff(flag)
  if flag == 'h' then redis.call('HDEL', KEYS.waiters, '!') end
  if flag == 'p' then redis.call('HDEL', KEYS.line_waiters, '!' .. member) end
end

-- the caller has joined the queue of this very member, which is not for those who want any as long as somebody there
-- looks, every 5 s at least
local function note_queue(wait)
  local patience = tonumber(string.match(wait, '^p(%d+)$')) or 0
  local till = us + math.max(patience, 7000) * 1000
  redis.call('ZADD', KEYS.wanted, 'GT', string.format('%.0f', till), member)
end

local function note_leave()
  if redis.call('EXISTS', KEYS.queue) == 0 then redis.call('ZREM', KEYS.wanted, member) end
end
