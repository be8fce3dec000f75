"""The cache backend: the alias and the names of its locks; and ``cache.lock()`` in tests without Redis."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import django_redis
import django_redis.cache
import django_redis.client
import fakeredis
import pytest
import redis
import redis.lock
from django.core.cache import cache, caches
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command

from django_redislock import Lock, LockStatus, list_locks
from django_redislock.cache import RedisCache
from redisserver import RedisServer
from tests.helpers.actors import Crowd, auntil
from tests.helpers.processes import ROOT

BACKEND = "django_redislock.cache.RedisCache"
Alias = dict[str, Any]
Use = Callable[..., None]


def lock_of(alias: str, key: object, *args: Any, **options: Any) -> Any:
    return caches[alias].lock(key, *args, **options)  # type: ignore[attr-defined]


class OfTheSite(RedisCache):
    """A site's own."""


def by_tenant(key: str, prefix: str, version: int) -> str:
    return f"a:{prefix}:{version}:{key}"


@pytest.fixture
def use(settings: Any, server: RedisServer) -> Use:
    def use(default: Alias | None = None, **others: Alias) -> None:
        aliases = {"default": default or {}, **others}
        settings.CACHES = {
            name: {"BACKEND": BACKEND, "LOCATION": server.url, **alias} for name, alias in aliases.items()
        }

    return use


def exclude_each_other(*locks: Any) -> bool:
    assert locks[0].acquire()
    return not any(lock.acquire(blocking=False) for lock in locks[1:])


def test_it_is_django_redis_with_other_locks(use: Use, client: redis.Redis) -> None:
    theirs, mine = (
        [(p.name, p.default, p.kind) for p in inspect.signature(kind.lock).parameters.values()]
        for kind in (django_redis.client.DefaultClient, RedisCache)
    )
    assert mine == theirs
    use()
    cache.set("x", {"a": 1}, 60)
    assert cache.get("x") == {"a": 1}
    assert isinstance(caches["default"], django_redis.cache.RedisCache)
    with lock_of("default", "x", timeout=5, client=client) as lock:
        assert not isinstance(lock, redis.lock.Lock)
        assert Lock("x").locked()
        of_client = caches["default"].client.lock("x", timeout=5)
        assert not of_client.acquire(blocking=False)
    with pytest.raises(ImproperlyConfigured, match=r"not made from an alias in CACHES.*default"):
        RedisCache("redis://127.0.0.1:1/0", {}).lock("x")


@pytest.mark.parametrize("version", [1, 9])
def test_a_key_that_the_cache_has_made_is_the_same_lock(version: int, use: Use) -> None:
    use({"KEY_PREFIX": "site"})
    made = caches["default"].client.make_key("a:b", version=version)  # type: ignore[attr-defined]
    assert exclude_each_other(lock_of("default", "a:b", version=version), lock_of("default", made))


def test_without_django_redis_everything_else_can_be_imported() -> None:
    code = "import sys; sys.modules['django_redis'] = None; import django_redislock, django_redislock.cache_lock"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


@pytest.mark.parametrize("alias", ["default", "second", "third", "fourth"])
def test_locks_are_on_the_alias_of_the_cache_whatever_is_set(use: Use, alias: str, settings: Any, client: Any) -> None:
    use(
        {"KEY_PREFIX": "one"},
        second={"KEY_PREFIX": "two", "OPTIONS": {"SOCKET_TIMEOUT": 3}},
        third={"KEY_PREFIX": "two"},
        fourth={"BACKEND": f"{__name__}.OfTheSite", "KEY_PREFIX": "two", "TIMEOUT": None},
        twin={"BACKEND": "django.core.cache.backends.dummy.DummyCache", "KEY_PREFIX": "two"},
        locks={"KEY_PREFIX": "three"},
    )
    settings.REDISLOCK = {"CACHE": "locks"}
    lock = lock_of(alias, "x", timeout=5)
    assert lock.using == alias
    assert lock.acquire()
    assert [held.name for held in list_locks(using=alias)] == ["x"]
    assert client.exists(f"{'one' if alias == 'default' else 'two'}:redislock{{0}}:lock:x")
    assert Lock("x", using="default").locked() == (alias == "default")
    assert not Lock("x").locked()


@pytest.mark.parametrize(
    ("alias", "version", "name"),
    [
        *[({"KEY_PREFIX": "site"}, version, "x") for version in (None, 1, "1")],
        ({}, 2, "%2:x"),
        ({"KEY_PREFIX": "site", "KEY_FUNCTION": f"{__name__}.by_tenant"}, None, "a::1:x"),
        ({"KEY_PREFIX": "site", "KEY_FUNCTION": f"{__name__}.by_tenant"}, 2, "a::2:x"),
    ],
)
@pytest.mark.parametrize("backend", [BACKEND, "django_redislock.cache.LocMemCache"])
def test_the_key_is_the_name_with_another_version_or_as_a_key_function_makes_it(
    use: Use, alias: Alias, version: Any, name: str, backend: str
) -> None:
    use({**alias, "BACKEND": backend})
    assert lock_of("default", "x", version=version).name == name


@pytest.mark.parametrize("backend", ["django_redis.cache.RedisCache", BACKEND])
def test_aliases_exclude_each_other_as_their_keys_do(backend: str, use: Use) -> None:
    use({"BACKEND": backend}, second={"BACKEND": backend, "VERSION": 2}, same={"BACKEND": backend})
    assert exclude_each_other(lock_of("second", "x", timeout=5), lock_of("default", "x", version=2))
    first, *others = lock_of("default", "x", timeout=5), lock_of("second", "x", version=1), lock_of("same", "x")
    assert exclude_each_other(first, *others)


@pytest.mark.parametrize("key", ["", "a\nb", "a\x00", "%", "\ud800", "x" * 5000, "ü" * 400, 42, ("a", 1), "{a} b:c"])
def test_any_key_can_be_locked(use: Use, key: object) -> None:
    use()
    for version in (None, 7):
        same = [lock_of("default", key, version=version, timeout=5) for _ in range(2)]
        assert exclude_each_other(*same)
        assert not lock_of("default", "other", version=version).locked()


class Own(fakeredis.FakeRedisConnection):
    """A site's own, on a server that all its tests share, say."""


def on_fakeredis(backend: str, kind: type = fakeredis.FakeRedisConnection) -> Alias:
    options: Alias = {"connection_class": kind}
    if backend != "django.core.cache.backends.redis.RedisCache":
        options = {"CONNECTION_POOL_KWARGS": options}
    return {"BACKEND": backend, "LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": options}


@pytest.mark.parametrize(
    "default", [{"BACKEND": "django_redislock.cache.LocMemCache"}, on_fakeredis(BACKEND)], ids=["LocMem", "fakeredis"]
)
async def test_it_is_a_cache_with_our_locks(default: Alias, settings: Any) -> None:
    settings.CACHES = {"default": default, "second": {**default, "LOCATION": "redis://127.0.0.1:1/1"}}
    ours: Any = cache
    ours.set("x", 1)
    with ours.lock("x", timeout=60), lock_of("second", "x"):
        assert (ours.get("x"), await Lock("x").astatus()) == (1, LockStatus.UNAVAILABLE)
        assert not ours.lock("x", timeout=60).acquire(blocking_timeout=0.05)
    assert await asyncio.to_thread(ours.locked_get_or_set, "computed", lambda: 7) == ours.get("computed") == 7
    assert await ours.alocked_get_or_set("later", AsyncMock(return_value=8)) == 8


@pytest.mark.parametrize("backend", ["django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"])
@pytest.mark.parametrize("kind", [fakeredis.FakeRedisConnection, Own])
def test_locks_work_on_any_cache_with_fakeredis(backend: str, kind: type, crowd: Crowd, settings: Any) -> None:
    settings.CACHES = {"default": on_fakeredis(backend, kind)}
    me, lock = crowd(), Lock("x")
    assert me(lock, "acquire")
    assert not crowd()(Lock("x"), "acquire", blocking_timeout=0.05)
    me(lock, "release")
    call_command("check")
    settings.REDISLOCK = {"REQUIRE_REDIS": True}
    with pytest.raises(ImproperlyConfigured, match="'default' is not Redis"):
        me(lock, "acquire")


async def test_a_coroutine_that_tries_again_without_a_pause_lets_others_go_on(settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    held, go_on = Lock("x"), asyncio.Event()

    async def hold() -> None:
        async with held:
            await go_on.wait()

    async def insist() -> None:
        for _ in range(1000):
            go_on.set()
            if await Lock("x").aacquire(blocking=False):
                return
        pytest.fail("nobody else had a turn")

    holder = asyncio.create_task(hold())
    await auntil(held.alocked)
    await asyncio.gather(holder, insist())
