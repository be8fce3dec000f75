-- (shared piece) the members of a pool; needs `grant` for members, `pass_on` and what those need; sets `lock` and `name`.
-- Each is in `free`, by the time of its last use, or in `busy`, by the time at which its lease ends. Scripts that know
-- nothing of pools move leases as well, so a lock that is there is the truth, and `busy` says when to look for it.
local free, busy, line, line_waiters = KEYS[7], KEYS[8], KEYS[10], KEYS[11]
local lock_stem = string.match(KEYS[1], '^(.*:)')
--#include give_back

-- answers in how many ms to look for a member that is locked, -2 when it is not; what somebody else has written, without
-- an end, is listed
local function locked_for(member)
  local left = call('PTTL', lock_stem .. member)
  if left == -1 then
    call('ZADD', KEYS[4], us, stem .. member)
    return 5000
  end
  return left < 0 and left or left + 1 -- Redis ends leases by the millisecond, after the last one
end

-- gives back the members whose leases have ended; answers whether there may be more of them
local function sweep()
  local due = call('ZRANGEBYSCORE', busy, '-inf', us, 'LIMIT', 0, 100)
  for i = 1, #due do
    local member = due[i]
    local left = locked_for(member)
    if left == -2 then
      local suspect = call('HGET', line_waiters .. member, '!')
      if suspect and call('EXISTS', line .. member) == 0 then
        -- a handoff has ended without a sign of life: from now on its waiters are dropped
        call('DEL', line_waiters .. member)
        local known = call('HGET', line_waiters, '!') or '-'
        if call('EXISTS', line) == 1 and not string.find(known, suspect, 1, true) then
          call('HSET', line_waiters, '!', known .. ' ' .. suspect)
        end
      end
      call('ZREM', KEYS[4], stem .. member)
      give_back(member)
    else
      call('ZADD', busy, us + left * 1000, member)
    end
  end
  return #due == 100
end

-- sets `lock` and `name` to the free member that has not been used for longest; answers 'picked', 'none' when there is
-- none, or 'more' when it has come across many that were not free
local may_meet = 200 -- twice what a sweep gives back, so that calling again comes to an end
local function pick()
  while may_meet > 0 do
    may_meet = may_meet - 1
    local member = call('ZRANGE', free, 0, 0)[1]
    if not member then return 'none' end
    lock, name = lock_stem .. member, stem .. member
    if call('EXISTS', lock, line .. member) == 0 then return 'picked' end
    -- locked, or queued for, by its own name
    call('ZREM', free, member)
    call('ZADD', busy, us + math.max(locked_for(member), 100) * 1000, member)
  end
  return 'more'
end

-- hands free members to those who queue for any; answers 'take' when one is for whoever asks, 'more', or 'none'
local function serve(me, my_mode, alive)
  for _ = 1, 100 do
    local found = pick()
    if found ~= 'picked' then return found end
    local verdict = pass_on(line, line_waiters, stem, false, me, my_mode, alive)
    if verdict ~= 'passed' then return verdict end
    -- one was told to come for it; the next one is told when he has
    if call('EXISTS', lock) == 0 then return 'none' end
  end
  return 'more'
end
