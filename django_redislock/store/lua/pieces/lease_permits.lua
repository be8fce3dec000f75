-- (piece) the leases and the queue of a semaphore.
--#include @lock
-- milliseconds, of the permit that is meant, or until the first one is free; -2: one is free
local function lease_left()
  local ends = redis.call('ZSCORE', KEYS.ends, whose)
  if not ends and count_free() < 1 then ends = redis.call('ZRANGE', KEYS.ends, 0, 0, 'WITHSCORES')[2] end
  return ends and math.max(0, math.ceil((ends - us) / 1000)) or -2
end

local function move_end(ms)
  redis.call('ZADD', KEYS.ends, us + ms * 1000, whose)
  keep_permits(ms)
end

-- the handoff with this flag is confirmed
local function clear_handoff(flag)
  if flag == 'h' then redis.call('HDEL', KEYS.waiters, handoff_field(whose)) end
end

-- the caller has joined this queue, or left it
local function note_queue() end
local function note_leave() end
