-- (piece) whether nobody has the lock or waits for it, and no handoff of it has run out.
local idle = redis.call('EXISTS', KEYS.lock, KEYS.queue, KEYS.waiters, KEYS.gone) == 0
