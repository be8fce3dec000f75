-- acquire: take the lock, or queue for it; also every later look of a waiter. Idempotent per token.
-- KEYS    lock, queue, waiters, index, fence, pool (7 keys, for a pool's member only), gone
-- ARGV    name, token, channel, highest fence known, ttl ms, mode F(air) or L(ock), wait: 0 no, 1 yes, p1000 = polling,
--         and alive for 1000 ms without a look, s = seize; ticket or '' when none was drawn yet, owner
-- answer  {state, server us, fence or ticket, lease left ms, value of the lock that was seized}; states: see scripts.py
local call = redis.call
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local lock, queue, waiters, name, gone = KEYS[1], KEYS[2], KEYS[3], ARGV[1], KEYS[#KEYS]
--#include grant

if call('EXISTS', lock, queue, gone) == 0 then
  local fence = tonumber((grant(ARGV[2], ARGV[3], 'c', ARGV[5], ARGV[9])))
  -- every lease change moves its index entry, so what is a second past due has expired
  if fence % 8 == 0 then
    local past = call('ZRANGEBYSCORE', KEYS[4], '-inf', us - 1000000, 'LIMIT', 0, 16)
    local lock_stem = string.sub(lock, 1, -1 - #name)
    for i = 1, #past do
      -- ... or has lost its end by somebody else's hand, and stays listed
      if call('EXISTS', lock_stem .. past[i]) == 0 then
        call('ZREM', KEYS[4], past[i])
      else
        call('ZADD', KEYS[4], us, past[i])
      end
    end
  end
  return {1, us, fence, tonumber(ARGV[5])}
end

local token, channel, ttl, mode, owner = ARGV[2], ARGV[3], ARGV[5], ARGV[6], ARGV[9]
local ticket = ARGV[8]
-- not MGET, which takes a key of another type for one that is free
local held, over = call('GET', lock), call('EXISTS', gone) == 1

if held then
  if string.sub(held, 1, #token + 1) == token .. ' ' then
    local _, at, flag, fence, since, was = string.match(held, '^(%S+) (%S+) (%S) (%d+) (%d+) (.*)$')
    local left = call('PTTL', lock)
    local ours = at and #fence < 17 -- else somebody has forged it: whoever that is holds the lock
    if ours and at ~= channel then
      -- adopted by another process: renewals follow the channel
      left = math.max(left, tonumber(ttl))
      if flag == 'h' then call('HDEL', waiters, '!') end
      -- who has no note to leave keeps the one that is there
      if not string.find(owner, '\n', 1, true) then owner = owner .. (string.match(was, '\n.*$') or '') end
      call('SET', lock, table.concat({token, channel, 'c', fence, since, owner}, ' '), 'PX', left)
      call('ZADD', KEYS[4], us + left * 1000, name)
      redis.pcall('PUBLISH', at, 'x ' .. token .. ' ' .. name)
    end
    if ours then return {4, us, tonumber(fence), left} end
  end
elseif over then
  return {3, us, 0, 0}
end

if ARGV[7] == 's' and not over then
  -- DEL comes first: where memory has run out, Redis lets a script go on that has begun with it
  call('DEL', lock)
  call('ZREM', queue, token)
  call('HDEL', waiters, token)
  local fence = grant(token, channel, 'c', ttl, owner)
  local old, at, flag = string.match(held or '', '^(%S+) (%S+) (%S) ')
  if old then
    if flag == 'h' then call('HDEL', waiters, '!') end
    redis.pcall('PUBLISH', at, 'f ' .. old .. ' ' .. name)
  end
  return {1, us, tonumber(fence), tonumber(ttl), held}
elseif not held then
  --#include pass_on
  local verdict = pass_on(queue, waiters, name, true, token, mode)
  if verdict == 'take' then
    call('ZREM', queue, token)
    call('HDEL', waiters, token)
    return {1, us, tonumber((grant(token, channel, 'c', ttl, owner))), tonumber(ttl)}
  elseif verdict == 'more' then
    return {2, us, tonumber(ticket) or 0, 0}
  end
end

--#include enqueue
local left = call('PTTL', lock)
-- somebody else has written it, and no lease of ours will ever move its entry
if left == -1 then call('ZADD', KEYS[4], us, name) end
return {state, us, tonumber(ticket) or 0, left}
