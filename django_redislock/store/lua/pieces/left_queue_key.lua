-- (piece) the caller has left the queue of this lock.
local function note_leave() end
