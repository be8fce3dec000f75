-- acquire: take the lock, or queue for it; also every later look of a waiter. Idempotent per token.
-- KEYS    lock, queue, waiters, index, fence, gone
-- ARGV    name, token, channel, highest fence known, ttl ms, mode F(air) or L(ock), wait: 0 no, 1 yes, p = polling,
--         ticket or '' when none was drawn yet, owner
-- answer  {state, server us, fence or ticket, lease left ms}; states: see scripts.py
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
local have = redis.call('MGET', KEYS[1], KEYS[6], KEYS[5])
local held, gone, last = have[1], have[2], have[3]

--#include grant

if not held and not gone and redis.call('EXISTS', KEYS[2]) == 0 then
  local fence = grant(ARGV[2], ARGV[3], 'c', ARGV[5], ARGV[9], last)
  -- every lease change moves its index entry, so what is a second past due has expired
  if fence % 8 == 0 then
    local past = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', us - 1000000, 'LIMIT', 0, 16)
    if #past > 0 then redis.call('ZREM', KEYS[4], unpack(past)) end
  end
  return {1, us, fence, tonumber(ARGV[5])}
end

local token, channel, ttl, mode, owner = ARGV[2], ARGV[3], tonumber(ARGV[5]), ARGV[6], ARGV[9]
local ticket = tonumber(ARGV[8])

if held then
  local its, at, flag, fence, since, who = string.match(held, '^(%S+) (%S+) (%S) (%d+) (%d+) (.*)$')
  if its == token then
    local left = redis.call('PTTL', KEYS[1])
    if at ~= channel then
      -- adopted by another process: renewals follow the channel
      left = math.max(left, ttl)
      redis.call('HDEL', KEYS[3], '!' .. at)
      redis.call('SET', KEYS[1], table.concat({token, channel, 'c', fence, since, owner}, ' '), 'PX', left)
      redis.call('ZADD', KEYS[4], us + left * 1000, ARGV[1])
    end
    return {4, us, tonumber(fence), left}
  end
else
  if gone then return {3, us, 0, 0} end
  --#include pass_on
  local verdict = pass_on(token, mode)
  if verdict == 'take' then
    redis.call('ZREM', KEYS[2], token)
    redis.call('HDEL', KEYS[3], token)
    return {1, us, grant(token, channel, 'c', ARGV[5], owner), ttl}
  elseif verdict == 'more' then
    return {2, us, ticket or 0, 0}
  end
end

if ARGV[7] ~= '0' and not gone then
  ticket = ticket or next_fence()
  redis.call('ZADD', KEYS[2], string.format('%.0f', ticket), token)
  -- whoever asks from this channel is alive, whatever an old handoff says
  redis.call('HDEL', KEYS[3], '!' .. channel)
  redis.call('HSET', KEYS[3], token, table.concat({mode, ARGV[7] == 'p' and '-' or channel, ARGV[5], string.format('%.0f', us), owner}, ' '))
  redis.call('PEXPIRE', KEYS[2], 60000)
  redis.call('PEXPIRE', KEYS[3], 60000)
end
return {0, us, ticket or 0, redis.call('PTTL', KEYS[1])}
