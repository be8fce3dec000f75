-- (piece) grants the lock to `id` for `ms`; returns its fence and the time of the grant, as text.
--#include holder
--#include fence
--#include @lock
local function grant(id, channel, flag, ms, token, owner)
  local fence, since = next_fence()
  write_lock(holder_value(id, channel, flag, fence, since, token, owner), ms)
  list_until(ms)
  return fence, since
end
