-- (shared piece) a pool's member that nobody holds any more: free for all, or gone when it was taken out meanwhile;
-- needs `us`
local function give_back(member)
  if call('ZREM', KEYS[8], member) == 0 then
    -- not taken from the pool, but locked by its own name, if it is in the pool at all
    call('ZADD', KEYS[7], 'XX', us, member)
  elseif call('ZREM', KEYS[9], member) == 1 then
    call('ZREM', KEYS[6], member)
  else
    call('ZADD', KEYS[7], us, member)
  end
end
