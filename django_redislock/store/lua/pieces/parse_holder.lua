-- (piece) reads the value of a held lock; see holder.lua. nil for what somebody else has written: whoever that is holds
-- the lock.
local function parse_holder(value)
  local id, channel, flag, fence, since, token, owner =
    string.match(value, '^(%S+) (%S+) (%S) (%d+) (%d+) (%S+) (.*)$')
  if id and #fence < 17 then return id, channel, flag, fence, since, token, owner end
end
