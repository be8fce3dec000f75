-- (piece) acquire where nobody has the lock and nobody waits.
--#include clock
idle = redis.call('EXISTS', --[[@idle-lock]]KEYS.lock, --[[@]]--[[@idle-queue]]KEYS.queue, --[[@]]--[[@idle-waiters]]KEYS.waiters, --[[@]]KEYS.gone) == 0
local nobody = idle
--#include acquire_fast
