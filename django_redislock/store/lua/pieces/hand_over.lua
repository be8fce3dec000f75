-- (piece) hands the lock over to a waiter of its own queue.
--#include handoff
--#include grant
local function hand_over(id, channel, ttl, token, owner)
  local lease = handoff_lease(ttl)
  remember_handoff(KEYS.waiters, '!', channel, lease)
  local fence, since = --[[@grant-written]]grant(id, channel, 'h', lease, token, owner)--[[@or]]next_fence()--[[@]]
  tell_of_grant(channel, id, fence, since, lease, ARGV.name)
end
