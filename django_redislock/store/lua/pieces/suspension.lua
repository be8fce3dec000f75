-- (piece) a suspension. One that is planned, as somebody still holds the lock, is a text `end value`: the server's time,
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

local function planned_text(value, ms) return string.format('%.0f', us + ms * 1000) .. ' ' .. value end

-- the value, and the milliseconds that are left; nil when its time is over, or for what is none of ours
local function parse_planned(text)
  local ends, value = string.match(text or '', '^(%d+) (.+)$')
  local left = ends and #ends < 17 and math.ceil((tonumber(ends) - us) / 1000) or 0
  if left > 0 then return begin_anew(value, left) end
end
