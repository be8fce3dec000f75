-- (piece) release where this process holds the only permit and nobody waits, written out as acquire_fast is.
--#include clock
local ends = redis.call('ZRANGE', KEYS.ends, 0, 1, 'WITHSCORES')
if #ends == 2 and ends[1] == ARGV.id and tonumber(ends[2]) > us and not KEYS.gone and redis.call('EXISTS', KEYS.queue, KEYS.waiters) == 0 then
  local own, head = redis.call('HGET', KEYS.permits, ARGV.id), ARGV.id .. ' ' .. ARGV.channel .. ' c '
  if own and string.sub(own, 1, #head) == head then
    redis.call('DEL', KEYS.permits, KEYS.ends)
    redis.call('ZREM', KEYS.index, ARGV.name) --@release-index
    return {1, 0}
  end
end
