"""R15 and batches: where thousands wait, no script blocks Redis for long, and ``info()`` lists the first hundred.

The bounds are numbers of commands, as times depend on the machine. (For pools, see pools/test_bounds.py.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, force_release, list_locks
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost, Other
from tests.helpers.state import NAME, QUEUE, TOKEN, WAITERS, count
from tests.protocol.scene import LONG

MANY, FEW = 20_000, 5_000
MOST = 3_000  # commands of one script

ENTRIES = {
    "unknown": None,
    "of one process": "dead:channel 30000 0 - ghost",
    "of many processes": "dead:channel:{} 30000 0 - ghost",
    "who poll": "- 30000 0 - ghost",
    "malformed": "{}",
}


def fill(client: redis.Redis, entry: str | None, count: int = MANY) -> None:
    """Queue so many dead waiters."""
    ids = {f"forged-id-{number:012}": number + 1 for number in range(count)}
    client.zadd(QUEUE, ids)
    if entry is not None:
        client.hset(WAITERS, mapping={id: entry.format(number) for id, number in ids.items()})


class Meter:
    """The mean number of commands that each script has called, and what Redis has sent."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.scripts = self.sent = 0

    def __enter__(self) -> Meter:
        self.client.config_resetstat()
        return self

    def __exit__(self, *_: object) -> None:
        self.sent = int(self.client.info("stats")["total_net_output_bytes"])
        stats: dict[str, Any] = self.client.info("commandstats")
        found = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
        self.scripts = found.pop("evalsha", 0) + found.pop("eval", 0)
        assert sum(found.values()) <= MOST * self.scripts


@pytest.mark.parametrize(
    ("how", "kind", "number"),
    [
        *(("acquire", kind, FEW) for kind in ENTRIES),
        *((how, "of many processes", MANY) for how in ("acquire", "release", "force")),
    ],
)
def test_a_queue_of_dead_waiters_is_dropped_in_many_short_calls(
    how: str, kind: str, number: int, client: redis.Redis
) -> None:
    lock = Lock(NAME, ttl=LONG)
    if how != "acquire":
        lock.acquire()
    fill(client, ENTRIES[kind], number)
    with Meter(client) as meter:
        if how == "acquire":
            assert lock.acquire(blocking_timeout=GENEROUS)
        elif how == "release":
            lock.release()
        else:
            assert force_release(NAME)
    assert meter.scripts >= number / 600
    assert not client.exists(QUEUE, WAITERS)


def test_a_holder_that_comes_between_two_calls_of_a_force_release_keeps_the_lock(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, other: Callable[[], Other]
) -> None:
    newcomer, came = Lock(NAME, ttl=LONG), list[bool]()
    Lock(NAME, ttl=LONG).acquire()
    fill(client, ENTRIES["of one process"], FEW)

    def come() -> None:
        if not came:
            came.append(other()(newcomer.acquire))

    inside.after_each_call(monkeypatch, inside.FORCE, come)
    assert force_release(NAME)
    assert came == [True]
    assert newcomer.locked()


def test_info_reads_a_hundred_of_many_thousand_waiters_and_a_look_none(client: redis.Redis, crowd: Crowd) -> None:
    me, lock = crowd(), Lock(NAME, ttl=LONG)
    me(lock, "acquire")
    fill(client, ENTRIES["of many processes"])
    with Meter(client) as meter:
        info = me(lock, "info")
        assert (info.waiters, len(info.queue)) == (MANY, 100)
        assert list_locks()[0].waiters == MANY
    assert meter.sent < 100_000
    with Meter(client) as meter:
        assert not crowd()(Lock(NAME), "acquire", blocking_timeout=0.2)
    assert meter.scripts < 10
    assert client.zcard(QUEUE) == MANY


def test_an_answer_without_waiters_does_not_touch_the_queue(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    """For example, the answer of a refused request."""
    Lock(NAME).acquire()
    ghost().queue(TOKEN, name=NAME)
    before = count(client, "zrange"), count(client, "hmget")
    assert inside.own_process().info(NAME, 0)[5:] == [1, [], [], []]
    assert (count(client, "zrange"), count(client, "hmget")) == before
