-- (piece) the member is free: passes it on, to those who queue for this very member, else to those who want any,
-- unless it is suspended. Returns 1 when this must be called again.
--#include hand_over
--#include line
local function hand_on()
  if suspends() then return 0 end
  local verdict, handed = grant_next(KEYS.queue, KEYS.waiters, ARGV.name, 1, nil, hand_over)
  if verdict == 'take' then
    redis.call('ZREM', KEYS.wanted, member)
    give_back(member)
  elseif handed == 0 then
    look_at_soon(member) -- it is left for one that polls, and may die
  end
  if verdict ~= 'more' then
    sweep()
    verdict = serve()
  end
  return verdict == 'more' and 1 or 0
end
