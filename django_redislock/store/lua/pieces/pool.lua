-- Pieces: a pool: its members, those who want any of them, and a lock that is one of them.

--#piece members
-- The members of a pool. All their locks are fields of the pool's keys, so that every key can be declared;
-- docs/protocol.rst has them under "Keys". `free` and `fresh` may list what is no member any more, or is held: that is
-- found out when its turn comes.
--#include several_handoffs
--#include suspension
--#include spare
local stem = string.match(ARGV.name, '^[^:]*:[^:]*:')

local function lock_name_of(member) return stem .. member end

local function planned_field(member) return ':' .. member end

-- what was written counts for `ms`. In a pool without members, nobody may ever look at it again
local function keep_pool(ms)
  if redis.call('EXISTS', KEYS.members) == 1 then return end
  for _, key in ipairs({KEYS.held, KEYS.busy, KEYS.took, KEYS.wanted}) do keep(key, ms + SPARE) end
end

local function hold_member(member, value, ms)
  redis.call('ZREM', KEYS.fresh, member)
  redis.call('ZREM', KEYS.free, member)
  redis.call('HSET', KEYS.held, member, value)
  redis.call('ZADD', KEYS.busy, us + ms * 1000, member)
  keep_pool(ms)
end

-- nobody holds the member any more: `value` is what its lock held. Returns its new one if it is suspended now
local function vacate(member, value)
  redis.call('ZREM', KEYS.busy, member)
  if value then
    redis.call('HDEL', KEYS.held, member)
    redis.call('ZREM', KEYS.index, lock_name_of(member))
    local id, _, _, _, _, token = parse_holder(value)
    if id then redis.call('HDEL', KEYS.took, id, token) end -- adopted, it was taken by the id that is the token now
  end
  local text = redis.call('HGET', KEYS.held, planned_field(member))
  if not text then return nil end
  redis.call('HDEL', KEYS.held, planned_field(member))
  local suspension, left = parse_planned(text)
  if suspension then
    hold_member(member, suspension, left)
    redis.call('ZADD', KEYS.index, us + left * 1000, lock_name_of(member))
  end
  return suspension
end

-- milliseconds of lease; -2: nobody holds it, -1: it never ends, so somebody else has written it
local function member_left(member)
  local ends = redis.call('ZSCORE', KEYS.busy, member)
  if redis.call('HEXISTS', KEYS.held, member) == 0 then return -2 end
  return ends and math.max(0, math.ceil((ends - us) / 1000)) or -1
end

-- an eviction took the end of the lease: the index has it too. Lost there as well, the lease is over. nil: somebody
-- else has written the value
local function restored_end(member, value)
  if not parse_holder(value) then return nil end
  local ends = redis.call('ZSCORE', KEYS.index, lock_name_of(member))
  if not ends or ends == 'inf' then return us end
  redis.call('ZADD', KEYS.busy, ends, member)
  return ends
end

-- the value of its lock, nil when nobody holds it; a lease that has ended is cleared away
local function read_member(member)
  local value = redis.call('HGET', KEYS.held, member)
  if not value then return nil end
  local ends = redis.call('ZSCORE', KEYS.busy, member) or restored_end(member, value)
  if not ends or tonumber(ends) > us then return value end
  local suspension = vacate(member, value)
  if not suspension then -- whoever looks at it, it is to be given back
    redis.call('ZADD', KEYS.busy, us, member)
    keep_pool(0)
  end
  note_lapsed(KEYS.line_waiters, '!' .. member)
  return suspension
end

local function has_own_queue(member)
  local till = redis.call('ZSCORE', KEYS.wanted, member)
  -- nobody looks less often than once a minute: what is later is from before the clock jumped back
  return till and tonumber(till) > us and tonumber(till) <= us + 60000000
end

-- into the free ones, unless it has been taken out of the pool
local function free_member(member)
  redis.call('ZREM', KEYS.busy, member)
  if redis.call('ZSCORE', KEYS.members, member) then
    redis.call('ZREM', KEYS.fresh, member)
    -- behind all others, also when the clock has jumped back
    local last = redis.call('ZRANGE', KEYS.free, -1, -1, 'WITHSCORES')[2]
    redis.call('ZADD', KEYS.free, 'NX', math.max(us, (last or 0) + 1), member)
  end
end

-- nobody holds it, and nobody is given it now
local function look_at_soon(member)
  redis.call('ZADD', KEYS.busy, us + 100000, member)
  keep_pool(100)
end

-- gives back the members whose leases have ended, so many at a time
local function sweep()
  local due = redis.call('ZRANGE', KEYS.busy, '-inf', us, 'BYSCORE', 'LIMIT', 0, 100)
  for _, member in ipairs(due) do
    if not read_member(member) then free_member(member) end
  end
  -- those that were used and then taken out of the pool
  for _, member in ipairs(redis.call('ZRANGE', KEYS.free, 0, 19)) do
    if not redis.call('ZSCORE', KEYS.members, member) then redis.call('ZREM', KEYS.free, member) end
  end
end

-- at most `most` members that are free, those first that were not used for longest; and whether there may be more.
-- They stay where they are
local function find_free(most)
  local found, met = {}, 0
  for _, key in ipairs({KEYS.fresh, KEYS.free}) do
    local start = 0
    while #found < most and met < 200 do
      local batch = redis.call('ZRANGE', key, start, start + most - #found - 1)
      if #batch == 0 then break end
      for _, member in ipairs(batch) do
        met = met + 1
        if
          not redis.call('ZSCORE', KEYS.members, member)
          or key == KEYS.fresh and redis.call('ZSCORE', KEYS.free, member) -- its turn comes by its last use
        then
          redis.call('ZREM', key, member)
        elseif read_member(member) then
          if redis.call('ZSCORE', KEYS.busy, member) then
            redis.call('ZREM', key, member)
          else
            -- somebody else has written it, and it never ends: whoever looks for what is stuck must find it
            redis.call('ZADD', KEYS.index, 'inf', lock_name_of(member))
            start = start + 1
          end
        elseif has_own_queue(member) then
          -- those who queue for this very member come first, and look for it themselves
          redis.call('ZREM', key, member)
          look_at_soon(member)
        else
          found[#found + 1] = member
          start = start + 1
        end
      end
    end
  end
  return found, met >= 200
end

--#piece line
-- The line of those who want any member of a pool, whichever becomes free.
--#include members
--#include grant_in_order
--#include fence
local function grant_member(member, id, channel, flag, ms, token, owner)
  local fence, since = next_fence()
  redis.call('HSET', KEYS.took, id, member)
  hold_member(member, holder_value(id, channel, flag, fence, since, token, owner), ms)
  redis.call('ZADD', KEYS.index, us + ms * 1000, lock_name_of(member))
  return fence, since
end

-- hands free members to those in line. Returns 'take' and a member when one is left for whoever asks (`me`, or a
-- newcomer), 'more': call again, or 'none'
local function grant_members(me)
  local most = 100
  local waiting = redis.call('ZCARD', KEYS.line)
  if waiting == 0 and not me and redis.call('EXISTS', KEYS.line_waiters) == 0 then return 'none' end
  local found, many_met = find_free(math.min(waiting + 1, most))
  local next_member = 1

  local function grant_to(id, channel, lease, token, owner)
    local member = found[next_member]
    next_member = next_member + 1
    return '!' .. member, lock_name_of(member), grant_member(member, id, channel, 'p', lease, token, owner)
  end

  if #found == 0 then return many_met and 'more' or 'none' end
  local verdict, handed = grant_in_order(KEYS.line, KEYS.line_waiters, stem, #found, me, grant_to)
  if verdict == 'take' then return 'take', found[next_member] end
  return (verdict == 'more' or many_met or handed > 0 and waiting >= most) and 'more' or 'none'
end

--#piece lock_member
-- The lock is a member of a pool, and a field of the pool's keys.
--#include members
--#include single
local member = string.sub(ARGV.name, #stem + 1)

local function read_lock() return read_member(member) end

local function write_lock(value, ms) hold_member(member, value, ms) end

local function erase_lock(flag, value)
  vacate(member, value)
  erased_flag = flag
  if flag == 'p' then redis.call('HDEL', KEYS.line_waiters, '!' .. member) end
end

-- milliseconds; -2: there is no lock; -1: it never ends, so somebody else has written it
local function lease_left() return member_left(member) end

local function move_end(ms)
  redis.call('ZADD', KEYS.busy, us + ms * 1000, member)
  keep_pool(ms)
end

-- the handoff with this flag is confirmed
local function clear_handoff(flag)
  if flag == 'h' then redis.call('HDEL', KEYS.waiters, '!') end
  if flag == 'p' then redis.call('HDEL', KEYS.line_waiters, '!' .. member) end
end

--#piece idle_member
there = redis.call('EXISTS', KEYS.queue, KEYS.waiters, KEYS.gone)
value = read_lock()
idle = there == 0 and not value

--#piece note_queue_member
-- The caller has joined the queue of this very member, which is not for those who want any as long as somebody there
-- looks, every 5 s at least
  local patience = tonumber(string.match(ARGV.wait, '^p(%d+)$')) or 0
  local till = us + math.max(patience, 7000) * 1000
  redis.call('ZADD', KEYS.wanted, 'GT', string.format('%.0f', till), member)
  keep_pool(math.ceil((till - us) / 1000))

--#piece note_leave_member
-- The caller has left that queue.
  if redis.call('EXISTS', KEYS.queue) == 0 then redis.call('ZREM', KEYS.wanted, member) end

--#piece waiting_member
-- The queues of a lock that is a member of a pool, and its planned suspension, which begins by itself (see
-- vacate).
--#include queue
--#include suspension
--#include @lock
-- the queues of those who wait for this member, and for any of its pool, and the names that they ask for
local queues = {{KEYS.queue, KEYS.waiters, ARGV.name}, {KEYS.line, KEYS.line_waiters, stem}}
local plans, plan = KEYS.held, planned_field(member) -- hash and field of a planned suspension

-- nobody holds the lock: returns its value if it is suspended now
local function begin_suspension() return redis.call('HGET', KEYS.held, member) end

--#piece keep_plan_member
-- A suspension was planned.
  keep_pool(ms)

--#piece grant_next_member
-- The member is free: grants it to the next of those who queue for this very member, else to those who want any,
-- unless it is suspended. Returns 1 when this must be called again.
--#include hand_off
--#include line
local function grant_next()
  if suspends() then return 0 end
  local verdict, handed = grant_in_order(KEYS.queue, KEYS.waiters, ARGV.name, 1, nil, grant_to)
  if verdict == 'take' then
    redis.call('ZREM', KEYS.wanted, member)
    free_member(member)
  elseif handed == 0 then
    look_at_soon(member) -- it is left for one that polls, and may die
  end
  if verdict ~= 'more' then
    sweep()
    verdict = grant_members()
  end
  return verdict == 'more' and 1 or 0
end
