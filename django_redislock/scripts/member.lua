-- (shared piece) the member that `name`, the name of its lock, is made of
local member = string.match(name, '^[^:]*:[^:]*:(.*)$')
