-- (piece) the caller has left the queue of this very member.
--#include lock_member
local function note_leave()
  if redis.call('EXISTS', KEYS.queue) == 0 then redis.call('ZREM', KEYS.wanted, member) end
end
