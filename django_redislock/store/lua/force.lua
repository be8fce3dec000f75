-- force: releases a lock whoever holds it, tells the holder, and passes it on.
-- KEYS     sequence @lock queue waiters index fence never
-- ARGV     number name id channel known highest what
--            number: of the call in its sequence; id: of a semaphore, that of the holder; else ''
--            highest: of the fences that may be released, '' for any; what: '' = whatever there is, the end of a
--            suspension included; s = a suspension alone
-- returns  1 = dead waiters remain: call again, else 0; and, behind a space, the value of the lock, or of the suspension
--            that was planned, if any
--#include @grant_next
--#include suspension
--#include once
return once(function()
  local value = read_lock()
  local id, channel, flag, fence = parse_holder(value)
  if ARGV.id ~= '' and id ~= ARGV.id then return grant_next() .. '' end
  if id and ARGV.highest ~= '' and tonumber(fence) > tonumber(ARGV.highest) then return '0' end --@force-fence
  local planned = parse_planned(redis.call('HGET', plans, plan))
  redis.call('HDEL', plans, plan)
  if ARGV.what == 's' and value and flag ~= 's' then return planned and '0 ' .. planned or '0' end --@resume-holder
  erase_lock(flag, value)
  unlist()
  if id then tell(channel, 'f ' .. id .. ' ' .. ARGV.name) end --@force-told
  local ended = value or planned
  return grant_next() .. (ended and ' ' .. ended or '')
end)
