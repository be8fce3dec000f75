-- (piece) R4: a process that is paused counts as there, and each handoff to it costs a lease. Field '!' of a waiters
-- hash names the channel that the last handoff went to, until that is confirmed or given back ('!' and the member in
-- that of a pool, where several may be under way). Found where the lock is free, it means that the lease ran out
-- without a sign of life. Its channel then joins the suspects, field '?', whose waiters are dropped when their turn
-- comes; the living come back with their tickets, and whoever asks from a channel clears it.
local MOST_SUSPECTS = 16
local unheard = 0 -- 1: a handoff to the process that asks ran out, though it lives

-- whoever asks lives; nothing is handed to one who polls
local function is_suspect(suspects, channel)
  return channel ~= ARGV.channel and channel ~= '-' and string.find(suspects, channel, 1, true)
end

-- returns the longer list
local function add_suspect(waiters, suspects, channel)
  if channel == ARGV.channel then unheard = 1 end
  if channel == ARGV.channel or is_suspect(suspects, channel) then return suspects end
  local listed, count = channel, 1
  for other in string.gmatch(suspects, '%S+') do
    count = count + 1
    if count <= MOST_SUSPECTS then listed = listed .. ' ' .. other end
  end
  redis.call('HSET', waiters, '?', listed)
  return listed
end

-- this process asks, so it is alive, whatever its handoffs say
local function clear_suspect(waiters)
  if ARGV.channel == '-' then return end
  local mark, suspects = unpack(redis.call('HMGET', waiters, '!', '?'))
  if mark == ARGV.channel then redis.call('HDEL', waiters, '!') end --@look-confirms
  if not suspects then return end
  local from, to = string.find(suspects, ARGV.channel, 1, true)
  if not from then return end
  unheard = 1
  local others = suspects
  others = string.sub(suspects, 1, from - 1) .. string.sub(suspects, to + 1) --@suspects-clear
  if string.find(others, '%S') then
    redis.call('HSET', waiters, '?', others)
  else
    redis.call('HDEL', waiters, '?')
  end
end
