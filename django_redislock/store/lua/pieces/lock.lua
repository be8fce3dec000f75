-- Pieces: what all locks share: the server's clock, fences, the value of a held lock, and its grant.
-- (Marks such as @name and @or are for the tests, which leave rules out: see scripts.py.)

--#piece clock
-- The server's clock, in microseconds. Lua's numbers hold it exactly, but as text it must be written by
-- string.format('%.0f'): every other way rounds it
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]

--#piece fence
-- Draws the next fence or ticket: max(last, highest the caller knows, server time - 1) + 1. So both grow across
-- FLUSHALL, restarts, and a failover to a replica that lags or whose clock is behind. Returns it and the time, as text.
-- draw has the same rule, written out.
--#include holder
local function next_fence()
  local fence = math.max(tonumber(ARGV.known), --[[@fence-time]]--[[@fence-us]]us--[[@or]]math.floor(us / 1000000)--[[@]] - 1--[[@or]]0--[[@]]) + 1
  local drawn = string.format('%.0f', fence)
  local since = fence == us and drawn or string.format('%.0f', us)
  local before = redis.call('SET', KEYS.fence, drawn, 'GET')
  local last = tonumber(before or 0)
  if last --[[@fence-grows]]and last < fence --[[@]]then return drawn, since end -- nearly always: time has gone on
  if not last or last ~= last or last >= 9e15 then
    -- none of ours: put it back, and let Redis say what it is not. (Beyond 2^53 = 9.007e15 fences could not grow.)
    redis.call('SET', KEYS.fence, before)
    redis.call('INCRBY', KEYS.fence, '9223372036854775807')
  end
  drawn = string.format('%.0f', last + 1)
  redis.call('SET', KEYS.fence, drawn)
  return drawn, since
end

--#piece holder
-- The value of a held lock; docs/protocol.rst has its words under "Values". acquire_fast and hand_over_fast_key write
-- it as well, and records.py reads it.
--   flag     c: confirmed, a: adopted, d: detached, h: handed over and not yet confirmed, p: the same by the line of
--            a pool; s: nobody holds the lock, it is suspended
--#include clock
local erased_flag -- flag of the lock that this script has taken from its holder, if any

local function holder_value(id, channel, flag, fence, since, token, owner)
  return id .. ' ' .. channel .. ' ' .. flag .. ' ' .. fence .. ' ' .. since .. ' ' .. token .. ' ' .. owner
end

-- nil for what somebody else has written: whoever that is holds the lock
local function parse_holder(value)
  local id, channel, flag, fence, since, token, owner =
    string.match(value or '', '^(%S+) (%S+) (%S) (%d+) (%d+) (%S+) (.*)$')
  if id and #fence < 17 then return id, channel, flag, fence, since, token, owner end
end

--#piece single
-- A lock that only one can hold.
--#include holder
-- in the index of held locks
local function list_until(ms) redis.call('ZADD', KEYS.index, us + ms * 1000, ARGV.name) end
local function unlist() redis.call('ZREM', KEYS.index, ARGV.name) end

local function count_free() return 1 end

-- the field of a waiters hash in which a handoff is remembered
local function handoff_field() return '!' end

--#piece grant
-- Grants the lock to `id` for `ms`; returns its fence and the time of the grant, as text.
--#include holder
--#include fence
--#include @lock
local function grant(id, channel, flag, ms, token, owner)
  local fence, since = next_fence()
  write_lock(holder_value(id, channel, flag, fence, since, token, owner), ms)
  list_until(ms)
  return fence, since
end

--#piece draw
-- Sets `drawn` to the next fence or ticket, unless the clock is behind, or Redis holds no fence of ours: next_fence()
-- knows what to do then. Written out, since each function that a script makes or calls costs time, and so does each number
-- of this size that becomes text, or the other way round.
  local now = clock[1] .. string.sub('00000', #clock[2]) .. clock[2]
  -- as texts of one length, numbers compare as they do themselves
  if --[[@fence-time]]--[[@fence-us]]#ARGV.known == #now and ARGV.known < now--[[@or]]false--[[@]]--[[@or]]false--[[@]] then
    local before = redis.call('SET', KEYS.fence, now, 'GET')
    if --[[@fence-grows]]not before or #before == #now and before < now--[[@or]]tonumber(before or 0)--[[@]] then
      drawn = now
    else
      redis.call('SET', KEYS.fence, before)
    end
  end

--#piece acquire_fast
-- The grant of a lock that nobody has and nobody waits for: seven in eight, as the others sweep the index as well. Who only
-- queues draws a ticket.
local grants = there == 0 and us % 8 ~= 0 --[[@adopt-only-free]]and ARGV.wait ~= 'a'--[[@]]
if grants or only_queues and ARGV.wait ~= '0' then
--#include draw
end
if grants and drawn then
  value = ARGV.id .. ' ' .. ARGV.channel .. ' c ' .. drawn .. ' ' .. drawn .. ' ' .. (ARGV.token or '-') .. ' ' .. ARGV.owner
--#include @first_lease
  redis.call('ZADD', KEYS.index, us + ARGV.ttl * 1000, ARGV.name)
  return {1, us, us, tonumber(ARGV.ttl)}
end

--#piece once
-- A call that is sent again runs once. A sequence has one call after the other. A lower number than its last
-- one is a request that comes after its caller has given up: nobody hears the answer.
local function once(work)
  local number, answer = string.match(redis.call('GET', KEYS.sequence) or '', '^(%d+) (.*)$')
  if number and tonumber(number) >= tonumber(ARGV.number) then return answer end
  answer = work()
  if type(answer) == 'table' then return answer end -- an error
  redis.call('SET', KEYS.sequence, ARGV.number .. ' ' .. answer, 'PX', 60000)
  return answer
end
