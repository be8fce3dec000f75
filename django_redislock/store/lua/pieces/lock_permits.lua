-- (piece) the lock is a semaphore: it has several permits, each with a holder and a lease of its own.
--   permits   hash: id of a holder -> value of its permit; ':' -> how many there are, as whoever asked last has said
--   ends      sorted set: id of a holder -> time at which its lease ends. Who is not in here holds nothing
--#include queue
--#include spare
local erased_flag -- flag of the permit that this script has taken from its holder, if any
local whose = ARGV.id -- the holder of the permit that is meant: the caller, or whose lease ends first
local limit, limit_before -- how many permits there are; what was said before, if it was something else
local none_held, waits -- what this script has found out: whether it has met no holder; whether anybody waits

local function set_limit(text) limit = tonumber(text) end

-- 1 where nobody has said it, or it was evicted
local function get_limit()
  limit = limit or tonumber(redis.call('HGET', KEYS.permits, ':'))
  return limit or 1
end

-- what the caller says counts from now on
local function adopt_limit()
  local before = tonumber(redis.call('HGET', KEYS.permits, ':'))
  if before and before ~= limit then
    limit_before = before
    redis.call('HSET', KEYS.permits, ':', limit)
  end
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
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS.ends, '-inf', us, 'LIMIT', 0, 100)) do
    redis.call('ZREM', KEYS.ends, id)
    redis.call('HDEL', KEYS.permits, id)
    local channel = redis.call('HGET', KEYS.waiters, handoff_field(id))
    if channel then
      add_suspect(KEYS.waiters, redis.call('HGET', KEYS.waiters, '?') or '', channel)
      redis.call('HDEL', KEYS.waiters, handoff_field(id)) -- not before it: an empty hash would lose its expiry
    end
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

local function erase_lock(flag)
  redis.call('ZREM', KEYS.ends, whose)
  if flag == 'h' then redis.call('HDEL', KEYS.waiters, handoff_field(whose)) end
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

-- whether a permit is free, nobody waits for one, no handoff has run out, and all agree on how many there are
local function is_idle(gone)
  local held = redis.call('ZCARD', KEYS.ends)
  none_held = held == 0
  return --[[@idle-permits]]held < limit--[[@or]]true--[[@]]
    and redis.call('EXISTS', KEYS.queue, KEYS.waiters, gone) == 0
    and (
      none_held
      or not redis.call('ZSCORE', KEYS.ends, ARGV.id) and tonumber(redis.call('HGET', KEYS.permits, ':')) == limit
    )
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
