-- (piece) the queues of those who wait for this lock, and the names that they ask for.
local queues = {{KEYS.queue, KEYS.waiters, ARGV.name}}
