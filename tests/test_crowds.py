"""A hundred thousand entries, written by hand, where there are a few: no script keeps Redis from others for long.

What is bounded is counted in commands: how long they take depends on the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_redislock import FairLock, Lock, LockNotAcquired, LockPool, force_release, get_lock, list_locks, scripts
from django_redislock.connection import Backend, Command
from django_redislock.steps import Steps

from .actors import GENEROUS, KEYS, NAME, Other

MANY, FEW = 100_000, 5_000
PREFIX = "redislock{0}:"
MOST = 3_000  # commands of one script


def fill(client: redis.Redis, entry: str | None, count: int = MANY) -> None:
    """Queue so many: each is its own process, if any, and dead."""
    with client.pipeline(transaction=False) as pipe:
        for start in range(0, count, 5000):
            tokens = {f"forged-token-{number:010d}": number + 1 for number in range(start, start + 5000)}
            pipe.zadd(KEYS.queue, tokens)
            if entry is not None:
                entries = {token: entry.format(number) for token, number in tokens.items()}
                pipe.hset(KEYS.waiters, mapping=entries)  # type: ignore[arg-type]
            pipe.execute()


class Meter:
    """How many commands the scripts call, each of them, at most."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def __enter__(self) -> Meter:
        self.client.config_resetstat()
        return self

    def __exit__(self, *_: object) -> None:
        stats: dict[str, Any] = self.client.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
        self.scripts = calls.pop("evalsha", 0) + calls.pop("eval", 0)
        self.commands = sum(calls.values())
        assert self.commands <= MOST * self.scripts


ENTRIES = {
    "unknown": None,
    "of one process": "F dead:channel 30000 0 ghost",
    "of many processes": "F dead:channel:{} 30000 0 ghost",
    "Lock": "L dead:channel:{} 30000 0 ghost",
    "polled": "L - 30000 0 ghost",
    "malformed": "{}",
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
@pytest.mark.parametrize("how", ["acquire", "release", "force"])
def test_a_queue_of_the_dead_is_dropped_in_many_short_calls(entry: str | None, how: str, client: redis.Redis) -> None:
    lock, count = Lock(NAME, ttl=600), MANY if entry == ENTRIES["of many processes"] else FEW
    if how != "acquire":
        lock.acquire()
    fill(client, entry, count)
    with Meter(client) as meter:
        if how == "acquire":
            assert FairLock(NAME).acquire(blocking_timeout=GENEROUS)
        elif how == "release":
            lock.release()
        else:
            assert force_release(NAME)
    assert meter.scripts >= count / 600
    assert not client.exists(KEYS.queue, KEYS.waiters)


def test_who_comes_between_two_calls_of_a_release_by_force_keeps_the_lock(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, other: Callable[[], Other]
) -> None:
    """It goes through a queue of the dead, in several calls, and finds somebody else's lock at the second one."""
    newcomer, execute = Lock(NAME, ttl=600), scripts.execute
    Lock(NAME, ttl=600).acquire()
    fill(client, ENTRIES["of one process"], FEW)
    came: list[bool] = []

    def slow(backend: Backend, command: Command, *args: Any, **options: Any) -> Steps[scripts.Reply]:
        reply = yield from execute(backend, command, *args, **options)
        if scripts._FORCE.sha in command and not came:
            came.append(other()(newcomer.acquire))
        return reply

    monkeypatch.setattr(scripts, "execute", slow)
    assert force_release(NAME)
    assert came == [True]
    assert newcomer.locked()


def test_whoever_looks_reads_a_hundred_of_a_hundred_thousand(
    client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    with Lock(NAME, ttl=600):
        fill(client, "F dead:channel:{} 30000 0 ghost")
        with Meter(client):
            info = get_lock(NAME)
            assert info is not None
            assert (info.waiters, len(info.queue)) == (MANY, 100)
            assert list_locks()[0].waiters == MANY
            call_command("redislocks", "show", NAME)
        assert f"... and {MANY - 100} more" in capsys.readouterr().out
        client.delete(KEYS.queue, KEYS.waiters)


def test_a_look_at_a_held_lock_does_not_go_through_its_queue(client: redis.Redis, other: Callable[[], Other]) -> None:
    other()(Lock(NAME, ttl=600).acquire)
    fill(client, "F dead:channel:{} 30000 0 ghost")
    with Meter(client) as meter, pytest.raises(LockNotAcquired), FairLock(NAME, blocking_timeout=0.2):
        pass
    assert meter.scripts < 10
    assert client.zcard(KEYS.queue) == MANY


@pytest.fixture
def others(client: redis.Redis) -> Iterator[list[str]]:
    """Somebody who locks something else all the time; the list of what went wrong."""
    wrong: list[str] = []
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            try:
                with Lock("other", blocking_timeout=0):
                    pass
            except Exception as error:
                wrong.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    yield wrong
    ended.set()
    thread.join()


def test_other_locks_go_on_meanwhile(client: redis.Redis, others: list[str]) -> None:
    fill(client, "F dead:channel:{} 30000 0 ghost")
    assert FairLock(NAME).acquire(blocking_timeout=GENEROUS)
    assert others == []


def test_a_pool_whose_members_are_all_locked_by_their_names_is_looked_through_in_short_calls(
    client: redis.Redis,
) -> None:
    pool = LockPool("accounts")
    members = [f"member-{number:04}" for number in range(5000)]  # unused ones come in the order of their names
    pool.assign(members)
    with client.pipeline(transaction=False) as pipe:
        for member in members[:-1]:
            pipe.set(f"{PREFIX}lock:pool:accounts:{member}", f"{'x' * 22} c c 1 1 owner", px=600_000)
        pipe.execute()
    with Meter(client) as meter, pool.acquire(blocking_timeout=GENEROUS) as taken:
        assert taken.key == "member-4999"
    assert meter.scripts >= 5000 / 200
