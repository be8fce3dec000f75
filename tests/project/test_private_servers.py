"""The servers that tests and benchmarks start for themselves."""

from __future__ import annotations

from redisserver import RedisServer, redis_server


def test_a_port_that_was_taken_meanwhile_is_not_used() -> None:
    with redis_server() as other:
        other.client().set("key", "theirs")
        server = RedisServer()
        server.port = other.port
        try:
            server.start()
            assert server.port != other.port
            assert server.client().get("key") is None
        finally:
            server.close()
