    redis.call('SET', KEYS.lock, value, 'PX', ARGV.ttl)
