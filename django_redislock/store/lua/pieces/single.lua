-- (piece) stubs for a lock that only one can hold.
--#include holder
local limit_before -- never set: such a lock has no limit
local function set_limit() end
local function adopt_limit() end
local function count_free() return 1 end
local function serve_rest() end

-- the field of a waiters hash in which a handoff is remembered
local function handoff_field() return '!' end

-- in the index of held locks
local function list_until(ms) redis.call('ZADD', KEYS.index, us + ms * 1000, ARGV.name) end
local function unlist() redis.call('ZREM', KEYS.index, ARGV.name) end
