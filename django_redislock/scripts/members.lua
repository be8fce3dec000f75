-- members: put members into a pool or take them out; one that is held leaves at its release.
-- KEYS    lock, queue, waiters (stems of the members'), index, fence, pool (7 keys), staged (a sorted set of the members
--         to work on, scores 0; as many as you like)
-- ARGV    name, how: extend, shrink, assign (those staged, and no others) or, when the first call has not served all
--         waiters, serve; channel, highest fence known, how many are staged
-- answer  {how many are new, or (shrink) leave; 1 = waiters may remain to be served: call again}
local call = redis.call
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local lock, queue, waiters, name, staged = KEYS[1], KEYS[2], KEYS[3], ARGV[1], KEYS[13]
local how = ARGV[2]
if call('ZCARD', staged) ~= tonumber(ARGV[5]) then return redis.error_reply('ERR not all members have arrived') end
--#include grant
--#include grant_member
--#include pass_on
--#include pool

local members, leaving = KEYS[6], KEYS[9]

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
sweep()
local changed = how == 'serve' and 0 or settle()
call('DEL', staged)
return {changed, serve() == 'more' and 1 or 0}
