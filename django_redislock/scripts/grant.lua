-- (shared piece) makes a token the holder; needs `call` and `us`. Numbers are answered as text.
local function next_fence(last)
  -- grows across FLUSHALL, restarts, and failover to a lagging replica: time, the last one, what the caller knows
  local fence = math.max(tonumber(last or call('GET', KEYS[5]) or 0), tonumber(ARGV[4]), us - 1) + 1
  local text = string.format('%.0f', fence)
  call('SET', KEYS[5], text)
  return text, fence == us and text or string.format('%.0f', us)
end

-- flag: c(onfirmed), or h(anded over) until the new holder is seen to live
local function grant(token, channel, flag, lease, owner, last)
  local fence, since = next_fence(last)
  call('SET', KEYS[1], token .. ' ' .. channel .. ' ' .. flag .. ' ' .. fence .. ' ' .. since .. ' ' .. owner, 'PX', lease)
  call('ZADD', KEYS[4], us + lease * 1000, ARGV[1])
  return fence, since
end
