-- (piece) a waiters hash stays for at least so many milliseconds; longer where a suspension is planned in it.
local function keep(waiters, ms)
  if redis.call('PTTL', waiters) < ms then redis.call('PEXPIRE', waiters, ms) end
end
