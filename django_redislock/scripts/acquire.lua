-- acquire: take the lock, or queue for it; also every later look of a waiter. Idempotent per token.
-- KEYS    lock, queue, waiters, index, fence, gone
-- ARGV    name, token, channel, highest fence known, ttl ms, mode F(air) or L(ock), wait: 0 no, 1 yes, p1000 = polling,
--         and alive for 1000 ms without a look, s = seize; ticket or '' when none was drawn yet, owner
-- answer  {state, server us, fence or ticket, lease left ms, value of the lock that was seized}; states: see scripts.py
local call = redis.call
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local lock, queue, waiters, name = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
--#include grant

if call('EXISTS', lock, queue, KEYS[6]) == 0 then
  local fence = tonumber((grant(ARGV[2], ARGV[3], 'c', ARGV[5], ARGV[9])))
  -- every lease change moves its index entry, so what is a second past due has expired
  if fence % 8 == 0 then
    local past = call('ZRANGEBYSCORE', KEYS[4], '-inf', us - 1000000, 'LIMIT', 0, 16)
    if #past > 0 then call('ZREM', KEYS[4], unpack(past)) end
  end
  return {1, us, fence, tonumber(ARGV[5])}
end

local token, channel, ttl, mode, owner = ARGV[2], ARGV[3], ARGV[5], ARGV[6], ARGV[9]
local ticket = ARGV[8]
local have = call('MGET', lock, KEYS[6])
local held, gone = have[1], have[2]

if held then
  if string.sub(held, 1, #token + 1) == token .. ' ' then
    local _, at, flag, fence, since, was = string.match(held, '^(%S+) (%S+) (%S) (%d+) (%d+) (.*)$')
    local left = call('PTTL', lock)
    if at ~= channel then
      -- adopted by another process: renewals follow the channel
      left = math.max(left, tonumber(ttl))
      if flag == 'h' then call('HDEL', waiters, '!') end
      -- who has no note to leave keeps the one that is there
      if not string.find(owner, '\n', 1, true) then owner = owner .. (string.match(was, '\n.*$') or '') end
      call('SET', lock, table.concat({token, channel, 'c', fence, since, owner}, ' '), 'PX', left)
      call('ZADD', KEYS[4], us + left * 1000, name)
      redis.pcall('PUBLISH', at, 'x ' .. token .. ' ' .. name)
    end
    return {4, us, tonumber(fence), left}
  end
elseif gone then
  return {3, us, 0, 0}
end

if ARGV[7] == 's' and not gone then
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
  local verdict = pass_on(queue, waiters, name, token, mode)
  if verdict == 'take' then
    call('ZREM', queue, token)
    call('HDEL', waiters, token)
    return {1, us, tonumber((grant(token, channel, 'c', ttl, owner))), tonumber(ttl)}
  elseif verdict == 'more' then
    return {2, us, tonumber(ticket) or 0, 0}
  end
end

local state = 0
if ARGV[7] ~= '0' and not gone then
  local patience = string.match(ARGV[7], '^p(%d+)$')
  local till = '0'
  if ticket == '' then ticket = next_fence() end
  -- a waiter that was dropped, and lives: the others of its process may have been as well
  if call('ZADD', queue, ticket, token) == 1 and ARGV[8] ~= '' then state = 5 end
  -- whoever asks from this channel is alive, whatever an old handoff says
  local marks = call('HGET', waiters, '!')
  if marks then
    local at, to = string.find(marks, channel, 1, true)
    if at then
      call('HSET', waiters, '!', string.sub(marks, 1, at - 1) .. (at == 1 and '-' or '') .. string.sub(marks, to + 1))
    end
  end
  if patience then channel, till = '-', string.format('%.0f', us + patience * 1000) end
  call('HSET', waiters, token, mode .. ' ' .. channel .. ' ' .. ttl .. ' ' .. till .. ' ' .. owner)
  call('PEXPIRE', queue, 60000)
  call('PEXPIRE', waiters, 60000)
end
return {state, us, tonumber(ticket) or 0, call('PTTL', lock)}
