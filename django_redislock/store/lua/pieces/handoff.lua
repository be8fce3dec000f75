-- (piece) a handoff: a grant to somebody who waits, with a lease until the new holder is seen to live.
--#include time
--#include channel
--#include sender
--#include keep
local function handoff_lease(ttl) return math.min(ttl--[[@grant-short]], math.max(3000, math.floor(ttl / 3))--[[@]]) end

local function remember_handoff(waiters, field, channel, lease)
  redis.call('HSET', waiters, field, channel) --@grant-marked
  if lease > 50000 then keep(waiters, lease + 60000) end -- else those who wait keep it for 60 s
end

local function tell_of_grant(channel, id, fence, since, lease, name)
  local ms = string.format('%.0f', lease) .. sender(channel)
  tell(channel, 'g ' .. id .. ' ' .. fence .. ' ' .. since .. ' ' .. ms .. ' ' .. name) --@grant-told
end
