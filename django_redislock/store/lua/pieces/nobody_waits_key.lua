-- (piece) whether nobody waits for what is given back.
local nobody_waits = redis.call('EXISTS', KEYS.queue) == 0
