-- (piece) as write_lock() does where nobody has a permit
    redis.call('HSET', KEYS.permits, ':', ARGV.limit, ARGV.id, value)
    redis.call('ZADD', KEYS.ends, us + ARGV.ttl * 1000, ARGV.id)
    redis.call('PEXPIRE', KEYS.permits, ARGV.ttl + 5000)
    redis.call('PEXPIRE', KEYS.ends, ARGV.ttl + 5000)
