-- (shared piece) decides who of a queue, which is called `called`, may have the free lock, and tells them; needs `grant`
-- and what that needs
-- own: whether the queue is the lock's own (not that of its pool). me, my_mode: the token that asks for itself, or nil.
-- alive: the channel of a former holder that is not to be suspected; who calls lives anyway. Answers
--   'take'    the lock is for whoever asks: the queue is empty, or the head is me, or I may overtake it
--   'passed'  handed over, or somebody who is alive was told to come
--   'more'    the limit of one call was reached: call again
--
-- Field '!': the channel to which the last handoff was made ('-': it is confirmed, or to be found with the lock, not here
-- with its pool), then those whose handoffs ended without a sign of life. Where the lock is free, all of them are suspect,
-- and their waiters are dropped; the living come back with their tickets, which clears them.
local reaped = 0
local function pass_on(queue, waiters, called, own, me, my_mode, alive)
  local dead, batch, marks = {}, 1, nil

  local function mark(current)
    local words, new = 0, own and current or '-'
    for channel in string.gmatch(marks, '%S+') do
      words = words + 1
      if dead[channel] == 'suspect' and words <= 16 then new = new .. ' ' .. channel end
    end
    if new ~= marks then
      if new == '-' then call('HDEL', waiters, '!') else call('HSET', waiters, '!', new) end
    end
    marks = new
  end

  -- nobody tells those behind a polled head when it has died: the first of them that can be told looks until it takes
  local function set_watch()
    local behind = call('ZRANGE', queue, 1, 100)
    if #behind == 0 then return end
    for i, entry in ipairs(call('HMGET', waiters, unpack(behind))) do
      local channel = entry and string.match(entry, '^%S (%S+) ')
      if channel and channel ~= '-' and redis.pcall('PUBLISH', channel, 'w ' .. behind[i] .. ' ' .. called) ~= 0 then
        return
      end
    end
  end

  while reaped < 500 do
    local heads = call('ZRANGE', queue, 0, batch - 1, 'WITHSCORES')
    if #heads == 0 then
      call('UNLINK', waiters)
      call('ZREM', KEYS[4], name)
      return 'take'
    end
    local drop, verdict = {}, nil
    for i = 1, #heads, 2 do
      local token, ticket = heads[i], tonumber(heads[i + 1])
      if token == me then verdict = 'take' break end
      local entry
      if marks then
        entry = call('HGET', waiters, token)
      else
        local found = call('HMGET', waiters, token, '!')
        entry, marks = found[1], found[2] or '-'
        for channel in string.gmatch(marks, '%S+') do
          if channel ~= alive and channel ~= ARGV[3] and channel ~= '-' then dead[channel] = 'suspect' end
        end
      end
      local mode, channel, ttl, till, owner
      if entry then mode, channel, ttl, till, owner = string.match(entry, '^([FL]) (%S+) (%d+) (%d+) (.*)$') end
      -- none of ours: a lease that Redis refuses, or one that claims to live for longer than anybody does unseen
      if mode and (#ttl > 12 or tonumber(ttl) < 1 or tonumber(till) > us + 61000000) then mode = nil end
      local age = us - ticket
      local patient = mode == 'F' or age < 0 or age >= 100000
      if not mode then
        drop[#drop + 1] = token
      elseif my_mode == 'L' and not patient then
        verdict = 'take' break
      elseif channel == '-' then
        -- a polled waiter comes by itself; it has said how long it counts as alive without a look
        if us < tonumber(till) then
          call('ZREM', KEYS[4], name)
          mark('-')
          if not me then set_watch() end
          verdict = 'passed' break
        end
        drop[#drop + 1] = token
      elseif dead[channel] then
        drop[#drop + 1] = token
      elseif till ~= '0' and us >= tonumber(till) and channel ~= alive and channel ~= ARGV[3] then
        -- told to come, and has not come: its process stands still, and will hear of this when it goes on
        dead[channel] = 'suspect'
        marks = marks .. ' ' .. channel
        call('ZREM', queue, token) -- R2: what needs memory comes after what needs none
        call('HSET', waiters, '!', marks)
        redis.pcall('PUBLISH', channel, 'd ' .. token .. ' ' .. called)
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
          call('ZREM', queue, token)
          mark(channel)
          call('HDEL', waiters, token)
          local fence, since = grant(token, channel, 'h', lease, owner)
          local message = 'g ' .. token .. ' ' .. fence .. ' ' .. since .. ' ' .. lease .. ' ' .. name
          redis.pcall('PUBLISH', channel, message)
          verdict = 'passed' break
        end
      else
        call('ZREM', KEYS[4], name)
        mark('-')
        if not own and till == '0' then
          -- several members of a pool may lie free behind it, so it has a second to come
          till = string.format('%.0f', us + 1000000)
          call('HSET', waiters, token, table.concat({mode, channel, ttl, till, owner}, ' '))
        end
        if redis.pcall('PUBLISH', channel, 'w ' .. token .. ' ' .. called) ~= 0 then verdict = 'passed' break end
        dead[channel] = 'gone'
        drop[#drop + 1] = token
      end
    end
    if #drop > 0 then
      call('ZREM', queue, unpack(drop))
      call('HDEL', waiters, unpack(drop))
      reaped = reaped + #drop
    end
    if verdict then return verdict end
    batch = 100
  end
  return 'more'
end
