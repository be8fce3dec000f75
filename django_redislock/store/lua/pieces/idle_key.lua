-- (piece) whether nobody has the lock or waits for it, and no handoff of it has run out.
local idle = redis.call('EXISTS', --[[@idle-lock]]KEYS.lock, --[[@]]--[[@idle-queue]]KEYS.queue, --[[@]]--[[@idle-waiters]]KEYS.waiters, --[[@]]KEYS.gone) == 0
