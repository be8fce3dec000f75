-- (piece) release where this process holds the lock and nobody waits, written out as acquire_fast is.
value = redis.call('GET', KEYS.lock)
local head = ARGV.id .. ' ' .. ARGV.channel .. ' c '
if value and string.sub(value, 1, #head) == head and not KEYS.gone and redis.call('EXISTS', KEYS.queue, KEYS.waiters) == 0 then
  redis.call('DEL', KEYS.lock)
  redis.call('ZREM', KEYS.index, ARGV.name) --@release-index
  return {1, 0}
end
