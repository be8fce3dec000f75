-- (shared piece) decides who may have a free lock, and tells them; needs `us` and `grant`
-- me, my_mode: the token that asks for itself, or nil. Answers 'take': the queue is empty, or it is me; 'more': the
-- limit of one call was reached, call again; 'passed': handed over, or somebody who is alive was told to come.
local function pass_on(me, my_mode)
  local dead, reaped, batch = {}, 0, 1
  while reaped < 5000 do
    local heads = redis.call('ZRANGE', KEYS[2], 0, batch - 1, 'WITHSCORES')
    if #heads == 0 then return 'take' end
    local drop = {}
    local verdict
    for i = 1, #heads, 2 do
      local token, ticket = heads[i], tonumber(heads[i + 1])
      if token == me then verdict = 'take' break end
      local entry = redis.call('HGET', KEYS[3], token)
      local mode, channel, ttl, seen, owner
      if entry then mode, channel, ttl, seen, owner = string.match(entry, '^(%S) (%S+) (%d+) (%d+) (.*)$') end
      local age = us - ticket
      local patient = mode == 'F' or age < 0 or age >= 100000
      if not mode then
        drop[#drop + 1] = token
      elseif my_mode == 'L' and not patient then
        verdict = 'take' break
      elseif channel == '-' then
        -- a polled waiter comes by itself; four missed looks and it is gone
        if us - tonumber(seen) < 1000000 then verdict = 'passed' break end
        drop[#drop + 1] = token
      else
        -- '!channel': a handoff to that process that nobody confirmed before its lease ended
        if dead[channel] == nil then dead[channel] = redis.call('HEXISTS', KEYS[3], '!' .. channel) == 1 end
        if not dead[channel] then
          local message
          if patient then
            ttl = tonumber(ttl)
            local lease = math.min(ttl, math.max(3000, math.floor(ttl / 3)))
            redis.call('ZREM', KEYS[2], token)
            redis.call('HDEL', KEYS[3], token)
            redis.call('HSET', KEYS[3], '!' .. channel, token)
            redis.call('PEXPIRE', KEYS[3], 60000)
            local fence = grant(token, channel, 'h', lease, owner)
            message = string.format('g %s %.0f %.0f %d %s', token, fence, us, lease, ARGV[1])
          else
            redis.call('DEL', KEYS[1])
            message = string.format('w %s %s', token, ARGV[1])
          end
          -- an error here (no channel rights) means "cannot tell", never "nobody there"
          if redis.pcall('PUBLISH', channel, message) ~= 0 then verdict = 'passed' break end
          dead[channel] = true
          if patient then
            redis.call('DEL', KEYS[1])
            redis.call('ZREM', KEYS[4], ARGV[1])
            redis.call('HDEL', KEYS[3], '!' .. channel)
          end
        end
        if dead[channel] then drop[#drop + 1] = token end
      end
    end
    if #drop > 0 then
      redis.call('ZREM', KEYS[2], unpack(drop))
      redis.call('HDEL', KEYS[3], unpack(drop))
      reaped = reaped + #drop
    end
    if verdict then return verdict end
    batch = 100
  end
  return 'more'
end
