-- (piece) draws the next fence or ticket: max(last, highest the caller knows, server time - 1) + 1. So both grow across
-- FLUSHALL, restarts, and a failover to a replica that lags or whose clock is behind. Returns it and the time, as text.
--#include holder
local function next_fence()
  local fence = math.max(tonumber(ARGV.known), --[[@fence-time]]--[[@fence-us]]us--[[@or]]math.floor(us / 1000000)--[[@]] - 1--[[@or]]0--[[@]]) + 1
  local drawn = string.format('%.0f', fence)
  local since = fence == us and drawn or string.format('%.0f', us)
  local before = redis.call('SET', KEYS.fence, drawn, 'GET')
  local last = tonumber(before or 0)
  if last --[[@fence-grows]]and last < fence --[[@]]then return drawn, since end -- nearly always: time has gone on
  if not last or last ~= last or last >= 9e15 then
    -- none of ours: put it back, and let Redis say what it is not. (Beyond 2^53 = 9.007e15 fences could not grow.)
    redis.call('SET', KEYS.fence, before)
    redis.call('INCRBY', KEYS.fence, '9223372036854775807')
  end
  drawn = string.format('%.0f', last + 1)
  redis.call('SET', KEYS.fence, drawn)
  return drawn, since
end
