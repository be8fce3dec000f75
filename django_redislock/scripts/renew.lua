-- renew: move the end of a lease that this token holds; confirms a handoff.
-- KEYS    lock, queue, waiters, index, fence, pool (7 keys, for a pool's member only)
-- ARGV    name, token, channel, highest fence known, ttl ms, how, ms
--         how = keep: at least ms from now; confirm: at least ttl from the grant; add: ms more; set: ms from now
-- answer  {state, server us, lease left ms, of whoever holds the lock}; states: see scripts.py
local call = redis.call
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local lock, queue, waiters, name = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local held = call('GET', lock)

if not held then
  -- the lease is over; whoever waits should not have to find that out alone
  call('ZREM', KEYS[4], name)
  --#include grant
  --#include hand_on
  hand_on()
  return {0, us, 0}
end

local token, channel, flag, fence, since, owner = string.match(held, '^(%S+) (%S+) (%S) (%d+) (%d+) (.*)$')
if token ~= ARGV[2] then return {0, us, call('PTTL', lock)} end
if channel ~= ARGV[3] then return {2, us, 0} end

local how, ms = ARGV[6], tonumber(ARGV[7])
local left = call('PTTL', lock)
if flag == 'h' then left = math.max(left, math.ceil((since - us) / 1000) + tonumber(ARGV[5])) end
if how == 'add' then
  left = left + ms
elseif how == 'set' then
  left = ms
elseif how == 'keep' then
  left = math.max(left, ms)
end
if flag == 'h' then
  local marks = call('HGET', waiters, '!')
  if marks == channel then
    call('HDEL', waiters, '!')
  elseif marks then
    call('HSET', waiters, '!', (string.gsub(marks, '^%S+', '-')))
  end
  call('SET', lock, table.concat({token, channel, 'c', fence, since, owner}, ' '), 'PX', left)
else
  call('PEXPIRE', lock, left)
end
call('ZADD', KEYS[4], us + left * 1000, name)
if KEYS[7] then
  --#include member
  call('ZADD', KEYS[8], 'XX', us + left * 1000, member)
end
return {1, us, left}
