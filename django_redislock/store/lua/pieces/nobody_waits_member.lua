-- (piece) whether nobody waits for what is given back: somebody may want any member.
local nobody_waits = false
