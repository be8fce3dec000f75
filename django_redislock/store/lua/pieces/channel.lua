-- (piece) messages to the processes that hold or wait. An answer that is no number (no rights to ask, say) means
-- "cannot tell", never "nobody there".
local function tell(channel, message)
  if channel ~= '-' then redis.pcall('PUBLISH', channel, message) end
end

local function nobody_listens(channel) return redis.pcall('PUBSUB', 'NUMSUB', channel)[2] == 0 end
