-- leave: out of the line of a pool, with whatever member may have been granted at this moment.
-- KEYS     @pool index fence never gone
--            as for release; gone: only while a checkout of this attempt may still arrive
-- ARGV     name id channel known
-- returns  {1 = it held a member, 0 = not; 1 = waiters may remain: call again; the member, if somebody
--            waits for this very one: pass it on, by a release of its lock}
--#include line
redis.call('ZREM', KEYS.line, ARGV.id)
redis.call('HDEL', KEYS.line_waiters, ARGV.id)
if KEYS.gone then redis.call('SET', KEYS.gone, '1', 'PX', 60000) end
local member = redis.call('HGET', KEYS.took, ARGV.id)
local value = member and read_member(member)
local held = parse_holder(value) == ARGV.id
if held then
  local suspended = vacate(member, value)
  redis.call('HDEL', KEYS.line_waiters, '!' .. member)
  if not suspended then free_member(member) end
end
sweep()
return {held and 1 or 0, grant_members() == 'more' and 1 or 0, held and has_own_queue(member) and member or false}
