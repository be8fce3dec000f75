"""Locks as old code takes them, while ours take the same keys."""

from typing import Any

import pytest
import redis

from tests.faults.worker import OLD

KEYS = {"redis-py": "{}", "django-redis": ":1:{}", "python-redis-lock": "lock:{}"}


class Old:
    """Old code of one kind."""

    def __init__(self, kind: str, client: redis.Redis) -> None:
        self.kind, self.client = kind, client

    def lock(self, name: str, timeout: float | None = None) -> Any:
        return OLD[self.kind](self.client, name, timeout=timeout, sleep=0.001)

    def held(self, name: str, timeout: float | None = None) -> Any:
        lock = self.lock(name, timeout)
        assert lock.acquire(blocking=False)
        return lock

    def key(self, name: str) -> str:
        return KEYS[self.kind].format(name)

    def is_free(self, name: str) -> bool:
        """As old code finds it."""
        lock = self.lock(name)
        if not lock.acquire(blocking=False):
            return False
        lock.release()
        return True


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, settings: Any, client: redis.Redis) -> Old:
    """The setting is on."""
    settings.REDISLOCK = {"ALSO_LOCK": request.param}
    return Old(request.param, client)


@pytest.fixture
def plain(settings: Any, client: redis.Redis) -> Old:
    """The same where it does not matter which kind it is."""
    settings.REDISLOCK = {"ALSO_LOCK": "redis-py"}
    return Old("redis-py", client)
