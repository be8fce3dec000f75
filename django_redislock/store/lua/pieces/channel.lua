-- (piece) messages to the processes that hold or wait. An answer that is no number (no rights to ask, say) means
-- "cannot tell", never "nobody there". On a cluster, where 17 bytes before its end a channel has a "!"
-- (lock_store.py), they go by sharded pub/sub: only the node that runs the script knows who listens (R3, C1).
local function sharded(channel) return string.byte(channel, -17) == 33 end

local function tell(channel, message)
  if channel == '-' then return end
  return redis.pcall(sharded(channel) and 'SPUBLISH' or 'PUBLISH', channel, message)
end

local function listeners(channel)
  local answer = redis.pcall('PUBSUB', sharded(channel) and 'SHARDNUMSUB' or 'NUMSUB', channel)
  return answer[2] or answer
end

local function nobody_listens(channel) return --[[@the-dead]]listeners(channel) == 0--[[@or]]false--[[@]] end
