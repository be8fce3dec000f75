-- (piece) R20: a suspension that is from before the clock jumped back begins anew, else it would last longer by the jump.
--   left     milliseconds that are left of it
-- returns  its value and the milliseconds, as they are now. Any other value of a lock is returned as it is
--#include time
--#include holder
--#include parse_holder
local function begin_anew(value, left)
  local id, channel, flag, fence, since, token, owner = parse_holder(value)
  if flag ~= 's' or tonumber(since) <= us then return value, left end
  local now = string.format('%.0f', us)
  return holder_value(id, channel, flag, fence, now, token, owner), math.max(1, left - math.floor((since - us) / 1000))
end
