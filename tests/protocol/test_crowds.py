"""Many thousand entries, written by hand, where there are usually a few: no script blocks Redis for long.

The bounds are numbers of commands, as times depend on the machine. (For pools, see pools/test_bounds.py.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_redislock import Lock, force_release, get_lock, list_locks
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Other
from tests.helpers.state import NAME, QUEUE, WAITERS
from tests.protocol.scene import LONG, Eventually

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
    with client.pipeline(transaction=False) as pipe:
        for start in range(0, count, 5000):
            ids = {f"forged-id-{number:012}": number + 1 for number in range(start, start + 5000)}
            pipe.zadd(QUEUE, ids)
            if entry is not None:
                pipe.hset(WAITERS, mapping={id: entry.format(number) for id, number in ids.items()})
            pipe.execute()


class Meter:
    """The mean number of commands that each script has called."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.scripts = 0

    def __enter__(self) -> Meter:
        self.client.config_resetstat()
        return self

    def __exit__(self, *_: object) -> None:
        stats: dict[str, Any] = self.client.info("commandstats")
        found = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
        self.scripts = found.pop("evalsha", 0) + found.pop("eval", 0)
        assert sum(found.values()) <= MOST * self.scripts


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
@pytest.mark.parametrize("how", ["acquire", "release", "force"])
def test_a_queue_of_dead_waiters_is_dropped_in_many_short_calls(
    entry: str | None, how: str, client: redis.Redis
) -> None:
    lock, count = Lock(NAME, ttl=LONG), MANY if (how, entry) == ("acquire", ENTRIES["of many processes"]) else FEW
    if how != "acquire":
        lock.acquire()
    fill(client, entry, count)
    with Meter(client) as meter:
        if how == "acquire":
            assert lock.acquire(blocking_timeout=GENEROUS)
        elif how == "release":
            lock.release()
        else:
            assert force_release(NAME)
    assert meter.scripts >= count / 600
    assert not client.exists(QUEUE, WAITERS)


def test_a_holder_that_comes_between_two_calls_of_a_force_release_keeps_the_lock(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, other: Callable[[], Other]
) -> None:
    """It goes through a queue of dead waiters in several calls, and finds another holder at the second one."""
    newcomer = Lock(NAME, ttl=LONG)
    Lock(NAME, ttl=LONG).acquire()
    fill(client, ENTRIES["of one process"], FEW)
    came: list[bool] = []

    def come() -> None:
        if not came:
            came.append(other()(newcomer.acquire))

    inside.after_each_call(monkeypatch, inside.FORCE, come)
    assert force_release(NAME)
    assert came == [True]
    assert newcomer.locked()


def test_info_reads_a_hundred_of_many_thousand_waiters(client: redis.Redis) -> None:
    Lock(NAME, ttl=LONG).acquire()
    fill(client, ENTRIES["of many processes"])
    with Meter(client):
        info = get_lock(NAME)
        assert info is not None
        assert (info.waiters, len(info.queue)) == (MANY, 100)
        assert list_locks()[0].waiters == MANY


def test_a_look_at_a_held_lock_does_not_read_its_whole_queue(client: redis.Redis, crowd: Crowd) -> None:
    Lock(NAME, ttl=LONG).acquire()
    fill(client, ENTRIES["of many processes"])
    me = crowd()
    with Meter(client) as meter:
        assert not me(Lock(NAME), "acquire", blocking_timeout=0.2)
    assert meter.scripts < 10
    assert client.zcard(QUEUE) == MANY


@pytest.fixture
def turns() -> Iterator[list[str]]:
    """Lock something else all the time; one entry for each time: what went wrong, if anything."""
    turns: list[str] = []
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            try:
                with Lock("other", blocking_timeout=0):
                    turns.append("")
            except Exception as error:
                turns.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    yield turns
    ended.set()
    thread.join()


def test_other_locks_can_be_used_meanwhile(client: redis.Redis, turns: list[str], eventually: Eventually) -> None:
    fill(client, ENTRIES["of many processes"])
    eventually(lambda: turns)
    before = len(turns)
    assert Lock(NAME).acquire(blocking_timeout=GENEROUS)
    assert len(turns) >= before + 5  # in between its forty calls
    assert not any(turns)
