-- (piece) the value of a held lock: `id channel flag fence since token owner`, all of it text.
--   id       of the attempt that was granted the lock: never used twice
--   channel  of its process; '-': it listens to nothing, so nobody can tell it anything, or find out that it is gone
--   flag     c: confirmed, a: adopted, d: detached, h: handed over and not yet confirmed, p: the same by the line of
--            a pool; s: nobody holds the lock, it is suspended. Its id, channel and token are '-'
--   since    server time of the grant, in microseconds
--   token    by which others may adopt or release the lock; '-': the same as the id
--   owner    for people; a note may follow behind a line feed

--#include clock
local function holder_value(id, channel, flag, fence, since, token, owner)
  return id .. ' ' .. channel .. ' ' .. flag .. ' ' .. fence .. ' ' .. since .. ' ' .. token .. ' ' .. owner
end

-- nil for what somebody else has written: whoever that is holds the lock
local function parse_holder(value)
  local id, channel, flag, fence, since, token, owner =
    string.match(value, '^(%S+) (%S+) (%S) (%d+) (%d+) (%S+) (.*)$')
  if id and #fence < 17 then return id, channel, flag, fence, since, token, owner end
end
