-- (piece) the lock is a semaphore: it has several permits, each with a holder and a lease of its own.
--   permits   hash: id of a holder -> value of its permit; ':' -> how many there are, as whoever asked last has said
--   ends      sorted set: id of a holder -> time at which its lease ends. Who is not in here holds nothing
--#include queue
local erased_flag -- flag of the permit that this script has taken from its holder, if any
local holder = ARGV.id -- whose permit is meant: the caller's, or else that whose lease ends first
local limit, other_limit -- how many permits there are; how many others have said before

local function set_limit(text) limit = tonumber(text) end

local function get_limit()
  limit = limit or tonumber(redis.call('HGET', KEYS.permits, ':') or 1)
  return limit
end

local function count_free() return get_limit() - redis.call('ZCARD', KEYS.ends) end

local function handoff_field(id) return '!' .. id end

local function keep_permits(ms)
  -- for longer than any lease: whoever looks at its end must find a handoff that ran out unheard
  keep(KEYS.permits, ms + 5000)
  keep(KEYS.ends, ms + 5000)
end

local function drop_ended()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS.ends, '-inf', us, 'LIMIT', 0, 100)) do
    redis.call('ZREM', KEYS.ends, id)
    redis.call('HDEL', KEYS.permits, id)
    local channel = redis.call('HGET', KEYS.waiters, handoff_field(id))
    if channel then
      redis.call('HDEL', KEYS.waiters, handoff_field(id))
      add_suspect(KEYS.waiters, redis.call('HGET', KEYS.waiters, '?') or '', channel)
    end
  end
end

-- that of the caller's permit, or, if all are held, of that whose lease ends first
local function read_lock()
  if limit then
    local before = tonumber(redis.call('HGET', KEYS.permits, ':') or limit)
    if before ~= limit then
      other_limit = before
      redis.call('HSET', KEYS.permits, ':', limit)
    end
  end
  holder = ARGV.id
  local ends = redis.call('ZSCORE', KEYS.ends, holder)
  local value = ends and tonumber(ends) > us and redis.call('HGET', KEYS.permits, holder)
  if value then return value end
  drop_ended()
  while count_free() < 1 do
    holder = redis.call('ZRANGE', KEYS.ends, 0, 0)[1]
    value = redis.call('HGET', KEYS.permits, holder)
    if value then return value end
    redis.call('ZREM', KEYS.ends, holder) -- its value was evicted: it is lost
  end
  return nil
end

local function write_lock(value, ms)
  local id = string.match(value, '^%S+')
  redis.call('HSET', KEYS.permits, ':', get_limit(), id, value)
  redis.call('ZADD', KEYS.ends, us + ms * 1000, id)
  keep_permits(ms)
end

local function erase_lock(flag)
  redis.call('ZREM', KEYS.ends, holder)
  if redis.call('EXISTS', KEYS.ends) == 1 then
    redis.call('HDEL', KEYS.permits, holder)
  else
    get_limit()
    redis.call('UNLINK', KEYS.permits)
  end
  if flag == 'h' then redis.call('HDEL', KEYS.waiters, handoff_field(holder)) end
  erased_flag = flag
end

-- whether a permit is free, nobody waits for one, no handoff has run out, and all agree on how many there are
local function is_idle(gone)
  local held = redis.call('ZCARD', KEYS.ends)
  return held < limit
    and redis.call('EXISTS', KEYS.queue, KEYS.waiters, gone) == 0
    and (
      held == 0
      or not redis.call('ZSCORE', KEYS.ends, ARGV.id) and tonumber(redis.call('HGET', KEYS.permits, ':')) == limit
    )
end

local function nobody_waits() return redis.call('EXISTS', KEYS.queue, KEYS.waiters) == 0 end

-- in the index of held locks, until the last lease ends
local function list_until(ms) redis.call('ZADD', KEYS.index, 'GT', us + ms * 1000, ARGV.name) end

local function unlist()
  if redis.call('EXISTS', KEYS.ends) == 0 then redis.call('ZREM', KEYS.index, ARGV.name) end
end
