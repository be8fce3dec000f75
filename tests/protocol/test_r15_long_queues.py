"""R15: ``info()`` returns how many wait, and the first hundred of them."""

from __future__ import annotations

from collections.abc import Callable

import redis

from django_redislock import Lock
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time
from tests.helpers.state import NAME, QUEUE, TOKEN, WAITERS, count


def bytes_sent(client: redis.Redis) -> int:
    return int(client.info("stats")["total_net_output_bytes"])


def test_info_counts_ten_thousand_waiters_and_fetches_a_hundred(
    ghost: Callable[..., Ghost], crowd: Crowd, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    ghost().queue(f"{TOKEN}-0", name=NAME, age=GENEROUS)
    entry = client.hget(WAITERS, f"{TOKEN}-0")
    assert isinstance(entry, bytes)
    now = server_time(client)
    ids = [f"{TOKEN}-{number}" for number in range(10_000)]
    client.zadd(QUEUE, {id: now + number for number, id in enumerate(ids[1:])})
    client.hset(WAITERS, mapping=dict.fromkeys(ids, entry))
    before = bytes_sent(client)
    info = me(lock, "info")
    assert (info.waiters, len(info.queue)) == (10_000, 100)
    assert info.queue[0].waited > GENEROUS - 1
    assert bytes_sent(client) - before < 100_000


def test_an_answer_without_waiters_does_not_touch_the_queue(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    """For example, the answer of a refused request."""
    Lock(NAME).acquire()
    ghost().queue(TOKEN, name=NAME)
    before = count(client, "zrange"), count(client, "hmget")
    assert inside.own_process().info(NAME, 0)[5:] == [1, [], [], []]
    assert (count(client, "zrange"), count(client, "hmget")) == before
