-- (shared piece) the members of a pool; needs `grant`, `pass_on` and what those need, and sets `lock` and `name`.
-- Each is in `free`, by the time of its last use, or in `busy`, by the time at which its lease may have ended. Leases are
-- moved by scripts that know nothing of pools, so a lock that is there is the truth, and `busy` says when to look for it.
local members, free, busy, leaving, line, line_waiters = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local lock_stem, stem = string.match(KEYS[1], '^(.*:)'), string.match(ARGV[1], '^(.*:)')

-- whoever gets a member finds it again by its token, when the answer or the wake was lost
local grant_lock = grant
grant = function(token, channel, flag, lease, owner)
  local member = string.sub(name, #stem + 1)
  call('ZREM', free, member)
  call('ZADD', busy, us + lease * 1000, member)
  call('SET', KEYS[12] .. token, member, 'PX', 60000)
  return grant_lock(token, channel, flag, lease, owner)
end

-- a member that nobody holds any more: free for all, or gone when it was taken out of the pool meanwhile
local function give_back(member)
  if call('ZREM', busy, member) == 0 then
    call('ZADD', free, 'XX', us, member)
  elseif call('ZREM', leaving, member) == 1 then
    call('ZREM', members, member)
  else
    call('ZADD', free, us, member)
  end
end

-- sets `lock` and `name` to the free member that has not been used for longest; answers whether there is one
local function pick()
  local due = call('ZRANGEBYSCORE', busy, '-inf', us, 'LIMIT', 0, 100)
  for i = 1, #due do
    local left = call('PTTL', lock_stem .. due[i])
    if left == -2 then give_back(due[i]) else call('ZADD', busy, us + math.max(left, 1000) * 1000, due[i]) end
  end
  while true do
    local member = call('ZRANGE', free, 0, 0)[1]
    if not member then return false end
    lock, name = lock_stem .. member, stem .. member
    if call('EXISTS', lock, line .. member) == 0 then return true end
    -- locked, or queued for, by its own name
    call('ZREM', free, member)
    call('ZADD', busy, us + math.max(call('PTTL', lock), 100) * 1000, member)
  end
end

-- hands free members to those who queue for any; answers 'take' when one is for whoever asks, 'more', or 'none'
local function serve(me, my_mode, alive)
  for _ = 1, 100 do
    if not pick() then return 'none' end
    local verdict = pass_on(line, line_waiters, stem, KEYS[11] .. string.sub(name, #stem + 1), me, my_mode, alive)
    if verdict ~= 'passed' then return verdict end
    -- one was told to come for it; the next one is told when he has
    if call('EXISTS', lock) == 0 then return 'none' end
  end
  return 'more'
end
