-- renew: move the end of a lease that this token holds; confirms a handoff.
-- KEYS    lock, queue, waiters, index, fence
-- ARGV    name, token, channel, highest fence known, ttl ms, how, ms
--         how = keep: at least ms from now; confirm: at least ttl from the grant; add: ms more; set: ms from now
-- answer  {state, server us, lease left ms, of whoever holds the lock}; states: see scripts.py
local call = redis.call
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local held = call('GET', KEYS[1])

if not held then
  -- the lease is over; whoever waits should not have to find that out alone
  call('ZREM', KEYS[4], ARGV[1])
  --#include grant
  --#include pass_on
  pass_on()
  return {0, us, 0}
end

local token, channel, flag, fence, since, owner = string.match(held, '^(%S+) (%S+) (%S) (%d+) (%d+) (.*)$')
if token ~= ARGV[2] then return {0, us, call('PTTL', KEYS[1])} end
if channel ~= ARGV[3] then return {2, us, 0} end

local how, ms = ARGV[6], tonumber(ARGV[7])
local left = call('PTTL', KEYS[1])
if flag == 'h' then left = math.max(left, math.ceil((since - us) / 1000) + tonumber(ARGV[5])) end
if how == 'add' then
  left = left + ms
elseif how == 'set' then
  left = ms
elseif how == 'keep' then
  left = math.max(left, ms)
end
if flag == 'h' then
  local marks = call('HGET', KEYS[3], '!')
  if marks == channel then
    call('HDEL', KEYS[3], '!')
  elseif marks then
    call('HSET', KEYS[3], '!', (string.gsub(marks, '^%S+', '-')))
  end
  call('SET', KEYS[1], table.concat({token, channel, 'c', fence, since, owner}, ' '), 'PX', left)
else
  call('PEXPIRE', KEYS[1], left)
end
call('ZADD', KEYS[4], us + left * 1000, ARGV[1])
return {1, us, left}
