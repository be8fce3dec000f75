-- (piece) whether nobody waits for what is given back, and no suspension of it is planned.
local nobody_waits = redis.call('EXISTS', KEYS.queue, KEYS.waiters) == 0
