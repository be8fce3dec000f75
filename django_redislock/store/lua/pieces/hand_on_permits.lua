-- (piece) passes the permits on that are free. Returns 1 when this must be called again.
--#include hand_over
local function hand_on()
  drop_ended()
  local free, verdict = count_free(), nil
  if --[[@permits-free]]free > 0--[[@or]]true--[[@]] then
    verdict = grant_next(KEYS.queue, KEYS.waiters, ARGV.name, free, nil, hand_over)
  end
  unlist()
  return verdict == 'more' and 1 or 0
end

-- after the caller has taken a permit: whatever more there is to be had
local function serve_rest() hand_on() end
