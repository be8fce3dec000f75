-- Pieces: a lock that is a member of a pool.

--#piece lock_member
-- The lock is a member of a pool, and a field of the pool's keys.
--#include members
--#include single
local member = string.sub(ARGV.name, #stem + 1)

local function read_lock() return read_member(member) end

local function write_lock(value, ms) hold_member(member, value, ms) end

local function erase_lock(flag)
  vacate(member, redis.call('HGET', KEYS.held, member))
  erased_flag = flag
  if flag == 'p' then redis.call('HDEL', KEYS.line_waiters, '!' .. member) end
end

--#piece idle_member
there = redis.call('EXISTS', KEYS.queue, KEYS.waiters, KEYS.gone, KEYS.gone, KEYS.gone, KEYS.gone)
value = read_lock()
idle = there == 0 and not value

--#piece lease_member
-- The lease and the queue of a lock that is a member of a pool.
--#include @lock
--#include one_permit
-- milliseconds; -2: there is no lock; -1: it never ends, so somebody else has written it
local function lease_left() return member_left(member) end

local function move_end(ms)
  redis.call('ZADD', KEYS.busy, us + ms * 1000, member)
  keep_pool(ms)
end

-- the handoff with this flag is confirmed
local function clear_handoff(flag)
  if flag == 'h' then redis.call('HDEL', KEYS.waiters, '!') end
  if flag == 'p' then redis.call('HDEL', KEYS.line_waiters, '!' .. member) end
end

--#piece note_queue_member
-- The caller has joined the queue of this very member, which is not for those who want any as long as somebody there
-- looks, every 5 s at least
  local patience = tonumber(string.match(ARGV.wait, '^p(%d+)$')) or 0
  local till = us + math.max(patience, 7000) * 1000
  redis.call('ZADD', KEYS.wanted, 'GT', string.format('%.0f', till), member)
  keep_pool(math.ceil((till - us) / 1000))

--#piece note_leave_member
-- The caller has left that queue.
  if redis.call('EXISTS', KEYS.queue) == 0 then redis.call('ZREM', KEYS.wanted, member) end

--#piece waiting_member
-- The queues of a lock that is a member of a pool, and its planned suspension, which begins by itself (see
-- vacate).
--#include queue
--#include suspension
--#include @lease
-- the queues of those who wait for this member, and for any of its pool, and the names that they ask for
local queues = {{KEYS.queue, KEYS.waiters, ARGV.name}, {KEYS.line, KEYS.line_waiters, stem}}
local plans, plan = KEYS.held, planned_field(member) -- hash and field of a planned suspension

-- nobody holds the lock: returns its value if it is suspended now
local function begin_suspension() return redis.call('HGET', KEYS.held, member) end

--#piece keep_plan_member
-- A suspension was planned.
  keep_pool(ms)

--#piece grant_next_member
-- The member is free: grants it to the next of those who queue for this very member, else to those who want any,
-- unless it is suspended. Returns 1 when this must be called again.
--#include hand_off
--#include line
local function grant_next()
  if suspends() then return 0 end
  local verdict, handed = grant_in_order(KEYS.queue, KEYS.waiters, ARGV.name, 1, nil, grant_to)
  if verdict == 'take' then
    redis.call('ZREM', KEYS.wanted, member)
    free_member(member)
  elseif handed == 0 then
    look_at_soon(member) -- it is left for one that polls, and may die
  end
  if verdict ~= 'more' then
    sweep()
    verdict = grant_members()
  end
  return verdict == 'more' and 1 or 0
end
