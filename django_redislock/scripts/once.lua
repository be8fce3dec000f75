-- (shared piece) a call that is sent again runs once; needs `call`, KEYS[1]: slot, ARGV[1]: number of the call in it.
-- A slot carries one call after the other. A lower number than its last one is a request that comes after its caller has
-- given up: nobody hears the answer.
local function once(work)
  local number, answer = string.match(call('GET', KEYS[1]) or '', '^(%d+) (.*)$')
  if number and tonumber(number) >= tonumber(ARGV[1]) then return answer end
  answer = work()
  call('SET', KEYS[1], ARGV[1] .. ' ' .. answer, 'PX', 60000)
  return answer
end
