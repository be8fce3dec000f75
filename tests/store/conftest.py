"""Fixtures of the tests of the store."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import django_redislock
from django_redislock import Lock
from tests.helpers.actors import GENEROUS, Crowd, until
from tests.inside import limit

Exercise = Callable[[], None]


@pytest.fixture
def exercise(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> Exercise:
    """Use all connections of a lock: acquire, queue, hand over, confirm, look, extend."""
    limit(monkeypatch, look_every=1000.0)  # waiters must be told

    def exercise() -> None:
        me, you = crowd(), crowd()
        lock, following = Lock("a", ttl=60), Lock("a", ttl=60)
        me(lock, "acquire")
        waiting = you.start(following, "acquire", blocking_timeout=GENEROUS)
        until(lambda: me(lock, "info").waiters == 1)
        assert [info.name for info in me(django_redislock, "list_locks")] == ["a"]
        assert me(lock, "extend", 60)
        assert me(lock, "owned")
        fence = me.read(lambda: lock.fence)
        me(lock, "release")
        assert waiting.result(GENEROUS) is True  # the listener
        assert you.read(lambda: following.fence) > fence
        until(lambda: you(following, "info").lease_left > 30)  # the watchdog: a handoff has 20 s at first
        you(following, "release")
        assert me(django_redislock, "list_locks") == []

    return exercise


def all_at_once(work: Callable[[int], object], count: int) -> None:
    """Run ``work`` in so many threads that all begin together."""
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait(60)
        work(number)

    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(run, number) for number in range(count)]:
            done.result(60)


def use(number: int) -> None:
    for _ in range(5):
        with Lock(f"a:{number}"):
            pass


async def ause(number: int) -> None:
    async with Lock(f"a:{number}"):
        pass
