-- members: put members into a pool or take them out; one that is held leaves at its release.
-- KEYS    lock, queue, waiters (stems of the members'), index, fence, pool (7 keys), staged (a sorted set of the members
--         to work on, scores 0; as many as you like)
-- ARGV    name, how: extend, shrink or assign (those staged, and no others), channel, highest fence known
-- answer  how many are new, or (shrink) leave
local call = redis.call
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local lock, queue, waiters, name, staged = KEYS[1], KEYS[2], KEYS[3], ARGV[1], KEYS[13]
local how = ARGV[2]
--#include grant
--#include pass_on
--#include pool

local function settle()
  if how == 'shrink' then
    local among = call('ZINTERSTORE', staged, 2, members, staged)
    call('ZDIFFSTORE', free, 2, free, staged)
    call('ZINTERSTORE', staged, 2, busy, staged, 'WEIGHTS', 0, 0)
    call('ZUNIONSTORE', leaving, 2, leaving, staged)
    call('ZUNIONSTORE', members, 2, free, busy, 'WEIGHTS', 0, 0)
    return among
  end
  if how == 'assign' then
    call('ZINTERSTORE', free, 2, free, staged, 'WEIGHTS', 1, 0)
    call('ZDIFFSTORE', leaving, 2, busy, staged)
  else
    call('ZDIFFSTORE', leaving, 2, leaving, staged)
  end
  call('ZUNIONSTORE', members, 3, free, busy, staged, 'WEIGHTS', 0, 0, 0)
  local new = call('ZDIFFSTORE', staged, 3, staged, free, busy)
  call('ZUNIONSTORE', free, 2, free, staged)
  return new
end
local changed = settle()
call('DEL', staged)
if call('EXISTS', line) == 1 then serve() end
return changed
