-- (piece) more stubs for a lock that only one can hold, which the fast paths do not need: making a function takes time.
local function adopt_limit() end
local function count_free() return 1 end
local function serve_rest() end

-- the field of a waiters hash in which a handoff is remembered
local function handoff_field() return '!' end
