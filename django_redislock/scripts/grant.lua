-- (shared piece) makes a token the holder of `lock`, which is called `name`; needs `call` and `us` besides.
-- Numbers are answered as text.
local function next_fence()
  -- grows across FLUSHALL, restarts, and failover to a lagging replica: time, what the caller knows, and the last one,
  -- which is hardly ever ahead of them
  local fence = math.max(tonumber(ARGV[4]), us - 1) + 1
  local text = string.format('%.0f', fence)
  local before = call('SET', KEYS[5], text, 'GET')
  local last = tonumber(before or 0)
  if not last or last ~= last or last >= 9007199254740991 then
    -- none of ours: put it back, and let Redis say what it is not. Beyond 2^53, fences could not grow
    call('SET', KEYS[5], before)
    call('INCRBY', KEYS[5], '9223372036854775807')
  end
  if last >= fence then
    fence = last + 1
    text = string.format('%.0f', fence)
    call('SET', KEYS[5], text)
  end
  return text, fence == us and text or string.format('%.0f', us)
end

-- flag: c(onfirmed), or h(anded over) until the new holder is seen to live
local function grant(token, channel, flag, lease, owner)
  local fence, since = next_fence()
  call('SET', lock, token .. ' ' .. channel .. ' ' .. flag .. ' ' .. fence .. ' ' .. since .. ' ' .. owner, 'PX', lease)
  call('ZADD', KEYS[4], us + lease * 1000, name)
  return fence, since
end
