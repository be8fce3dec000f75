-- checkout: takes any free member of a pool, or stands in line for one; also every later look of a waiter. Idempotent
--            per attempt.
-- KEYS     @pool index fence gone
-- ARGV     name id channel known ttl wait owner ticket token
--            as for acquire; name: that of the pool
-- returns  {state, server us, fence or ticket, ms of lease (or until one may end), the member granted,
--            1 = a handoff to this process ran out unheard}; the last may be missing. States: calls.py
--#include line
local BUSY, GRANTED, MORE, GIVEN_UP, ALREADY = 0, 1, 2, 3, 4

local function take(member)
  local ms = tonumber(ARGV.ttl)
  local fence = grant_member(member, ARGV.id, ARGV.channel, 'c', ms, ARGV.token, ARGV.owner)
  return {GRANTED, us, tonumber(fence), ms, member}
end

local took = redis.call('HGET', KEYS.took, ARGV.id)
local there = redis.call('EXISTS', KEYS.line, KEYS.gone)
-- the fast path: nobody waits, and a member is free. Every eighth call looks for leases that have ended
if not took and there == 0 and us % 8 ~= 0 then
  local member = find_free(1)[1]
  if member then return take(member) end
end

local value = took and read_member(took)
if value then
  local id, _, _, fence = parse_holder(value)
  if id == ARGV.id then return {ALREADY, us, tonumber(fence), member_left(took), took} end
end
if there > 0 and redis.call('EXISTS', KEYS.gone) == 1 then return {GIVEN_UP, us, 0, 0, ''} end

sweep()
local verdict, member = grant_members(ARGV.id)
if verdict == 'take' then
  redis.call('ZREM', KEYS.line, ARGV.id)
  redis.call('HDEL', KEYS.line_waiters, ARGV.id)
  local answer = take(member)
  answer[6] = unheard
  if redis.call('EXISTS', KEYS.line) == 1 then grant_members() end
  return answer
end
if verdict == 'more' then return {MORE, us, tonumber(ARGV.ticket) or 0, 0, ''} end

local state, ticket = BUSY, ARGV.ticket
if ARGV.wait ~= '0' then
  local queue, waiters = KEYS.line, KEYS.line_waiters
  if ticket == '' then ticket = next_fence() end
--#include enqueue
  clear_handoffs(KEYS.line_waiters, KEYS.busy)
end
local left = -2 -- one is free, and left for somebody who polls
if #find_free(1) == 0 then
  -- among the leases that end last are those of suspensions, if the clock has jumped back
  for _, other in ipairs(redis.call('ZRANGE', KEYS.busy, -20, -1)) do
    local value = redis.call('HGET', KEYS.held, other) or ''
    local anew, ms = begin_anew(value, member_left(other))
    if anew ~= value then
      hold_member(other, anew, ms)
      redis.call('ZADD', KEYS.index, us + ms * 1000, lock_name_of(other))
    end
  end
  local due = redis.call('ZRANGE', KEYS.busy, 0, 0, 'WITHSCORES')[2]
  left = due and math.max(0, math.ceil((due - us) / 1000)) or 5000
end
return {state, us, tonumber(ticket) or 0, left, '', unheard}
