-- (piece) what a lock that only one can hold has in the place of a semaphore's permits.
--#include holder
local other_limit -- of those who asked before, if they have said another one
local function set_limit() end
local function count_free() return 1 end

-- the field of a waiters hash in which a handoff is remembered
local function handoff_field() return '!' end

-- in the index of held locks
local function list_until(ms) redis.call('ZADD', KEYS.index, us + ms * 1000, ARGV.name) end
local function unlist() redis.call('ZREM', KEYS.index, ARGV.name) end
