-- (shared piece) makes a token the holder; needs `call` and `us`
local function next_fence(last)
  -- grows across FLUSHALL, restarts, and failover to a lagging replica: time, the last one, what the caller knows
  last = last or call('GET', KEYS[5]) or 0
  local fence = math.max(tonumber(last), tonumber(ARGV[4]), us - 1) + 1
  local text = string.format('%.0f', fence)
  call('SET', KEYS[5], text)
  return fence, text
end

-- flag: c(onfirmed), or h(anded over) until the new holder is seen to live
local function grant(token, channel, flag, lease, owner, last)
  local fence, text = next_fence(last)
  local since = fence == us and text or string.format('%.0f', us)
  call('SET', KEYS[1], table.concat({token, channel, flag, text, since, owner}, ' '), 'PX', lease)
  call('ZADD', KEYS[4], us + lease * 1000, ARGV[1])
  return text
end
