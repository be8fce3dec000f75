"""Fixtures of the tests of the store."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_redislock import Lock
from tests.helpers.actors import Crowd
from tests.helpers.operations import use_lock
from tests.inside import limit

Exercise = Callable[[], None]


@pytest.fixture
def exercise(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> Exercise:
    """Use all connections of a lock: those of commands, the listener's, and the watchdog's."""
    limit(monkeypatch, look_every=1000.0)  # waiters must be told
    return lambda: use_lock(crowd, "a")


def use_by_many() -> None:
    """Locks in eight threads at once."""

    def use(number: int) -> None:
        for _ in range(5):
            with Lock(f"a:{number}"):
                pass

    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(use, range(8)):
            pass


async def ause(number: int) -> None:
    async with Lock(f"a:{number}"):
        pass
