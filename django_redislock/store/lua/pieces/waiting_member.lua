-- (piece) the queues of a lock that is a member of a pool, and its planned suspension, which begins by itself (see
-- vacate).
--#include queue
--#include suspension
--#include @lease
-- the queues of those who wait for this member, and for any of its pool, and the names that they ask for
local queues = {{KEYS.queue, KEYS.waiters, ARGV.name}, {KEYS.line, KEYS.line_waiters, stem}}

local function read_planned() return parse_planned(redis.call('HGET', KEYS.held, planned_field(member))) end

local function plan_suspension(value, ms)
  redis.call('HSET', KEYS.held, planned_field(member), planned_text(value, ms))
end

-- returns its value, if there was one
local function cancel_suspension()
  local value = read_planned()
  redis.call('HDEL', KEYS.held, planned_field(member))
  return value
end

-- nobody holds the lock: returns its value if it is suspended now
local function begin_suspension() return redis.call('HGET', KEYS.held, member) end

-- the value of the lock; there are not several
local function look() return read_lock() or begin_suspension() end
