-- checkout: take any free member of a pool, or queue for one; also every later look of a waiter. Idempotent per token.
-- KEYS    lock, queue, waiters (stems of the members'), index, fence, pool (7 keys), gone
-- ARGV    as for acquire
-- answer  {state, server us, fence or ticket, ms until a lease may end, the member granted}; states: see scripts.py
local call = redis.call
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local lock, queue, waiters, name, gone = KEYS[1], KEYS[2], KEYS[3], ARGV[1], KEYS[13]
local token, channel, ttl, mode, owner = ARGV[2], ARGV[3], ARGV[5], ARGV[6], ARGV[9]
local ticket = ARGV[8]
local took = KEYS[12] .. ARGV[2]
--#include grant
--#include grant_member

-- now and then, somebody looks for leases that have ended before the last free member is taken
if us % 8 ~= 0 and call('EXISTS', queue, took, gone) == 0 then
  local member = call('ZRANGE', KEYS[7], 0, 0)[1]
  if member and call('EXISTS', lock .. member, queue .. member) == 0 then
    lock, name = lock .. member, name .. member
    return {1, us, tonumber((grant(token, channel, 'c', ttl, owner))), tonumber(ttl), member}
  end
end

--#include pass_on
--#include pool
local member = call('GET', took)
local held = member and call('GET', lock_stem .. member)
local its, fence = string.match(held or '', '^(%S+) %S+ %S (%d+) ')
if its == token and #fence < 17 then
  return {4, us, tonumber(fence), call('PTTL', lock_stem .. member), member}
end
local over = call('EXISTS', gone) == 1
if over then return {3, us, 0, 0, ''} end

sweep()
local verdict = serve(token, mode)
if verdict == 'take' then
  call('ZREM', line, token)
  call('HDEL', line_waiters, token)
  local fence = tonumber((grant(token, channel, 'c', ttl, owner)))
  member = string.sub(name, #stem + 1)
  if call('EXISTS', line) == 1 then serve() end
  return {1, us, fence, tonumber(ttl), member}
elseif verdict == 'more' then
  return {2, us, tonumber(ticket) or 0, 0, ''}
end

--#include enqueue
local left = -2
if call('EXISTS', free) == 0 then
  local due = call('ZRANGE', busy, 0, 0, 'WITHSCORES')[2]
  left = due and math.max(0, math.ceil((due - us) / 1000)) or 5000
end
return {state, us, tonumber(ticket) or 0, left, ''}
