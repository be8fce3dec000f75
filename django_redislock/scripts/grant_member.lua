-- (shared piece) from here on `grant` makes a token the holder of a pool's member, which is called `name`
local stem, grant_lock = string.match(ARGV[1], '^(.*:)'), grant
grant = function(token, channel, flag, lease, owner)
  local member = string.sub(name, #stem + 1)
  call('ZREM', KEYS[7], member)
  call('ZADD', KEYS[8], us + lease * 1000, member)
  -- whose answer or wake was lost finds the member again by its token
  local kept = 60000
  if flag == 'h' then
    kept = kept + lease
    -- as in the waiters hash of any lock. But of a pool several members may be handed over at the same time, so each
    -- has its own mark
    call('HSET', KEYS[11] .. member, '!', channel)
    call('PEXPIRE', KEYS[11] .. member, kept)
  end
  call('SET', KEYS[12] .. token, member, 'PX', kept)
  return grant_lock(token, channel, flag, lease, owner)
end
