-- (piece) the lock is free: passes it on, unless it is suspended. Returns 1 when this must be called again.
--#include hand_over
local function hand_on()
  if suspends() then return 0 end
  local verdict, handed = grant_next(KEYS.queue, KEYS.waiters, ARGV.name, 1, nil, hand_over)
  if handed == 0 then unlist() end --@unwanted-unlisted
  return verdict == 'more' and 1 or 0
end
