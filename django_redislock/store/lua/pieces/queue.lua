-- (piece) those who wait: how to tell them something, what is known of each, and which of them count as dead.
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

-- the entry of a waiter in the waiters hash: `channel ttl alive_until token owner`.
--   channel      of its process; '-': it polls, and nobody can tell it anything
--   alive_until  server time up to which one that polls counts as alive; 0 for all others
local function waiter_entry(channel, ttl, alive_until, token, owner)
  return channel .. ' ' .. ttl .. ' ' .. alive_until .. ' ' .. token .. ' ' .. owner
end

-- nil for what none of ours can have written: a lease that Redis refuses, or one who claims to live for longer than
-- anybody does unseen
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

-- R4: a process that is paused counts as there, and each handoff to it costs a lease. Field '!' of a waiters
-- hash names the channel that the last handoff went to, until that is confirmed or given back ('!' and the member in
-- that of a pool, where several may be under way). Found where the lock is free, it means that the lease ran out
-- without a sign of life. Its channel then joins the suspects, field '?', whose waiters are dropped when their turn
-- comes; the living come back with their tickets, and whoever asks from a channel clears it.
local MOST_SUSPECTS = 16
local unheard = 0 -- 1: a handoff to the process that asks ran out, though it lives

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

-- this process asks, so it is alive, whatever its handoffs say
local function clear_suspect(waiters)
  if ARGV.channel == '-' then return end
  local mark, suspects = unpack(redis.call('HMGET', waiters, '!', '?'))
  if mark == ARGV.channel then redis.call('HDEL', waiters, '!') end --@look-confirms
  if not suspects then return end
  local from, to = string.find(suspects, ARGV.channel, 1, true)
  if not from then return end
  unheard = 1
  local others = suspects
  others = string.sub(suspects, 1, from - 1) .. string.sub(suspects, to + 1) --@suspects-clear
  if string.find(others, '%S') then
    redis.call('HSET', waiters, '?', others)
  else
    redis.call('HDEL', waiters, '?')
  end
end
