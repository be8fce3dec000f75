-- (piece) the lock is a member of a pool, and a field of the pool's keys.
--#include members
--#include single
local member = string.sub(ARGV.name, #stem + 1)

local function read_lock() return read_member(member) end

local function write_lock(value, ms) hold_member(member, value, ms) end

local function erase_lock(flag)
  vacate(member, redis.call('HGET', KEYS.held, member))
  erased_flag = flag
  if flag == 'p' then redis.call('HDEL', KEYS.line_waiters, '!' .. member) end
end

-- whether nobody has the member or waits for this very one, and no handoff of it has run out
local function is_idle(gone) return redis.call('EXISTS', KEYS.queue, KEYS.waiters, gone) == 0 and not read_lock() end

local function nobody_waits() return false end -- somebody may want any member
