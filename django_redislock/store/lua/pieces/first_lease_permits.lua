-- (piece) the first permit, written as write_lock() does
    redis.call('HSET', KEYS.permits, ':', ARGV.limit, ARGV.id, value)
    redis.call('ZADD', KEYS.ends, us + ARGV.ttl * 1000, ARGV.id)
    redis.call('PEXPIRE', KEYS.permits, ARGV.ttl + SPARE)
    redis.call('PEXPIRE', KEYS.ends, ARGV.ttl + SPARE)
