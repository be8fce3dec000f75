-- (piece) the queue of a lock that is a key of its own, and its planned suspension: field '~' of the waiters hash.
--#include queue
--#include suspension
--#include @lease
-- the queues of those who wait for this lock, and the names that they ask for
local queues = {{KEYS.queue, KEYS.waiters, ARGV.name}}

local function read_planned() return parse_planned(redis.call('HGET', KEYS.waiters, '~')) end

local function plan_suspension(value, ms)
  redis.call('HSET', KEYS.waiters, '~', planned_text(value, ms))
  keep(KEYS.waiters, ms) --@suspension-kept
end

-- returns its value, if there was one
local function cancel_suspension()
  local value = read_planned()
  redis.call('HDEL', KEYS.waiters, '~')
  return value
end

-- nobody holds the lock: returns its value if it is suspended now
local function begin_suspension()
  local value, left = read_planned()
  if not value then return nil end
  redis.call('HDEL', KEYS.waiters, '~')
  write_lock(value, left)
  redis.call('ZADD', KEYS.index, us + left * 1000, ARGV.name)
  return value
end

-- the value of the lock; there are not several
local function look() return read_lock() or begin_suspension() end
