-- (piece) whether nobody waits any more where the entry of a waiter is from.
--   absent   channels, and whether nobody listens there: what this call has found out
--#include channel
--#include waiter
local function is_dead(channel, alive_until, absent)
  if not channel then return true end
  if channel == '-' then return --[[@polling-dies]]us >= alive_until--[[@or]]false--[[@]] end
  if absent[channel] == nil then absent[channel] = nobody_listens(channel) end
  return absent[channel]
end
