-- (piece) milliseconds for which the keys of a semaphore outlive all leases: whoever looks at the end of one must find a
-- handoff that ran out unheard
local SPARE = 5000
