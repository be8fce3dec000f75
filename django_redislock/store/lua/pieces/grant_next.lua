-- (piece) serves the waiters of a queue in order. All are handed their share, but one that polls: it cannot be told, so
-- its share is left free until it asks.
--   queue, waiters, called   keys of the queue, and the name by which it was asked for
--   free                     how many there are to be had: 1 for a lock, or so many members of a pool
--   me                       id of the waiter or newcomer that asks for itself; nil: nobody does
--   hand_over                function (id, channel, ttl, token, owner): grants one of them, and tells
-- returns
--   'take'                   one is for whoever asks: for me, or for a newcomer, as nobody waits for it
--   'passed'                 none is left
--   'more'                   so many dead waiters were dropped that this must go on in another call
-- and how many it has handed over.
--#include queue
local MOST_DROPPED = 500 -- in one call: a script keeps all others waiting
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

local function grant_next(queue, waiters, called, free, me, hand_over)
  local handed, reserved, batch = 0, 0, math.min(free, 100)
  local mark, suspects, absent = nil, nil, {}

  local function done(verdict)
    if mark and handed == 0 then redis.call('HDEL', waiters, '!') end
    -- nobody else would notice that one who polls has died: the first behind it looks until it has gone
    if reserved > 0 and not me then tell_to_look(queue, waiters, called, reserved) end --@polling-watched
    return verdict, handed
  end

  while dropped < MOST_DROPPED do
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
        hand_over(id, channel, tonumber(ttl), token, owner)
        redis.call('HDEL', waiters, id) -- not before it: an empty hash would lose its expiry
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

-- a handoff: a grant to somebody who waits, with a lease until the new holder is seen to live
local function handoff_lease(ttl) return math.min(ttl--[[@grant-short]], math.max(3000, math.floor(ttl / 3))--[[@]]) end

local function remember_handoff(waiters, field, channel, lease)
  redis.call('HSET', waiters, field, channel) --@grant-marked
  if lease > 50000 then keep(waiters, lease + 60000) end -- else those who wait keep it for 60 s
end

local function tell_of_grant(channel, id, fence, since, lease, name)
  local ms = string.format('%.0f', lease) .. sender(channel)
  tell(channel, 'g ' .. id .. ' ' .. fence .. ' ' .. since .. ' ' .. ms .. ' ' .. name) --@grant-told
end
