-- renew: moves the end of a lease that this attempt holds; confirms a handoff.
-- KEYS     @lock queue waiters index fence never late
--            late: gone, or a sequence (see once): for set and detach, as they may arrive after what came later; for
--            the others, where one of these, or an acquire of this attempt, may still arrive
-- ARGV     name id channel known ttl how ms token fence number
--            how: keep = at least ms from now; confirm = at least ttl from the grant; set = ms from now; detach = the
--            same, and nobody here holds it any more; note = as confirm, and the next fence is above known
--            fence: of the acquisition; '' for whatever this attempt holds
-- returns  {state, server us, lease left in ms of whoever holds it}; states: calls.py
--#include @lock
--#include fence
local LOST, HELD, ADOPTED = 0, 1, 2
local value, answer, how = read_lock(), nil, ARGV.how
local last = KEYS.late and tonumber(string.match(redis.call('GET', KEYS.late) or '', '^%d+')) or 0
local sets = how == 'set' or how == 'detach'
if sets and last >= tonumber(ARGV.number or 1) then how, sets = 'confirm', false end -- it was carried out before, or is over
if value then
  local id, channel, flag, fence, since, token, owner = parse_holder(value)
  -- the same attempt with another fence: a failover forgot its grant and let others in, before its turn came again (C3)
  if --[[@renewal-id]]id ~= ARGV.id --[[@or]]false--[[@]] or --[[@renewal-fence]]ARGV.fence ~= '' and fence ~= ARGV.fence--[[@or]]false--[[@]] then
    local adopted = id and id ~= ARGV.id and token ~= '-' and token == ARGV.token
    return {adopted and ADOPTED or LOST, us, lease_left()}
  end

  local ms, before = tonumber(ARGV.ms), lease_left()
  local left = before
  -- a renewal that was on its way when the lock was detached
  if flag == 'd' and how ~= 'detach' then return {HELD, us, left} end --@late-renewal
  local handed = flag == 'h' or flag == 'p'
  -- a handoff begins with a short lease: confirmed, it is a full one from the grant on
  if handed then left = math.max(--[[@confirm-lengthens]]left, --[[@]]math.ceil((since - us) / 1000) + tonumber(ARGV.ttl)) end
  if sets then
    left = ms
  elseif how == 'keep' then
    left = math.max(--[[@renewal-lengthens]]left, --[[@]]ms)
  end
  -- a deletion first: where memory has run out, Redis lets a script go on that has begun with one
  redis.call('HDEL', KEYS.waiters, '-') -- nobody writes that field
  if KEYS.late then redis.call('SET', KEYS.late, math.max(last, ARGV.number) .. ' ', 'PX', 60000) end
  if how == 'note' then next_fence() end --@fence-noted
  if handed or how == 'detach' then
    left = math.max(1, left) -- at the very end; Redis refuses to write a key for 0 ms
    write_lock(holder_value(id, channel, how == 'detach' and 'd' or 'c', fence, since, token, owner), left)
    if handed then clear_handoff(flag) end --@confirm-clears
  else
    move_end(left)
  end
  list_until(left) --@renewal-listed
  answer = {HELD, us, left}
  if left >= before then return answer end
--#include @lease_shortened
end

--#include @grant_next
if value then
  tell_of_end() --@shorter-told
else
  -- the lease is over; those who wait should not have to find that out by themselves
  answer = {LOST, us, 0}
  grant_next() --@renewal-grants
end
return answer
