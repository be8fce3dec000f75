-- (piece) the entry of a waiter in the waiters hash: `channel ttl alive_until token owner`.
--   channel      of its process; '-': it polls, and nobody can tell it anything
--   alive_until  server time up to which one that polls counts as alive; 0 for all others
--#include time
local function waiter_entry(channel, ttl, alive_until, token, owner)
  return channel .. ' ' .. ttl .. ' ' .. alive_until .. ' ' .. token .. ' ' .. owner
end

-- nil for what none of ours can have written: a lease that Redis refuses, or one who claims to live for longer than
-- anybody does unseen
local function parse_waiter(entry)
  local channel, ttl, alive_until, token, owner = string.match(entry or '', '^(%S+) (%d+) (%d+) (%S+) (.*)$')
  if channel and #ttl <= 12 and tonumber(ttl) >= 1 and tonumber(alive_until) <= us + 61000000 then
    return channel, ttl, tonumber(alive_until), token, owner
  end
end
