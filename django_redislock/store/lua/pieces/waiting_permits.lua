-- (piece) the queue of a semaphore. It is never suspended.
--#include queue
--#include @lease
-- the queues of those who wait for a permit, and the names that they ask for
local queues = {{KEYS.queue, KEYS.waiters, ARGV.name}}

local function read_planned() end
local function cancel_suspension() end
local function begin_suspension() end

-- the value of the permit whose lease ends first, and the limit with all values and the milliseconds that are left
local function look()
  drop_ended()
  local found = {get_limit()}
  local ends = redis.call('ZRANGE', KEYS.ends, 0, -1, 'WITHSCORES')
  for i = 1, #ends, 2 do
    local value = redis.call('HGET', KEYS.permits, ends[i])
    if value then
      if #found == 1 then holder = ends[i] end
      found[#found + 1] = value
      found[#found + 1] = math.max(0, math.ceil((ends[i + 1] - us) / 1000))
    end
  end
  return found[2], found
end
