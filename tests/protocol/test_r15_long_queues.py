"""R15 and batches: where thousands wait, no script blocks Redis for long, and ``info()`` lists the first hundred.

The bounds are numbers of commands, as times depend on the machine. (For pools, see pools/test_members.py.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from django_redislock import Lock, force_release, list_locks
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import NAME, QUEUE, WAITERS
from tests.inside import own_process
from tests.protocol.scene import LONG

MANY, FEW = 20_000, 5_000
MOST = 3_000  # commands of one script

ENTRIES = {
    "unknown": None,
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


@contextmanager
def short_scripts(client: redis.Redis) -> Iterator[list[int]]:
    """At the end, the list has the number of scripts that were called in the block; on average, all were short."""
    number: list[int] = []
    client.config_resetstat()
    yield number
    stats: dict[str, Any] = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
    number.append(calls.pop("evalsha", 0) + calls.pop("eval", 0))
    assert sum(calls.values()) <= MOST * number[0]


@pytest.mark.parametrize(
    ("how", "kind"), [("acquire", kind) for kind in ENTRIES] + [(how, "unknown") for how in ("release", "force")]
)
def test_a_queue_of_dead_waiters_is_dropped_in_many_short_calls(how: str, kind: str, client: redis.Redis) -> None:
    lock = Lock(NAME, ttl=LONG)
    if how != "acquire":
        lock.acquire()
    fill(client, ENTRIES[kind], FEW)
    with short_scripts(client) as scripts:
        if how == "acquire":
            assert lock.acquire(blocking_timeout=GENEROUS)
        elif how == "release":
            lock.release()
        else:
            assert force_release(NAME)
    assert scripts[0] >= FEW / 600
    assert not client.exists(QUEUE, WAITERS)


def test_info_reads_a_hundred_of_many_thousand_waiters_and_a_look_none(client: redis.Redis, crowd: Crowd) -> None:
    me, lock = crowd(), Lock(NAME, ttl=LONG)
    me(lock, "acquire")
    fill(client, ENTRIES["of many processes"])
    with short_scripts(client) as scripts:
        info = me(lock, "info")
        assert (info.waiters, len(info.queue)) == (MANY, 100)
        assert own_process().info(NAME, 0)[5:] == [MANY, [], [], []]  # for those who do not ask for them
        assert list_locks()[0].waiters == MANY
        assert int(client.info("stats")["total_net_output_bytes"]) < 100_000
    with short_scripts(client) as scripts:
        assert not crowd()(Lock(NAME), "acquire", blocking_timeout=0.2)
    assert scripts[0] < 10
    assert client.zcard(QUEUE) == MANY
