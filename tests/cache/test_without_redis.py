"""``cache.lock()`` in tests without Redis: on our ``LocMemCache``, and on the fakeredis of a site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
from django.core.cache import cache, caches
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from redis.exceptions import LockNotOwnedError

from django_redislock import Lock, LockStatus, list_locks
from django_redislock.cache import RedisCache
from django_redislock.testing import assert_locked, assert_not_locked, hold, own_locks
from tests.cache.test_backend import by_tenant
from tests.helpers.actors import Crowd

pytestmark = [
    pytest.mark.filterwarnings("ignore:FakeConnection is deprecated"),
    pytest.mark.usefixtures("own_pools"),
]

NOWHERE = "redis://127.0.0.1:1/0"
FAKES = {"function": fakeredis.FakeConnection, "class": fakeredis.FakeRedisConnection}
LOCMEM = {"BACKEND": "django_redislock.cache.LocMemCache"}


def on_fakeredis(backend: str, kind: Any) -> dict[str, Any]:
    options = {"connection_class": kind}
    if backend != "django.core.cache.backends.redis.RedisCache":
        options = {"CONNECTION_POOL_KWARGS": options}
    return {"BACKEND": backend, "LOCATION": NOWHERE, "OPTIONS": options}


WAYS = {
    "LocMemCache": LOCMEM,
    **{f"fakeredis-{name}": on_fakeredis("django_redislock.cache.RedisCache", kind) for name, kind in FAKES.items()},
}
each_way = pytest.mark.parametrize("_default", WAYS.values(), ids=WAYS, indirect=True)

ours: Any = cache


@pytest.fixture(autouse=True)
def _default(request: pytest.FixtureRequest, settings: Any) -> None:
    settings.CACHES = {"default": getattr(request, "param", LOCMEM)}


@each_way
def test_it_is_a_cache_with_our_locks(eventually: Callable[..., Any]) -> None:
    ours.set("x", 1)
    with ours.lock("x", timeout=60):
        assert (ours.get("x"), Lock("x").status()) == (1, LockStatus.UNAVAILABLE)
        assert not ours.lock("x", timeout=60).acquire(blocking_timeout=0.05)
        assert [lock.name for lock in list_locks()] == ["x"]
    left = ours.lock("x", timeout=0.05)
    assert left.acquire()
    eventually(lambda: not left.locked())
    with pytest.raises(LockNotOwnedError):
        left.release()
    assert ours.locked_get_or_set("computed", lambda: 7) == ours.get("computed") == 7


@each_way
async def test_it_computes_values_for_coroutines_too() -> None:
    async def compute() -> int:
        return 7

    assert await ours.alocked_get_or_set("computed", compute) == 7


@each_way
def test_the_helpers_for_tests_work() -> None:
    with own_locks():
        with hold("x"):
            assert not ours.lock("x").acquire(blocking=False)
        with ours.lock("x"):
            assert_locked("x")
        assert_not_locked("x")


@pytest.mark.parametrize("options", [{}, {"VERSION": 2, "KEY_PREFIX": "a"}, {"KEY_FUNCTION": by_tenant}])
def test_the_names_of_locks_are_those_on_redis(options: dict[str, Any], settings: Any) -> None:
    settings.CACHES = {
        "default": {**LOCMEM, "LOCATION": "a", **options},
        "redis": {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": NOWHERE, **options},
    }
    redis: Any = caches["redis"]
    assert isinstance(redis, RedisCache)
    for arguments in (["x"], ["x", 7], ["x y\n"], [42]):
        assert ours.lock(*arguments).name == redis.lock(*arguments).name


def test_two_aliases_have_locks_of_their_own(settings: Any) -> None:
    settings.CACHES = {"default": {**LOCMEM, "LOCATION": "a"}, "second": {**LOCMEM, "LOCATION": "b"}}
    second: Any = caches["second"]
    with ours.lock("x"), second.lock("x"):
        assert [(lock.alias, lock.name) for lock in list_locks(using="second")] == [("second", "x")]


@pytest.mark.parametrize("kind", FAKES.values(), ids=FAKES)
@pytest.mark.parametrize("backend", ["django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"])
def test_locks_work_on_any_cache_with_fakeredis(backend: str, kind: Any, crowd: Crowd, settings: Any) -> None:
    settings.CACHES = {"default": on_fakeredis(backend, kind)}
    me, lock = crowd(), Lock("x")
    assert me(lock, "acquire")
    assert not crowd()(Lock("x"), "acquire", blocking_timeout=0.05)
    me(lock, "release")
    call_command("check")
    settings.REDISLOCK = {"REQUIRE_REDIS": True}
    with pytest.raises(ImproperlyConfigured, match="'default' is not Redis"):
        me(lock, "acquire")
