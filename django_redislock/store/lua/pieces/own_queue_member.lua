-- (piece) the caller has joined the queue of this very member, which is not for those who want any as long as somebody
-- there looks, every 5 s at least.
--#include lock_member
local function note_queue()
  local patience = tonumber(string.match(ARGV.wait, '^p(%d+)$')) or 0
  local till = us + math.max(patience, 7000) * 1000
  redis.call('ZADD', KEYS.wanted, 'GT', string.format('%.0f', till), member)
end
