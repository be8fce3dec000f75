-- (piece) a suspension that is planned: somebody still holds the lock. Its text is `end value`: the server's time, and
-- the value that the lock has from the end of its holder on (see suspend).
--#include time
--#include begin_anew
local function planned_text(value, ms) return string.format('%.0f', us + ms * 1000) .. ' ' .. value end

-- the value, and the milliseconds that are left; nil when its time is over, or for what is none of ours
local function parse_planned(text)
  local ends, value = string.match(text or '', '^(%d+) (.+)$')
  local left = ends and #ends < 17 and math.ceil((tonumber(ends) - us) / 1000) or 0
  if left > 0 then return begin_anew(value, left) end
end
