-- (piece) the grant of a lock that nobody has and nobody waits for. It is written out, since each function that a script
-- makes or calls costs time: for the others, next_fence() and grant() do the same. One in eight goes their way, and
-- sweeps the index.
if nobody and us % 8 ~= 0 and --[[@fence-time]]--[[@fence-us]]tonumber(ARGV.known) < us--[[@or]]false--[[@]]--[[@or]]false--[[@]] --[[@adopt-only-free]]and ARGV.wait ~= 'a' --[[@]]then
  local fence = string.format('%.0f', us)
  local before = redis.call('SET', KEYS.fence, fence, 'GET')
  local last = tonumber(before or 0)
  if last --[[@fence-grows]]and last < us --[[@]]then
    local value = ARGV.id .. ' ' .. ARGV.channel .. ' c ' .. fence .. ' ' .. fence .. ' ' .. ARGV.token .. ' ' .. ARGV.owner
--#include @first_lease
    redis.call('ZADD', KEYS.index, us + ARGV.ttl * 1000, ARGV.name)
    return {1, us, us, tonumber(ARGV.ttl)}
  end
  redis.call('SET', KEYS.fence, before) -- the clock is behind, or this is no fence: next_fence() knows what to do
end
