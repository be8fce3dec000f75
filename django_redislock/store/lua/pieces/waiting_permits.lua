-- (piece) the queue of a semaphore. It is never suspended.
--#include queue
--#include @lease
-- the queues of those who wait for a permit, and the names that they ask for
local queues = {{KEYS.queue, KEYS.waiters, ARGV.name}}

local function read_planned() end
local function cancel_suspension() end
local function begin_suspension() end

-- the value of the permit whose lease ends first; and the limit, how many are held, whether the caller holds one, and of
-- at most 100 the values and the milliseconds that are left
local function look()
  drop_ended()
  local found = {get_limit(), redis.call('ZCARD', KEYS.ends), redis.call('ZSCORE', KEYS.ends, ARGV.id) and 1 or 0}
  local ends, ids = redis.call('ZRANGE', KEYS.ends, 0, 99, 'WITHSCORES'), {}
  for i = 1, #ends, 2 do ids[#ids + 1] = ends[i] end
  whose = ids[1] or ''
  for i, value in ipairs(#ids > 0 and redis.call('HMGET', KEYS.permits, unpack(ids)) or {}) do
    if value then
      found[#found + 1] = value
      found[#found + 1] = math.max(0, math.ceil((ends[2 * i] - us) / 1000))
    end
  end
  return found[4], found
end
