-- (shared piece) makes a token the holder; needs `us`
local function next_fence()
  -- grows across FLUSHALL, restarts, and failover to a lagging replica: time, the last one, what the caller knows
  local fence = math.max(tonumber(redis.call('GET', KEYS[5]) or 0), tonumber(ARGV[4]), us - 1) + 1
  redis.call('SET', KEYS[5], string.format('%.0f', fence))
  return fence
end

-- flag: c(onfirmed), or h(anded over) until the new holder is seen to live
local function grant(token, channel, flag, lease, owner)
  local fence = next_fence()
  local value = string.format('%s %s %s %.0f %.0f %s', token, channel, flag, fence, us, owner)
  redis.call('SET', KEYS[1], value, 'PX', lease)
  redis.call('ZADD', KEYS[4], string.format('%.0f', us + lease * 1000), ARGV[1])
  return fence
end
