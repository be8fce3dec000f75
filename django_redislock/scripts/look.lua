-- look: one command on the set of a pool's members, without those that were taken out and whose lease has ended since.
-- KEYS    lock, queue, waiters (stems of the members'), index, fence, pool (7 keys)
-- ARGV    name, command, channel, highest fence known, what follows the key in the command
-- answer  {its answer, 1 = more leases may have ended: call again}
local call = redis.call
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local lock, queue, waiters, name = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local more = false
if call('ZCOUNT', KEYS[8], '-inf', us) > 0 then
  --#include grant
  --#include grant_member
  --#include pass_on
  --#include pool
  more = sweep()
  more = serve() == 'more' or more
end
return {call(ARGV[2], KEYS[6], unpack(ARGV, 5)), more and 1 or 0}
