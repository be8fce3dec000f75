-- (piece) the lease and the queue of a lock that is a key of its own.
--#include @lock
--#include one_permit
-- milliseconds; -2: there is no lock; -1: it never ends, so somebody else has written it
local function lease_left() return --[[@lease-left]]redis.call('PTTL', KEYS.lock)--[[@or]]0--[[@]] end

local function move_end(ms) redis.call('PEXPIRE', KEYS.lock, ms) end

-- the handoff with this flag is confirmed
local function clear_handoff(flag)
  if flag == 'h' then redis.call('HDEL', KEYS.waiters, '!') end
end

-- the caller has joined this queue, or left it
local function note_queue() end
local function note_leave() end
