-- (piece) acquire where nobody has a permit and nobody waits.
--#include clock
--#include spare
local nobody = redis.call('EXISTS', KEYS.ends, KEYS.queue, KEYS.waiters, KEYS.gone) == 0
--#include acquire_fast
