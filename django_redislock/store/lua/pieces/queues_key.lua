-- (piece) the queues of those who wait for this lock.
local queues = {{KEYS.queue, KEYS.waiters}}
