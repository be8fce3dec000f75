-- (piece) a suspension that begins where the lock has just become free.
--#include pass_on
--#include @queues
--#include @suspension
-- those who wait know the end of another lease
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
