-- Pieces: a lock that is a key of its own.
-- (Marks such as @name and @or are for the tests, which leave rules out: see scripts.py.)

--#piece acquire_fast_key
-- Acquire where nobody has the lock and nobody waits, or somebody has it and the caller is a newcomer.
--#include clock
there = redis.call('EXISTS', --[[@idle-lock]]KEYS.lock, --[[@]]--[[@idle-queue]]KEYS.queue, --[[@]]--[[@idle-waiters]]KEYS.waiters, --[[@]]KEYS.gone)
if there > 0 and ARGV.wait ~= 'a' and not ARGV.ticket then
  value = redis.call('GET', KEYS.lock)
  local id, flag = string.match(value or '', '^(%S+) %S+ (%S) ')
  only_queues = id and id ~= --[[@already-mine]]ARGV.id--[[@or]]id--[[@]] and flag ~= 's' and redis.call('EXISTS', KEYS.gone) == 0
end
--#include acquire_fast

--#piece first_lease_key
-- The lock, written as write_lock() does
  redis.call('SET', KEYS.lock, value, 'PX', ARGV.ttl)

--#piece release_fast_key
-- Release where this process holds the lock and nobody waits, written out as acquire_fast is.
value = redis.call('GET', KEYS.lock)
local head = ARGV.id .. ' ' .. ARGV.channel .. ' c '
if value and string.sub(value, 1, #head) == head and not KEYS.gone and redis.call('EXISTS', KEYS.queue, KEYS.waiters) == 0 then
  redis.call('DEL', KEYS.lock)
  redis.call('ZREM', KEYS.index, ARGV.name) --@release-index
  return {1, 0}
end

--#piece hand_over_fast_key
-- Release where this process holds the lock and the first in its queue lives: what hand_over (queue.lua) does, written out
-- as well.
--#include clock
head = string.sub(head, 1, -3) -- without the flag
local flag = value and not KEYS.gone and not ARGV.how and string.sub(value, 1, #head) == head and string.sub(value, #head + 1, #head + 1)
local first
if flag and flag ~= 'd' then
  redis.call('DEL', KEYS.lock) -- first, whatever stands in the other keys; and where memory has run out, see R2
  first = redis.call('ZRANGE', KEYS.queue, 0, 0--[[@order]]--[[@or]], 'REV'--[[@]])[1]
end
if first then --@release-grants
  local suspects, plan, entry = unpack(redis.call('HMGET', KEYS.waiters, '?', '~', first))
  local channel, ttl, token, owner = string.match(entry or '', '^(%S+) ([1-9]%d*) 0 (%S+) (.*)$')
  -- it does not poll (0), nor is a suspect; no suspension is planned; its TTL is below 100 s, so that `waiters` outlives the
  -- handoff anyway; and its channel is not a cluster's
  local usual = channel and #ttl < 6 --[[@suspects-skipped]]and not suspects --[[@]]--[[@release-suspends]]and not plan --[[@]]and string.byte(channel, -17) ~= 33
  local drawn
  if usual and --[[@the-dead]]redis.pcall('PUBSUB', 'NUMSUB', channel)[2] ~= 0--[[@or]]true--[[@]] then
--#include draw
  end -- if nothing was drawn, release.lua goes on, with the value of the lock that it had
  if drawn then
    local ms = math.min(ttl--[[@grant-short]], math.max(3000, math.floor(ttl / 3))--[[@]])
    local granted = first .. ' ' .. channel .. ' h ' .. drawn .. ' ' .. drawn .. ' ' .. token .. ' ' .. owner
    redis.call('ZREM', KEYS.queue, first)
    redis.call('SET', KEYS.lock, granted, 'PX', ms) --@grant-written
    redis.call('ZADD', KEYS.index, us + ms * 1000, ARGV.name)
    redis.call('HSET', KEYS.waiters, '!', channel) --@grant-marked
    redis.call('HDEL', KEYS.waiters, first)
    redis.pcall('PUBLISH', channel, 'g ' .. first .. ' ' .. drawn .. ' ' .. drawn .. ' ' .. ms .. ' ' .. ARGV.name) --@grant-told
    return {1, 0}
  end
end

--#piece lock_key
-- The lock is a key of its own, which Redis deletes when the lease ends.
--#include single
-- not by MGET or EXISTS, which do not tell a key of another type from a lock
local function read_lock() return redis.call('GET', KEYS.lock) end

local function write_lock(value, ms) redis.call('SET', KEYS.lock, value, 'PX', ms) end

local function erase_lock(flag)
  redis.call('DEL', KEYS.lock)
  erased_flag = flag --@erased-no-suspect
end

-- milliseconds; -2: there is no lock; -1: it never ends, so somebody else has written it
local function lease_left() return --[[@lease-left]]redis.call('PTTL', KEYS.lock)--[[@or]]0--[[@]] end

local function move_end(ms) redis.call('PEXPIRE', KEYS.lock, ms) end

-- the handoff with this flag is confirmed
local function clear_handoff(flag)
  if flag == 'h' then redis.call('HDEL', KEYS.waiters, '!') end
end

--#piece lease_shortened_key
-- For renew.lua, which may return here. The lease ends sooner than before: only those who wait must know.
  if redis.call('EXISTS', KEYS.queue) == 0 then return answer end

--#piece waiting_key
-- The queue of a lock that is a key of its own, and its planned suspension.
--#include queue
--#include suspension
--#include @lock
-- the queues of those who wait for this lock, and the names that they ask for
local queues = {{KEYS.queue, KEYS.waiters, ARGV.name}}
local plans, plan = KEYS.waiters, '~' -- hash and field of a planned suspension

-- nobody holds the lock: returns its value if it is suspended now
local function begin_suspension()
  local value, left = parse_planned(redis.call('HGET', plans, plan))
  if not value then return nil end
  redis.call('HDEL', plans, plan)
  write_lock(value, left)
  list_until(left)
  return value
end

--#piece keep_plan_key
-- A suspension was planned.
  keep(plans, ms) --@suspension-kept

--#piece grant_next_key
-- The lock is free: grants it to the next, unless it is suspended. Returns 1 when this must be called again.
--#include hand_off
local function grant_next()
  if suspends() then return 0 end
  local verdict, handed = grant_in_order(KEYS.queue, KEYS.waiters, ARGV.name, 1, nil, grant_to)
  if handed == 0 then unlist() end --@unwanted-unlisted
  return verdict == 'more' and 1 or 0
end
