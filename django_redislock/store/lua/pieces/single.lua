-- (piece) stubs for a lock that only one can hold: what each script needs. See one_permit
--#include holder
local limit_before -- never set: such a lock has no limit
local function set_limit() end

-- in the index of held locks
local function list_until(ms) redis.call('ZADD', KEYS.index, us + ms * 1000, ARGV.name) end
local function unlist() redis.call('ZREM', KEYS.index, ARGV.name) end
