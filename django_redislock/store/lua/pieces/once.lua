-- (piece) a call that is sent again runs once. A slot carries one call after the other. A lower number than its last
-- one is a request that comes after its caller has given up: nobody hears the answer.
local function once(work)
  local number, answer = string.match(redis.call('GET', KEYS.slot) or '', '^(%d+) (.*)$')
  if number and tonumber(number) >= tonumber(ARGV.number) then return answer end
  answer = work()
  if type(answer) == 'table' then return answer end -- an error
  redis.call('SET', KEYS.slot, ARGV.number .. ' ' .. answer, 'PX', 60000)
  return answer
end
