-- (shared piece) puts who asks into the queue, unless it does not wait or is `over`; sets `state` and `ticket`
local state = 0
if ARGV[7] ~= '0' and not over then
  local patience, till = string.match(ARGV[7], '^p(%d+)$'), '0'
  if ticket == '' then ticket = next_fence() end
  -- a waiter that was dropped, and lives: the others of its process may have been as well
  if call('ZADD', queue, ticket, token) == 1 and ARGV[8] ~= '' then state = 5 end
  -- whoever asks from this channel is alive, whatever an old handoff says
  local marks = call('HGET', waiters, '!')
  if marks then
    local at, to = string.find(marks, channel, 1, true)
    if at then
      marks = string.sub(marks, 1, at - 1) .. (at == 1 and '-' or '') .. string.sub(marks, to + 1)
      if string.find(marks, ':', 1, true) then call('HSET', waiters, '!', marks) else call('HDEL', waiters, '!') end
    end
  end
  if patience then channel, till = '-', string.format('%.0f', us + patience * 1000) end
  call('HSET', waiters, token, mode .. ' ' .. channel .. ' ' .. ttl .. ' ' .. till .. ' ' .. owner)
  call('PEXPIRE', queue, 60000)
  call('PEXPIRE', waiters, 60000)
end
