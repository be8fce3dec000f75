-- (piece) the lock is a key of its own, which Redis deletes when the lease ends.
--#include single
local erased_flag -- flag of the lock that this script has taken from its holder, if any

-- not MGET or EXISTS, which do not tell a key of another type from a lock
local function read_lock() return redis.call('GET', KEYS.lock) end

local function write_lock(value, ms) redis.call('SET', KEYS.lock, value, 'PX', ms) end

local function erase_lock(flag)
  redis.call('DEL', KEYS.lock)
  erased_flag = flag --@erased-no-suspect
end

-- whether nobody waits for what is given back, and no suspension of it is planned
local function nobody_waits() return redis.call('EXISTS', KEYS.queue, KEYS.waiters) == 0 end
