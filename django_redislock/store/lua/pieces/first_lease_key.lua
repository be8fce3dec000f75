-- (piece) the lock, written as write_lock() does
    redis.call('SET', KEYS.lock, value, 'PX', ARGV.ttl)
