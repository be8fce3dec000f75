-- acquire: takes the lock, or queues for it; also every later look of a waiter. Idempotent per attempt. A free lock that
-- nobody waits for is granted by acquire_fast (seven in eight) or by grant.
-- KEYS     @lock queue waiters index fence gone
-- ARGV     name id channel known ttl wait owner ticket token own most limit
--            known: the highest fence that the caller knows; ttl: ms
--            wait: 0 no, 1 yes, p1000: polls, and is alive for 1000 ms without another look, a: only adopt
--            ticket: '' when none was drawn yet; token: '-' when it is the id
--            own: with a token, the channel of the caller's process, even if it does not listen
--            most: max_waiters, how many others may wait already; '' for any number
--            limit: of a semaphore, how many may hold it at once; else ''
--            Without ticket, token, most and limit, everything from ticket on may be missing
-- returns  {state, server us, fence or ticket, lease left in ms, value of the lock that somebody else holds or
--            false, 1 = a handoff to this process ran out unheard, the limit before, if it was another}; the last three may
--            be missing. States: calls.py
local there -- how many of these keys exist: lock, queue, waiters, gone
local value -- that of the lock
local drawn -- the next fence or ticket, if it has been drawn
local only_queues = false -- whether the lock is held, and the caller a newcomer without a token or a bound
--#include @acquire_fast
--#include @lock
--#include unheard
local BUSY, GRANTED, MORE, GIVEN_UP, ALREADY, FULL = 0, 1, 2, 3, 4, 6
if not ARGV.ticket then ARGV.ticket, ARGV.token, ARGV.own, ARGV.most, ARGV.limit = '', '-', '', '', '' end
local ticket, limit_before = drawn or ARGV.ticket, nil

-- all other cases, among them that a ticket is wanted and none was drawn. Making the functions of this block takes a third
-- of a script's time
if not only_queues or ticket == '' and ARGV.wait ~= '0' then
--#include grant
  local idle = there == 0 -- whether nobody has it and nobody waits, and no handoff of it has run out
--#include @idle
  if idle --[[@adopt-only-free]]and ARGV.wait ~= 'a' --[[@]]then
    local fence = grant(ARGV.id, ARGV.channel, 'c', ARGV.ttl, ARGV.token, ARGV.owner)
    if fence % 8 == 0 then
      -- leases that ended by themselves, of processes that died: every change of a lease moves its entry
      local past = redis.call('ZRANGE', KEYS.index, '-inf', us - 1000000, 'BYSCORE', 'LIMIT', 0, 16)
      if #past > 0 then redis.call('ZREM', KEYS.index, unpack(past)) end
    end
    return {GRANTED, us, tonumber(fence), tonumber(ARGV.ttl)}
  end

--#include queue
--#include suspension
  value = value or read_lock()
  local id, channel, flag, fence, since, token, owner = parse_holder(value)
  if flag == 's' then
    local anew, left = begin_anew(value, lease_left())
    if anew ~= value then
      value = anew
      write_lock(value, left)
      list_until(left)
    end
  end
  if id --[[@already-mine]]== ARGV.id--[[@]] then return {ALREADY, us, tonumber(fence), lease_left()} end
  if there > 0 and redis.call('EXISTS', KEYS.gone) == 1 then return {GIVEN_UP, us, 0, 0} end --@given-up
--#include @impose_limit

  -- whether the caller may go on with the lock where its holder has left it: the token must be the right one, and nobody
  -- at work with it. (Of channel '-', nobody can find out whether it is gone)
  local bears = id and ARGV.token ~= '-' and (token == '-' and id or token) == ARGV.token
  local adopts = flag == 'd'
  if bears and not adopts and channel ~= '-' --[[@adopts-own]]and channel ~= ARGV.own --[[@]]then
    adopts = --[[@adopts-the-dead]]nobody_listens(channel)--[[@or]]true--[[@]]
  end

  if bears and adopts then
    local left = tonumber(ARGV.ttl)
    if flag ~= 'd' then
      -- its holder seems dead: should it live, its fence is an old one from now on
      left = math.max(left, lease_left()) --@adoption-lease
      fence, since = next_fence() --@adoption-fence
    end
    clear_handoff(flag)
    -- who has no note to leave keeps the one that is there
    local note = string.find(ARGV.owner, '\n', 1, true) and '' --[[@adoption-note]]or string.match(owner, '\n.*$') --[[@]]or ''
    write_lock(holder_value(ARGV.id, ARGV.channel, 'a', fence, since, ARGV.token, ARGV.owner .. note), left)
    redis.call('ZREM', KEYS.queue, ARGV.id)
    redis.call('HDEL', KEYS.waiters, ARGV.id)
    list_until(left)
    tell(channel, 'a ' .. id .. ' ' .. ARGV.name) --@adoption-told
    return {ALREADY, us, tonumber(fence), left}
  end

  if ARGV.wait == 'a' and value then return {bears and BUSY or GIVEN_UP, us, 0, lease_left(), value} end

  if not value then
--#include @grant_next
    if ARGV.wait == 'a' then --@adopt-only-waits
      if grant_next() == 1 then return {MORE, us, 0, 0} end
      return {GIVEN_UP, us, 0, 0, false, unheard}
    end
    value = begin_suspension() --@asker-suspends
    if not value then
      local verdict = grant_in_order(KEYS.queue, KEYS.waiters, ARGV.name, count_free(), ARGV.id, grant_to)
      if verdict == 'take' then
        redis.call('ZREM', KEYS.queue, ARGV.id)
        redis.call('HDEL', KEYS.waiters, ARGV.id)
        local taken = grant(ARGV.id, ARGV.channel, 'c', ARGV.ttl, ARGV.token, ARGV.owner)
--#include @grant_rest
        return {GRANTED, us, tonumber(taken), tonumber(ARGV.ttl), false, unheard, limit_before}
      end
      if verdict == 'more' then return {MORE, us, tonumber(ARGV.ticket) or 0, 0} end
    end
  end

  -- who comes back with a ticket has been let in before
  if ARGV.wait ~= '0' and ARGV.most ~= '' and ARGV.ticket == '' then --@most
    -- whether as many others wait already as the caller accepts. Those who have died meanwhile do not count: they are
    -- dropped here, as nobody else may do so for as long as the lock is held
    local function is_full()
      local most, waiting = tonumber(ARGV.most), redis.call('ZCARD', KEYS.queue)
      if waiting < most --[[@most-waits-already]]or redis.call('ZSCORE', KEYS.queue, ARGV.id) --[[@]]then return false end
      local first = us % math.max(1, waiting - 99) -- a hundred of them, each time others
      local ids, dead, absent = redis.call('ZRANGE', KEYS.queue, first, first + 99), {}, {}
      if #ids == 0 then return true end
      for i, entry in ipairs(redis.call('HMGET', KEYS.waiters, unpack(ids))) do
        local channel, _, alive_until = parse_waiter(entry)
        if is_dead(channel, alive_until, absent) then dead[#dead + 1] = ids[i] end --@most-the-dead
      end
      if #dead == 0 then return true end
      redis.call('ZREM', KEYS.queue, unpack(dead))
      redis.call('HDEL', KEYS.waiters, unpack(dead))
      return redis.call('ZCARD', KEYS.queue) >= most
    end
    if is_full() then return {FULL, us, 0, lease_left(), value or false, unheard, limit_before} end
  end
  if ticket == '' and ARGV.wait ~= '0' then ticket = next_fence() end
end

local state = BUSY
if ARGV.wait ~= '0' then
  local queue, waiters = KEYS.queue, KEYS.waiters
--#include enqueue
--#include @note_queue
end
local left = lease_left()
-- somebody else has written it, and it never ends: whoever looks for what is stuck must find it
if left == -1 then redis.call('ZADD', KEYS.index, 'inf', ARGV.name) end
return {state, us, tonumber(ticket) or 0, left, value or false, unheard, limit_before}
