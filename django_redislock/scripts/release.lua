-- release: give the lock back, or leave its queue (withdraw), and pass it on when it is free.
-- KEYS    lock, queue, waiters, index, fence, gone
-- ARGV    name, token, channel, highest fence known, 1 = an acquire of unknown outcome may still arrive
-- answer  {1 = it was held by this token, 1 = dead waiters remain: call again}
local call = redis.call
local have = call('MGET', KEYS[1], KEYS[5])
local held, last = have[1], have[2]
local mine = ARGV[2] .. ' ' .. ARGV[3] .. ' '
local flag = held and string.sub(held, 1, #mine) == mine and string.sub(held, #mine + 1, #mine + 1)
if flag then call('DEL', KEYS[1]) end

if ARGV[5] == '1' then call('SET', KEYS[6], '1', 'PX', 60000) end

local was_held, alive = flag and 1 or 0, nil
if held and not flag then
  local its, at = string.match(held, '^(%S+) (%S+) ')
  if its == ARGV[2] then
    -- the token was adopted: the process that renews it must hear that it has ended
    was_held, alive = 1, at
    call('DEL', KEYS[1])
    redis.pcall('PUBLISH', at, 'x ' .. ARGV[2] .. ' ' .. ARGV[1])
  end
end
if was_held == 0 then
  call('ZREM', KEYS[2], ARGV[2])
  call('HDEL', KEYS[3], ARGV[2])
  if held then return {0, 0} end
end

local heads = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if #heads == 0 then
  call('ZREM', KEYS[4], ARGV[1])
  if alive or flag == 'h' then call('DEL', KEYS[3]) end
  return {was_held, 0}
end

local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
--#include grant
--#include pass_on
return {was_held, pass_on(nil, nil, last, heads, alive) == 'more' and 1 or 0}
