-- (piece) on a cluster, "@" and the id of the node that runs this, else "": the messages of a master of before come by
-- way of the new one, too (C3). Whoever may not ask is "@?".
--#include channel
local function sender(channel)
  if not sharded(channel) then return '' end
  local id = redis.pcall('CLUSTER', 'MYID')
  return '@' .. (type(id) == 'string' and id or '?')
end
