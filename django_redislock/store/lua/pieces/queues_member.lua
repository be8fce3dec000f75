-- (piece) the queues of those who wait for this member, and for any of its pool, and the names that they ask for.
local queues = {{KEYS.queue, KEYS.waiters, ARGV.name}, {KEYS.line, KEYS.line_waiters, stem}}
