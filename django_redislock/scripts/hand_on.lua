-- (shared piece) passes on the lock that has become free: to those who queue for it, else to those who queue for its pool;
-- needs `grant` and what that needs. Answers 1 when dead waiters remain: call again
--#include pass_on
local function hand_on(alive)
  local verdict = pass_on(queue, waiters, name, true, nil, nil, alive)
  if KEYS[7] then
    --#include grant_member
    --#include pool
    if verdict == 'take' then give_back(string.sub(name, #stem + 1)) end
    if verdict ~= 'more' then
      sweep()
      verdict = serve(nil, nil, alive)
    end
  end
  return verdict == 'more' and 1 or 0
end
