-- (piece) the server's clock, in microseconds. Lua's numbers hold it exactly, but as text it must be written by
-- string.format('%.0f'): every other way rounds it
local clock = redis.call('TIME')
local us = clock[1] * 1000000 + clock[2]
