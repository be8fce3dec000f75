-- (piece) what becomes of a lock that is free: it is suspended, or handed over to a waiter of its own queue.
--#include grant
--#include grant_next
--#include @waiting
local function hand_over(id, channel, ttl, token, owner)
  local lease = handoff_lease(ttl)
  remember_handoff(KEYS.waiters, handoff_field(id), channel, lease)
  local fence, since = --[[@grant-written]]grant(id, channel, 'h', lease, token, owner)--[[@or]]next_fence()--[[@]]
  tell_of_grant(channel, id, fence, since, lease, ARGV.name)
end

local function tell_of_suspension()
  for _, keys in ipairs(queues) do
    tell_to_look(keys[1], keys[2], keys[3], 0)
  end
end

-- whether one has begun
local function suspends()
  if --[[@release-suspends]]not begin_suspension()--[[@or]]true--[[@]] then return false end
  if erased_flag then redis.call('HDEL', KEYS.waiters, '!') end -- a handoff that was given back
  tell_of_suspension() --@suspension-told
  return true
end
