-- (piece) the line of those who want any member of a pool, whichever becomes free.
--#include members
--#include grant_next
--#include fence
local function grant_member(member, id, channel, flag, ms, token, owner)
  local fence, since = next_fence()
  hold_member(member, holder_value(id, channel, flag, fence, since, token, owner), ms)
  redis.call('HSET', KEYS.took, id, member)
  redis.call('ZADD', KEYS.index, us + ms * 1000, lock_name_of(member))
  return fence, since
end

-- hands free members to those in line. Returns 'take' and a member when one is left for whoever asks (`me`, or a
-- newcomer), 'more': call again, or 'none'
local function serve(me)
  local most = 100
  local waiting = redis.call('ZCARD', KEYS.line)
  local found, many_met = find_free(math.min(waiting + 1, most))
  local next_member = 1

  local function hand_member_over(id, channel, ttl, token, owner)
    local member, lease = found[next_member], handoff_lease(ttl)
    next_member = next_member + 1
    remember_handoff(KEYS.line_waiters, '!' .. member, channel, lease)
    local fence, since = grant_member(member, id, channel, 'p', lease, token, owner)
    tell_of_grant(channel, id, fence, since, lease, lock_name_of(member))
  end

  if #found == 0 then return many_met and 'more' or 'none' end
  local verdict, handed = grant_next(KEYS.line, KEYS.line_waiters, stem, #found, me, hand_member_over)
  if verdict == 'take' then return 'take', found[next_member] end
  return (verdict == 'more' or many_met or handed > 0 and waiting >= most) and 'more' or 'none'
end
