-- (shared piece) decides who may have a free lock, and tells them; needs `call`, `us` and `grant`
-- me, my_mode: the token that asks for itself, or nil.
-- alive: the channel of a former holder that is not to be suspected; who calls lives anyway. Answers
--   'take'    the lock is for whoever asks: the queue is empty, or the head is me, or I may overtake it
--   'passed'  handed over, or somebody who is alive was told to come
--   'more'    the limit of one call was reached: call again
--
-- Field '!' of the waiters hash: the channel to which the last handoff was made ('-': it is confirmed), then those whose
-- handoffs ended without a sign of life. Where the lock is free, all of them are suspect, and their waiters are dropped;
-- the living come back with their tickets, which clears them.
local function pass_on(me, my_mode, alive)
  local dead, reaped, batch, marks = {}, 0, 1, nil

  local function mark(current)
    local words, new = 0, current
    for channel in string.gmatch(marks, '%S+') do
      words = words + 1
      if dead[channel] == 'suspect' and words <= 16 then new = new .. ' ' .. channel end
    end
    if new ~= marks then call('HSET', KEYS[3], '!', new) end
    marks = new
  end

  while reaped < 5000 do
    local heads = call('ZRANGE', KEYS[2], 0, batch - 1, 'WITHSCORES')
    if #heads == 0 then
      call('DEL', KEYS[3])
      call('ZREM', KEYS[4], ARGV[1])
      return 'take'
    end
    local drop, verdict = {}, nil
    for i = 1, #heads, 2 do
      local token, ticket = heads[i], tonumber(heads[i + 1])
      if token == me then verdict = 'take' break end
      local entry
      if marks then
        entry = call('HGET', KEYS[3], token)
      else
        local found = call('HMGET', KEYS[3], token, '!')
        entry, marks = found[1], found[2] or '-'
        for channel in string.gmatch(marks, '%S+') do
          if channel ~= alive and channel ~= ARGV[3] and channel ~= '-' then dead[channel] = 'suspect' end
        end
      end
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
        if us - tonumber(seen) < 1000000 then
          call('ZREM', KEYS[4], ARGV[1])
          mark('-')
          verdict = 'passed' break
        end
        drop[#drop + 1] = token
      elseif dead[channel] then
        drop[#drop + 1] = token
      elseif patient then
        -- asked before the grant: a message that counts 0 may still be heard, at a replica. No number (no rights to ask)
        -- means "cannot tell", never "nobody there"
        if redis.pcall('PUBSUB', 'NUMSUB', channel)[2] == 0 then
          dead[channel] = 'gone'
          drop[#drop + 1] = token
        else
          ttl = tonumber(ttl)
          local lease = math.min(ttl, math.max(3000, math.floor(ttl / 3)))
          call('ZREM', KEYS[2], token)
          mark(channel)
          call('HDEL', KEYS[3], token)
          local fence, since = grant(token, channel, 'h', lease, owner)
          local message = 'g ' .. token .. ' ' .. fence .. ' ' .. since .. ' ' .. lease .. ' ' .. ARGV[1]
          redis.pcall('PUBLISH', channel, message)
          verdict = 'passed' break
        end
      else
        call('ZREM', KEYS[4], ARGV[1])
        mark('-')
        if redis.pcall('PUBLISH', channel, 'w ' .. token .. ' ' .. ARGV[1]) ~= 0 then verdict = 'passed' break end
        dead[channel] = 'gone'
        drop[#drop + 1] = token
      end
    end
    if #drop > 0 then
      call('ZREM', KEYS[2], unpack(drop))
      call('HDEL', KEYS[3], unpack(drop))
      reaped = reaped + #drop
    end
    if verdict then return verdict end
    batch = 100
  end
  return 'more'
end
