-- info: what Redis knows about one lock.
-- KEYS    lock, queue, waiters
-- ARGV    how many waiters to list
-- answer  {value of the lock or false, lease left ms, server us, number of waiters, {token, ticket, ...}, {entry, ...}}
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local limit = tonumber(ARGV[1])
local queue, entries = {}, {}
if limit > 0 then
  queue = redis.call('ZRANGE', KEYS[2], 0, limit - 1, 'WITHSCORES')
  local tokens = {}
  for i = 1, #queue, 2 do tokens[#tokens + 1] = queue[i] end
  if #tokens > 0 then entries = redis.call('HMGET', KEYS[3], unpack(tokens)) end
end
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), us, redis.call('ZCARD', KEYS[2]), queue, entries}
