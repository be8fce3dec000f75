-- release: give the lock back, or leave its queue (withdraw), and pass it on when it is free.
-- KEYS    lock, queue, waiters, index, fence, pool (7 keys, for a pool and its members only), gone (only when an acquire
--         of unknown outcome may still arrive)
-- ARGV    name (that of a pool: leave its queue, with whatever member may have been granted), token, channel, highest
--         fence known, 1 = only what this process holds (whoever has adopted the token keeps it)
-- answer  {1 = it was held by this token, 2 = it is, but was adopted elsewhere; 1 = dead waiters remain: call again}
local call = redis.call
local lock, queue, waiters, name = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
if KEYS[7] and string.sub(name, -1) == ':' then
  call('ZREM', queue, ARGV[2])
  call('HDEL', waiters, ARGV[2])
  local member = call('GET', KEYS[12] .. ARGV[2]) or '%' -- no member is called so
  lock, queue, waiters, name = lock .. member, queue .. member, waiters .. member, name .. member
end
local held = call('GET', lock)
local mine = ARGV[2] .. ' ' .. ARGV[3] .. ' '
local was_held, trace, alive = 0, false, nil
if held then
  if string.sub(held, 1, #mine) == mine then
    was_held, trace = 1, string.sub(held, #mine + 1, #mine + 1) == 'h'
    call('DEL', lock)
  else
    local its, at = string.match(held, '^(%S+) (%S+) ')
    if its == ARGV[2] then
      if ARGV[5] == '1' then return {2, 0} end
      -- the token was adopted: the process that renews it must hear that it has ended
      was_held, trace, alive = 1, true, at
      call('DEL', lock)
      redis.pcall('PUBLISH', at, 'x ' .. ARGV[2] .. ' ' .. name)
    end
  end
end
local gone = KEYS[13] or not KEYS[7] and KEYS[6]
if gone then call('SET', gone, '1', 'PX', 60000) end
if KEYS[7] then call('DEL', KEYS[12] .. ARGV[2]) end

if was_held == 0 then
  call('ZREM', queue, ARGV[2])
  call('HDEL', waiters, ARGV[2])
  if held then return {0, 0} end
end
local queued = call('EXISTS', queue) == 1
if not queued then
  call('ZREM', KEYS[4], name)
  if trace then call('UNLINK', waiters) end
  if not KEYS[7] then return {was_held, 0} end
end

local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
if not queued and call('EXISTS', KEYS[10]) == 0 then
  --#include member
  --#include give_back
  give_back(member)
  return {was_held, 0}
end
--#include grant
--#include hand_on
return {was_held, hand_on(alive)}
