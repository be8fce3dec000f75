-- info: what Redis knows of one lock.
-- KEYS     @lock queue waiters index fence never
-- ARGV     name id channel most
--            most: how many waiters to list
-- returns  {value of the lock or false, lease left in ms, server us, value and ms left of a suspension that is planned
--            or false, the holders of a semaphore or false, number of waiters, {id, ticket, ...},
--            {entry, ...}, {1 for each that is gone, else 0, ...}}; of a pool's member the last four once more, for
--            those who want any. Holders: {the limit, how many they are, 1 if `id` is one of them, else 0}
--#include @waiting
--#include suspension
local value, holders
--#include @holders
if not holders then value = read_lock() or begin_suspension() end
local most = tonumber(ARGV.most)
local planned, planned_left = parse_planned(redis.call('HGET', plans, plan))
local answer = {value or false, lease_left(), us, planned or false, planned_left or false, holders or false}
local absent = {}
for _, keys in ipairs(queues) do
  local queue, entries, gone = {}, {}, {}
  if most > 0 then
    queue = redis.call('ZRANGE', keys[1], 0, most - 1, 'WITHSCORES')
    local ids = {}
    for i = 1, #queue, 2 do ids[#ids + 1] = queue[i] end
    if #ids > 0 then entries = redis.call('HMGET', keys[2], unpack(ids)) end
    for i, entry in ipairs(entries) do
      local channel, _, alive_until = parse_waiter(entry)
      gone[i] = is_dead(channel, alive_until, absent) and 1 or 0
    end
  end
  for _, part in ipairs({redis.call('ZCARD', keys[1]), queue, entries, gone}) do answer[#answer + 1] = part end
end
return answer
