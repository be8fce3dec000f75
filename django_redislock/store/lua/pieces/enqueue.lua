-- (piece) puts the caller into a queue, or renews what is known of it there. Returns BUSY or REQUEUED, and its ticket.
--#include fence
--#include queue
local function enqueue(queue, waiters)
  local BUSY, REQUEUED = 0, 5
  local state, channel, alive_until = BUSY, ARGV.channel, '0'
  local ticket = ARGV.ticket == '' and next_fence() or ARGV.ticket
  -- it was dropped, and lives: the others of its process may have been dropped as well
  if redis.call('ZADD', queue, --[[@tickets]]ticket--[[@or]]0--[[@]], ARGV.id) == 1 and ARGV.ticket ~= '' then
    state = REQUEUED --@requeued
  end
  clear_suspect(waiters)
  local patience = string.match(ARGV.wait, '^p(%d+)$')
  if patience then channel, alive_until = '-', string.format('%.0f', us + patience * 1000) end
  redis.call('HSET', waiters, ARGV.id, waiter_entry(channel, ARGV.ttl, alive_until, ARGV.token, ARGV.owner))
  redis.call('PEXPIRE', queue, 60000) --@queue-expires
  keep(waiters, 60000)
  return state, tonumber(ticket)
end
