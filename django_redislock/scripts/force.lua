-- force: set a lock free whoever holds it, tell the holder, pass it on.
-- KEYS    lock, queue, waiters, index, fence, pool (7 keys, for a pool's member only)
-- ARGV    name, highest fence to set free or '' for any, channel, highest fence known
-- answer  {value of the lock or false, 1 = dead waiters remain: call again}
local call = redis.call
local lock, queue, waiters, name = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local held = call('GET', lock)
if held and ARGV[2] ~= '' then
  local fence = string.match(held, '^%S+ %S+ %S (%d+)')
  if fence and tonumber(fence) > tonumber(ARGV[2]) then return {false, 0} end
end
call('DEL', lock)
call('ZREM', KEYS[4], name)
local alive
if held then
  local token, channel = string.match(held, '^(%S+) (%S+) ')
  if token then
    alive = channel
    redis.pcall('PUBLISH', channel, 'f ' .. token .. ' ' .. name)
  end
end

local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
--#include grant
--#include hand_on
return {held, hand_on(alive)}
