-- (piece) whether nobody has the member or waits for this very one, and no handoff of it has run out.
--#include lock_member
local idle = redis.call('EXISTS', KEYS.queue, KEYS.waiters, KEYS.gone) == 0 and not read_lock()
