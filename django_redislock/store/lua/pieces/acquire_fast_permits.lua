-- (piece) acquire where nobody has a permit and nobody waits.
--#include clock
if redis.call('EXISTS', KEYS.ends, KEYS.queue, KEYS.waiters, KEYS.gone) == 0 then idle = true end
--#include acquire_fast
