-- (piece) the caller has joined the queue of this lock.
local function note_queue() end
