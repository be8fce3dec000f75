-- info: what Redis knows about one lock.
-- KEYS    lock, queue, waiters, queue of the pool, its waiters (the last two for a pool's member only)
-- ARGV    how many waiters to list
-- answer  {value of the lock or false, lease left ms, server us, number of waiters, {token, ticket, ...}, {entry, ...}};
--         of a pool's member the last three once more, for those who wait for any
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local limit = tonumber(ARGV[1])
local answer = {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), us}
for key = 2, KEYS[5] and 4 or 2, 2 do
  local queue, entries = {}, {}
  if limit > 0 then
    queue = redis.call('ZRANGE', KEYS[key], 0, limit - 1, 'WITHSCORES')
    local tokens = {}
    for i = 1, #queue, 2 do tokens[#tokens + 1] = queue[i] end
    if #tokens > 0 then entries = redis.call('HMGET', KEYS[key + 1], unpack(tokens)) end
  end
  answer[#answer + 1] = redis.call('ZCARD', KEYS[key])
  answer[#answer + 1] = queue
  answer[#answer + 1] = entries
end
return answer
