-- (piece) the queues of those who wait for this member, and for any of its pool.
local queues = {{KEYS.queue, KEYS.waiters}, {KEYS.line, KEYS.line_waiters}}
