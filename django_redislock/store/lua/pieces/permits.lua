-- Pieces: a semaphore.
-- (Marks such as @name and @or are for the tests, which leave rules out: see scripts.py.)

--#piece spare
-- Milliseconds for which the keys of a semaphore outlive all leases: whoever looks at the end of one must find a
-- handoff that ran out unheard
local SPARE = 5000

--#piece acquire_fast_permits
-- Acquire where nobody has a permit and nobody waits.
--#include clock
--#include spare
there = redis.call('EXISTS', KEYS.ends, KEYS.queue, KEYS.waiters, KEYS.gone)
--#include acquire_fast

--#piece first_lease_permits
-- The first permit, written as write_lock() does
  redis.call('HSET', KEYS.permits, ':', ARGV.limit, ARGV.id, value)
  redis.call('ZADD', KEYS.ends, us + ARGV.ttl * 1000, ARGV.id)
  redis.call('PEXPIRE', KEYS.permits, ARGV.ttl + SPARE)
  redis.call('PEXPIRE', KEYS.ends, ARGV.ttl + SPARE)

--#piece release_fast_permits
-- Release where this process holds the only permit and nobody waits, written out as acquire_fast is.
--#include clock
local ends = redis.call('ZRANGE', KEYS.ends, 0, 1, 'WITHSCORES')
if #ends == 2 and ends[1] == ARGV.id and tonumber(ends[2]) > us and not KEYS.gone and redis.call('EXISTS', KEYS.queue, KEYS.waiters) == 0 then
  local own, head = redis.call('HGET', KEYS.permits, ARGV.id), ARGV.id .. ' ' .. ARGV.channel .. ' c '
  if own and string.sub(own, 1, #head) == head then
    redis.call('DEL', KEYS.permits, KEYS.ends)
    redis.call('ZREM', KEYS.index, ARGV.name) --@release-index
    return {1, 0}
  end
end

--#piece lock_permits
-- The lock is a semaphore: it has several permits, each with a holder and a lease of its own. Who is not in `ends` holds
-- nothing; field ':' of `permits` is how many there are, as whoever asked last has said.
--#include several_handoffs
--#include spare
local whose = ARGV.id -- the holder of the permit that is meant: the caller, or whose lease ends first
local limit -- how many permits there are
local none_held, waits -- what this script has found out: whether it has met no holder; whether anybody waits

-- 1 where nobody has said it, or it was evicted
local function get_limit()
  limit = limit or tonumber(redis.call('HGET', KEYS.permits, ':'))
  return limit or 1
end

local function count_free() return get_limit() - redis.call('ZCARD', KEYS.ends) end

local function handoff_field(id) return '!' .. id end

local function expire_permits(ms)
  redis.call('PEXPIRE', KEYS.permits, ms + SPARE)
  redis.call('PEXPIRE', KEYS.ends, ms + SPARE)
end

local function keep_permits(ms)
  keep(KEYS.permits, ms + SPARE)
  keep(KEYS.ends, ms + SPARE)
end

local function drop_ended()
  for _, id in ipairs(redis.call('ZRANGE', KEYS.ends, '-inf', us, 'BYSCORE', 'LIMIT', 0, 100)) do
    redis.call('ZREM', KEYS.ends, id)
    redis.call('HDEL', KEYS.permits, id)
    note_lapsed(KEYS.waiters, handoff_field(id))
  end
end

-- that of the caller's permit, or, if all are held, of that whose lease ends first
local function read_lock()
  whose = ARGV.id
  local ends = redis.call('ZSCORE', KEYS.ends, whose)
  local value = ends and tonumber(ends) > us and redis.call('HGET', KEYS.permits, whose)
  if value then return value end --@permit-own
  drop_ended()
  while count_free() < 1 do
    whose = redis.call('ZRANGE', KEYS.ends, 0, 0)[1]
    value = redis.call('HGET', KEYS.permits, whose)
    if value then return value end
    redis.call('ZREM', KEYS.ends, whose) -- its value was evicted: it is lost
  end
  return nil
end

-- when the last lease ends
local function last_end() return redis.call('ZRANGE', KEYS.ends, -1, -1, 'WITHSCORES')[2] end

local function write_lock(value, ms)
  local id = string.match(value, '^%S+')
  if limit then
    redis.call('HSET', KEYS.permits, ':', limit, id, value)
  else
    redis.call('HSET', KEYS.permits, id, value)
  end
  redis.call('ZADD', KEYS.ends, us + ms * 1000, id)
  if none_held then
    none_held = false
    expire_permits(ms)
  else
    keep_permits(ms)
  end
end

local function nobody_waits()
  if waits == nil then waits = redis.call('EXISTS', KEYS.queue, KEYS.waiters) > 0 end
  return not waits
end

-- the handoff with this flag is confirmed, or given back
local function clear_handoff(flag)
  if flag == 'h' then redis.call('HDEL', KEYS.waiters, handoff_field(whose)) end
end

local function erase_lock(flag)
  redis.call('ZREM', KEYS.ends, whose)
  clear_handoff(flag)
  erased_flag = flag
  local last = last_end()
  if last and tonumber(last) <= us then
    drop_ended()
    last = last_end()
  end
  if last then
    redis.call('HDEL', KEYS.permits, whose)
    expire_permits(math.ceil((last - us) / 1000)) -- no longer than those leases that are left
  else
    if not nobody_waits() then get_limit() end -- it goes with the last permit
    redis.call('UNLINK', KEYS.permits)
    none_held = true
  end
end

-- in the index of held locks, until the last lease ends
local function list_until(ms) redis.call('ZADD', KEYS.index, 'GT', us + ms * 1000, ARGV.name) end

local function unlist()
  local last = not none_held and last_end()
  if last then
    redis.call('ZADD', KEYS.index, last, ARGV.name)
  else
    redis.call('ZREM', KEYS.index, ARGV.name)
  end
end

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

--#piece idle_permits
-- A permit may be free though others are held. This short way is for those who agree on the limit
limit = tonumber(ARGV.limit)
local held = redis.call('ZCARD', KEYS.ends)
none_held = held == 0
if not none_held then
  idle = there == 1
    and --[[@idle-permits]]held < limit--[[@or]]true--[[@]]
    and not redis.call('ZSCORE', KEYS.ends, ARGV.id)
    and tonumber(redis.call('HGET', KEYS.permits, ':')) == limit
end

--#piece impose_limit_permits
-- What the caller says counts from now on.
local before = tonumber(redis.call('HGET', KEYS.permits, ':'))
if before and before ~= limit then
  limit_before = before
  redis.call('HSET', KEYS.permits, ':', limit)
end

--#piece release_unwanted_permits
-- For release.lua, which may return here. Nobody waits for the permit.
if held and not detaches and nobody_waits() and channel == ARGV.channel then
  unlist() --@release-index
  return {1, 0}
end

--#piece note_queue_permits
-- The caller has joined the queue.
  clear_handoffs(KEYS.waiters, KEYS.ends)

--#piece lease_shortened_permits
-- For renew.lua, which may return here. The lease ends sooner than before.
  expire_permits(math.ceil((last_end() - us) / 1000))
  unlist()
  if nobody_waits() then return answer end

--#piece waiting_permits
-- The queue of a semaphore. It is never suspended.
--#include queue
--#include @lock
-- the queues of those who wait for a permit, and the names that they ask for
local queues = {{KEYS.queue, KEYS.waiters, ARGV.name}}
local plans, plan = KEYS.permits, '~' -- nobody writes that

local function begin_suspension() end

--#piece holders_permits
-- The value of the permit whose lease ends first; and the limit, how many are held, and whether the caller holds one
drop_ended()
whose = redis.call('ZRANGE', KEYS.ends, 0, 0)[1] or ''
value = redis.call('HGET', KEYS.permits, whose)
holders = {get_limit(), redis.call('ZCARD', KEYS.ends), redis.call('ZSCORE', KEYS.ends, ARGV.id) and 1 or 0}

--#piece grant_next_permits
-- Passes the permits on that are free. Returns 1 when this must be called again.
--#include hand_off
local function grant_next()
  drop_ended()
  local free, verdict = count_free(), nil
  if --[[@permits-free]]free > 0--[[@or]]true--[[@]] then
    verdict = grant_in_order(KEYS.queue, KEYS.waiters, ARGV.name, free, nil, grant_to)
  end
  unlist()
  return verdict == 'more' and 1 or 0
end

--#piece grant_rest_permits
-- The caller has taken a permit: whatever more there is to be had.
      grant_next()
