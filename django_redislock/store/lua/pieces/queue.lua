-- Pieces: queues, and suspensions.
-- (Marks such as @name and @or are for the tests, which leave rules out: see scripts.py.)

--#piece queue
-- Those who wait: how to tell them something, what is known of each, and which of them count as dead.
--#include holder

-- messages to the processes that hold or wait. An answer that is no number (no rights to ask, say) means "cannot tell",
-- never "nobody there". On a cluster, where 17 bytes before its end a channel has a "!" (lock_store.py), they go by
-- sharded pub/sub: only the node that runs the script knows who listens (R3, C1)
local function sharded(channel) return string.byte(channel, -17) == 33 end

local function tell(channel, message)
  if channel == '-' then return end
  return redis.pcall(sharded(channel) and 'SPUBLISH' or 'PUBLISH', channel, message)
end

local function listeners(channel)
  local answer = redis.pcall('PUBSUB', sharded(channel) and 'SHARDNUMSUB' or 'NUMSUB', channel)
  return answer[2] or answer
end

local function nobody_listens(channel) return --[[@the-dead]]listeners(channel) == 0--[[@or]]false--[[@]] end

-- on a cluster, "@" and the id of the node that runs this, else "": the messages of a master of before come by way of
-- the new one, too (C3). Whoever may not ask is "@?"
local function sender(channel)
  if not sharded(channel) then return '' end
  local id = redis.pcall('CLUSTER', 'MYID')
  return '@' .. (type(id) == 'string' and id or '?')
end

-- a waiters hash stays for at least so many milliseconds; longer where a suspension is planned in it
local function keep(waiters, ms)
  if redis.call('PTTL', waiters) < ms then redis.call('PEXPIRE', waiters, ms) end
end

-- the entry of a waiter in the waiters hash, see "Values" in docs/protocol.rst (channel '-': it polls); nil for what none
-- of ours can have written: a lease that Redis refuses, or one who claims to live for longer than anybody does unseen
local function parse_waiter(entry)
  local channel, ttl, alive_until, token, owner = string.match(entry or '', '^(%S+) (%d+) (%d+) (%S+) (.*)$')
  if channel and #ttl <= 12 and tonumber(ttl) >= 1 and tonumber(alive_until) <= us + 61000000 then
    return channel, ttl, tonumber(alive_until), token, owner
  end
end

-- whether nobody waits any more where the entry of a waiter is from.
--   absent   channels, and whether nobody listens there: what this call has found out
local function is_dead(channel, alive_until, absent)
  if not channel then return true end
  if channel == '-' then return --[[@polling-dies]]us >= alive_until--[[@or]]false--[[@]] end
  if absent[channel] == nil then absent[channel] = nobody_listens(channel) end
  return absent[channel]
end

-- R4: field '!' of a waiters hash names the channel of the last handoff until that is confirmed or given back. Found
-- where the lock is free, it means that the lease ran out without a sign of life: the channel joins the suspects in '?'.
--#include unheard
local MOST_SUSPECTS = 16

-- whoever asks lives; nothing is handed to one who polls
local function is_suspect(suspects, channel)
  return channel ~= ARGV.channel and channel ~= '-' and string.find(suspects, channel, 1, true)
end

-- returns the longer list
local function add_suspect(waiters, suspects, channel)
  if channel == ARGV.channel then unheard = 1 end
  if channel == ARGV.channel or is_suspect(suspects, channel) then return suspects end
  local listed, count = channel, 1
  for other in string.gmatch(suspects, '%S+') do
    count = count + 1
    if count <= MOST_SUSPECTS then listed = listed .. ' ' .. other end
  end
  redis.call('HSET', waiters, '?', listed)
  return listed
end

--#piece unheard
local unheard = 0 -- 1: a handoff to the process that asks ran out, though it lives

--#piece enqueue
-- Puts the caller into `queue`, or renews what is known of it there, in the hash `waiters`. `ticket` is a fence, drawn
-- once; afterwards, the one that counts. Sets `state`.
--#include unheard
  if redis.call('ZADD', queue, --[[@ticket-kept]]'NX'--[[@or]]'CH'--[[@]], --[[@tickets]]ticket--[[@or]]0--[[@]], ARGV.id) == 0 then
    if ARGV.ticket == '' then ticket = redis.call('ZSCORE', queue, ARGV.id) end -- it asks again, as the answer was lost (R8)
  elseif ARGV.ticket ~= '' then
    -- it was dropped, and lives: the others of its process may have been dropped as well
    state = 5 --@requeued
  end

  -- this process asks, so it is alive, whatever its handoffs say
  local mark, suspects = unpack(redis.call('HMGET', waiters, '!', '?'))
  if mark == ARGV.channel then redis.call('HDEL', waiters, '!') end --@look-confirms
  local from, to = string.find(suspects or '', ARGV.channel, 1, true)
  if from and ARGV.channel ~= '-' then
    unheard = 1
    local others = --[[@suspects-clear]]string.sub(suspects, 1, from - 1) .. string.sub(suspects, to + 1)--[[@or]]suspects--[[@]]
    if string.find(others, '%S') then
      redis.call('HSET', waiters, '?', others)
    else
      redis.call('HDEL', waiters, '?')
    end
  end

  local patience = string.match(ARGV.wait, '^p(%d+)$')
  local alive_until = patience and string.format('%.0f', us + patience * 1000) or '0'
  local entry = alive_until .. ' ' .. ARGV.token .. ' ' .. ARGV.owner
  redis.call('HSET', waiters, ARGV.id, (patience and '-' or ARGV.channel) .. ' ' .. ARGV.ttl .. ' ' .. entry)
  redis.call('PEXPIRE', queue, 60000) --@queue-expires
  if redis.call('PTTL', waiters) < 60000 then redis.call('PEXPIRE', waiters, 60000) end -- as keep() does

--#piece several_handoffs
-- Where several handoffs may be under way: of a semaphore, or to the line of a pool. Field '!' and the id, or the member,
-- names the channel of each.
--#include queue

-- that of this field ran out without a sign of life
local function note_lapsed(waiters, field)
  local channel = redis.call('HGET', waiters, field)
  if channel then
    add_suspect(waiters, redis.call('HGET', waiters, '?') or '', channel)
    redis.call('HDEL', waiters, field) -- not before it: an empty hash would lose its expiry
  end
end

-- a look is a sign of life, as in enqueue: clears the caller's marks, of at most 100 in the sorted set `granted`
local function clear_handoffs(waiters, granted)
  local fields = {}
  for i, id in ipairs(redis.call('ZRANGE', granted, 0, 99)) do fields[i] = '!' .. id end
  for i, channel in ipairs(#fields > 0 and redis.call('HMGET', waiters, unpack(fields)) or {}) do
    if channel == ARGV.channel then redis.call('HDEL', waiters, fields[i]) end --@look-confirms
  end
end

--#piece grant_in_order
-- Serves the waiters of a queue in order. All are handed their share, but one that polls: it cannot be told, so
-- its share is left free until it asks.
--   queue, waiters, called   keys of the queue, and the name by which it was asked for
--   free                     how many there are to be had: 1 for a lock, or so many members of a pool
--   me                       id of the waiter or newcomer that asks for itself; nil: nobody does
--   grant_to                 function (id, channel, lease, token, owner): grants one of them, and returns the field of the
--                            waiters hash in which that is remembered, the lock's name, its fence, the time of the grant
-- returns
--   'take'                   one is for whoever asks: for me, or for a newcomer, as nobody waits for it
--   'passed'                 none is left
--   'more'                   so many were dropped or served that this must go on in another call
-- and how many it has handed over.
--#include queue
local MOST = 500 -- waiters that one call drops or serves: a script keeps all others waiting
local dropped = 0

-- tells the first, from place `first` of the queue on, that can be told
local function tell_to_look(queue, waiters, called, first)
  local behind = redis.call('ZRANGE', queue, first, first + 99)
  if #behind == 0 then return end
  for i, entry in ipairs(redis.call('HMGET', waiters, unpack(behind))) do
    local channel = parse_waiter(entry)
    if channel and channel ~= '-' and not nobody_listens(channel) then
      tell(channel, 'w ' .. behind[i] .. ' ' .. called)
      return
    end
  end
end

-- a handoff: a grant to somebody who waits, with a lease until the new holder is seen to live. hand_over_fast_key has the
-- same, written out
local function hand_over(waiters, grant_to, id, channel, ttl, token, owner)
  local lease = math.min(ttl--[[@grant-short]], math.max(3000, math.floor(ttl / 3))--[[@]])
  local field, name, fence, since = grant_to(id, channel, lease, token, owner)
  redis.call('HSET', waiters, field, channel) --@grant-marked
  if lease > 50000 then keep(waiters, lease + 60000) end -- else those who wait keep it for 60 s
  redis.call('HDEL', waiters, id) -- not before it: an empty hash would lose its expiry
  local ms = string.format('%.0f', lease) .. sender(channel)
  tell(channel, 'g ' .. id .. ' ' .. fence .. ' ' .. since .. ' ' .. ms .. ' ' .. name) --@grant-told
end

local function grant_in_order(queue, waiters, called, free, me, grant_to)
  local handed, reserved, batch = 0, 0, math.min(free, 100)
  local mark, suspects, absent = nil, nil, {}

  local function done(verdict)
    if mark and handed == 0 then redis.call('HDEL', waiters, '!') end
    -- nobody else would notice that one who polls has died: the first behind it looks until it has gone
    if reserved > 0 and not me then tell_to_look(queue, waiters, called, reserved) end --@polling-watched
    return verdict, handed
  end

  while dropped + handed < MOST do
    local ids = redis.call('ZRANGE', queue, reserved, reserved + batch - 1--[[@order]]--[[@or]], 'REV'--[[@]])
    if #ids == 0 then
      if reserved == 0 then
        if not erased_flag and redis.call('HGET', waiters, '!') == ARGV.channel then unheard = 1 end
        redis.call('UNLINK', waiters)
      end
      return done(reserved + handed < free and 'take' or 'passed')
    end
    local entries = redis.call('HMGET', waiters, '!', '?', unpack(ids))
    if not suspects then
      mark, suspects = entries[1], entries[2] or ''
      if mark and not erased_flag then suspects = add_suspect(waiters, suspects, mark) end --@suspects-made
    end
    local dead, verdict = {}, nil
    for i, id in ipairs(ids) do
      if --[[@asker-queues]]id == me--[[@or]]me--[[@]] then --@asker-is-next
        verdict = 'take'
        break
      end
      local channel, ttl, alive_until, token, owner = parse_waiter(entries[i + 2])
      -- asked before the grant: a message that counts 0 here may still be heard, by one who listens to a replica
      if is_dead(channel, alive_until, absent) --[[@suspects-skipped]]or is_suspect(suspects, channel) --[[@]]then
        dead[#dead + 1] = id
      elseif channel == '-' then
        reserved = reserved + 1
      else
        redis.call('ZREM', queue, id)
        hand_over(waiters, grant_to, id, channel, tonumber(ttl), token, owner)
        handed = handed + 1
      end
      if reserved + handed == free then
        verdict = 'passed'
        break
      end
    end
    if #dead > 0 then
      redis.call('ZREM', queue, unpack(dead))
      redis.call('HDEL', waiters, unpack(dead))
      dropped = dropped + #dead
    end
    if verdict then return done(verdict) end
    batch = 100
  end
  return done('more')
end

--#piece hand_off
-- What becomes of a lock that is free: it is suspended, or handed over to a waiter of its own queue.
--#include grant
--#include grant_in_order
--#include @waiting
local function grant_to(id, channel, lease, token, owner)
  return handoff_field(id), ARGV.name, --[[@grant-written]]grant(id, channel, 'h', lease, token, owner)--[[@or]]next_fence()--[[@]]
end

-- those who wait know a later end of the lease
local function tell_of_end()
  for _, keys in ipairs(queues) do
    tell_to_look(keys[1], keys[2], keys[3], 0)
  end
end

-- whether one has begun
local function suspends()
  if --[[@release-suspends]]not begin_suspension()--[[@or]]true--[[@]] then return false end
  if erased_flag then redis.call('HDEL', KEYS.waiters, '!') end -- a handoff that was given back
  tell_of_end() --@suspension-told
  return true
end

--#piece suspension
-- A suspension. One that is planned, as somebody still holds the lock, is a text `end value`: the server's time,
-- and the value that the lock has from the end of its holder on (see suspend).
--#include holder

-- R20: a suspension that is from before the clock jumped back begins anew, else it would last longer by the jump.
--   left     milliseconds that are left of it
-- returns  its value and the milliseconds, as they are now. Any other value of a lock is returned as it is
local function begin_anew(value, left)
  local id, channel, flag, fence, since, token, owner = parse_holder(value)
  if flag ~= 's' or tonumber(since) <= us then return value, left end
  local now = string.format('%.0f', us)
  return holder_value(id, channel, flag, fence, now, token, owner), math.max(1, left - math.floor((since - us) / 1000))
end

-- the value, and the milliseconds that are left; nil when its time is over, or for what is none of ours
local function parse_planned(text)
  local ends, value = string.match(text or '', '^(%d+) (.+)$')
  local left = ends and #ends < 17 and math.ceil((tonumber(ends) - us) / 1000) or 0
  if left > 0 then return begin_anew(value, left) end
end
