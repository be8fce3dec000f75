"""Idle connections are closed after a while, and a process has a bounded number of them."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import Lock
from django_redislock.engine.renewal import watchdog
from django_redislock.store import loop_connections, thread_connections
from django_redislock.store.stores import get_store
from tests import inside
from tests.helpers.actors import Other

Eventually = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("own_pools")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections are closed soon."""
    monkeypatch.setattr(thread_connections, "IDLE_FOR", 0.0)
    monkeypatch.setattr(loop_connections, "IDLE_FOR", 0.0)
    monkeypatch.setattr(watchdog, "IDLE_LOOK", 0.05)


def idle() -> int:
    return sum(len(node.idle) for node in get_store().nodes)


def test_a_process_that_was_busy_and_is_quiet_keeps_one_connection(
    impatient: None, other: Callable[[], Other], eventually: Eventually
) -> None:
    threads = [other() for _ in range(8)]
    locks = [Lock(f"a:{number}", ttl=60) for number in range(8)]
    with get_store()._thread_connections._mutex:  # so that each has to connect
        asking = [thread.start(lock.acquire) for thread, lock in zip(threads, locks, strict=True)]
    assert all(future.result(30) for future in asking)
    eventually(lambda: idle() == 1)
    for thread, lock in zip(threads, locks, strict=True):
        thread(lock.release)


def test_a_quiet_event_loop_keeps_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "IDLE_LOOK", 0.05)

    async def main() -> None:
        locks = [Lock(f"a:{number}", ttl=60) for number in range(8)]
        await asyncio.gather(*(lock.aacquire() for lock in locks))
        (connections,) = get_store()._loops.values()
        assert len(inside.idle(connections)) > 1
        monkeypatch.setattr(loop_connections, "IDLE_FOR", 0.0)
        for _ in range(1000):
            if len(inside.idle(connections)) == 1:
                break
            await asyncio.sleep(0.03)
        assert len(inside.idle(connections)) == 1
        get_store().trim()  # the last one stays
        await asyncio.sleep(0)
        assert len(inside.idle(connections)) == 1

    asyncio.run(main())


def test_a_connection_that_somebody_takes_meanwhile_is_not_closed() -> None:
    class Taken(deque[Any]):
        """It seemed to have a connection."""

        lengths = [1, 0]

        def __bool__(self) -> bool:
            return True

        def __len__(self) -> int:
            return self.lengths.pop(0)

    assert not list(thread_connections.surplus([Taken()], 0, (), math.inf))


def test_connections_in_use_are_not_closed() -> None:
    nothing: deque[tuple[object, float]] = deque()
    assert not list(thread_connections.surplus([nothing], 1, [object(), object()], math.inf))


def test_the_setting_bounds_the_connections(settings: Any) -> None:
    settings.REDISLOCK = {"MAX_CONNECTIONS": 3, "KEY_PREFIX": "few"}
    assert get_store().bound == 3
