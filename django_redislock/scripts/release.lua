-- release: give the lock back, or leave its queue (withdraw), and pass it on when it is free.
-- KEYS    lock, queue, waiters, index, fence, gone
-- ARGV    name, token, channel, highest fence known, 1 = an acquire of unknown outcome may still arrive
-- answer  {1 = it was held by this token, 1 = dead waiters remain: call again}
local held = redis.call('GET', KEYS[1])
local mine = ARGV[2] .. ' ' .. ARGV[3] .. ' c'
if held and string.sub(held, 1, #mine) == mine and ARGV[5] ~= '1' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[4], ARGV[1])
  if redis.call('EXISTS', KEYS[2]) == 0 then return {1, 0} end
  held = 'released'
end

if ARGV[5] == '1' then redis.call('SET', KEYS[6], '1', 'PX', 60000) end
local was_held = 0
if held == 'released' then
  was_held = 1
elseif held then
  local its, at = string.match(held, '^(%S+) (%S+) ')
  if its == ARGV[2] then
    was_held = 1
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[4], ARGV[1])
    redis.call('HDEL', KEYS[3], '!' .. at)
    -- the token was adopted: the process that renews it must hear that it has ended
    if at ~= ARGV[3] then redis.pcall('PUBLISH', at, 'x ' .. ARGV[2] .. ' ' .. ARGV[1]) end
  end
end
if was_held == 0 then
  redis.call('ZREM', KEYS[2], ARGV[2])
  redis.call('HDEL', KEYS[3], ARGV[2])
  if held then return {0, 0} end
end

local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
--#include grant
--#include pass_on
return {was_held, pass_on() == 'more' and 1 or 0}
