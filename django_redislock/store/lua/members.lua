-- members: one step of a change of a pool's members. Each handles as many as are given, in bounded time.
-- KEYS     sequence @pool index fence never next_members next_fresh pools
--            next: a set of members that is not in use yet; pools: those that have members
-- ARGV     number name how channel known member...
--            number: of the call in its sequence
--            how: add = new ones, and members that have lost their turns; remove; stage = into the set that is not in
--            use yet; switch = put that in the place of the old one, at once, if it has as many members as are given;
--            grant = only hand out what is free
-- returns  how many of them are new, or were there; and, behind a space, 1 = waiters may remain: call again
--#include once
--#include line
local how, changed = ARGV.how, 0

return once(function()
  if how == 'switch' then
    if redis.call('ZCARD', KEYS.next_members) ~= tonumber(ARGV.member) then
      return redis.error_reply('ERR not all members have arrived')
    end
    if redis.call('EXISTS', KEYS.next_members) == 1 then
      redis.call('RENAME', KEYS.next_members, KEYS.next_members) -- if Redis refuses that, nothing is lost yet
      redis.call('UNLINK', KEYS.members, KEYS.fresh) -- RENAME would take long to free many
      redis.call('RENAME', KEYS.next_members, KEYS.members)
      redis.call('RENAME', KEYS.next_fresh, KEYS.fresh)
      redis.call('PERSIST', KEYS.members)
      redis.call('PERSIST', KEYS.fresh)
    else
      redis.call('UNLINK', KEYS.members)
    end
  end
  for i = 6, how == 'switch' and 0 or #ARGV do
    local name = ARGV[i]
    if how == 'add' then
      local is_new = redis.call('ZADD', KEYS.members, 0, name)
      changed = changed + is_new
      -- one that was there has lost its turn if an eviction took the key it stood in
      if is_new == 1 or not (redis.call('ZSCORE', KEYS.free, name) or redis.call('ZSCORE', KEYS.busy, name)) then
        redis.call('ZADD', KEYS.fresh, 0, name)
      end
    elseif how == 'remove' then
      changed = changed + redis.call('ZREM', KEYS.members, name)
      redis.call('ZREM', KEYS.free, name)
      redis.call('ZREM', KEYS.fresh, name)
    elseif how == 'stage' then
      if not redis.call('ZSCORE', KEYS.members, name) then changed = changed + 1 end
      redis.call('ZADD', KEYS.next_members, 0, name)
      redis.call('ZADD', KEYS.next_fresh, 0, name)
    end
  end
  if how == 'stage' then
    redis.call('PEXPIRE', KEYS.next_members, 60000)
    redis.call('PEXPIRE', KEYS.next_fresh, 60000)
    return changed .. ' 0'
  end
  if redis.call('EXISTS', KEYS.members) == 1 then
    redis.call('ZADD', KEYS.pools, 0, ARGV.name)
    for _, key in ipairs({KEYS.held, KEYS.busy, KEYS.took, KEYS.wanted}) do redis.call('PERSIST', key) end
  else
    redis.call('ZREM', KEYS.pools, ARGV.name)
    redis.call('UNLINK', KEYS.free, KEYS.fresh)
    local last = tonumber(redis.call('ZRANGE', KEYS.busy, -1, -1, 'WITHSCORES')[2]) or 0
    for _, text in ipairs(redis.call('HGETALL', KEYS.held)) do
      -- a planned suspension; no field and no other value begins with a number and a space
      last = math.max(last, tonumber(string.match(text, '^(%d+) ')) or 0)
    end
    keep_pool(math.max(0, math.ceil((last - us) / 1000)))
  end
  sweep()
  return changed .. ' ' .. (grant_members() == 'more' and 1 or 0)
end)
