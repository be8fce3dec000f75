"""Checks of the settings: a mistake shows when the site starts. None of them asks Redis."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured

from django_redislock import Lock, list_locks
from django_redislock.checks.settings import check_settings
from redisserver import RedisServer
from tests.checks import BACKEND, DJANGOS, check, ids
from tests.helpers.ways import DJANGO, DJANGO_REDIS, alias


def test_a_sound_site_passes() -> None:
    assert ids() == ids(deploy=True) == []


def test_wrong_settings_are_found(settings: Any) -> None:
    settings.REDISLOCK = {"TLL": 3}
    assert ids() == ["E001"]


def test_every_wrong_setting_is_reported(settings: Any) -> None:
    settings.REDISLOCK = {"TLL": 3, "TTL": "soon", "MAX_HOLD": 5, "VIEW_STATUS": 200}
    assert ids() == ["E001"] * 3
    assert [re.findall(r"'(\w+)'", message.msg)[0] for message in check()] == ["TLL", "TTL", "VIEW_STATUS"]
    settings.REDISLOCK = ["TTL"]
    assert ids() == ["E001"]


def test_an_alias_that_is_missing_is_found(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "nowhere"}
    ((message),) = check()
    assert message.id == "django_redislock.E002"
    assert "The aliases are: default, memory, locks." in message.msg


def test_an_alias_that_is_no_redis_is_found(settings: Any, tmp_path: Path) -> None:
    files = {"BACKEND": "django.core.cache.backends.filebased.FileBasedCache", "LOCATION": str(tmp_path)}
    settings.CACHES = {**settings.CACHES, "locks": files}
    assert ids() == ["E003"]
    assert ids(deploy=True) == ["E003"]


@pytest.mark.usefixtures("own_pools")
@pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGO])
@pytest.mark.parametrize("keywords", [{"foo": 1}, {"socket_timeout": "a"}, {"db": "x"}], ids=repr)
def test_an_alias_of_which_no_connection_can_be_made_is_found(
    backend: str, keywords: dict[str, Any], settings: Any
) -> None:
    settings.CACHES = {**settings.CACHES, "locks": alias(backend, "redis://127.0.0.1:1", **keywords)}
    assert ids() == ["E003"]
    for use in (Lock("a").acquire, list_locks):
        with pytest.raises(ImproperlyConfigured, match="Cannot use the cache alias 'locks' for locks: "):
            use()


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"LOCATION": None}, "The cache alias 'locks' has no LOCATION: "),
        ({"LOCATION": []}, "The cache alias 'locks' has no LOCATION: "),
        ({"LOCATION": [None]}, "Cannot use the cache alias 'locks' for locks: AttributeError: "),
        ({"LOCATION": 5}, "Cannot use the cache alias 'locks' for locks: TypeError: "),
        ({"LOCATION": {"a": 1}}, "Cannot use the cache alias 'locks' for locks: KeyError: "),
        ({"OPTIONS": None}, "Cannot use the cache alias 'locks' for locks: AttributeError: "),
        ({"OPTIONS": {"pool_class": 5}}, "Cannot use the cache alias 'locks' for locks: AttributeError: "),
        ({"KEY_FUNCTION": ".."}, "Cannot use the cache alias 'locks' for locks: TypeError: "),
        ({"BACKEND": ""}, "Cannot use the cache alias 'locks' for locks: Could not find backend ''"),
    ],
    ids=repr,
)
def test_an_entry_that_django_cannot_read_is_found(entry: dict[str, Any], problem: str, settings: Any) -> None:
    url = "redis://127.0.0.1:1"
    settings.CACHES = {**settings.CACHES, "locks": {"BACKEND": DJANGO, "LOCATION": url, **entry}}
    ((message),) = check_settings()
    assert message.id == "django_redislock.E003"
    assert message.msg.startswith(problem)
    for use in (Lock("a").acquire, list_locks):
        with pytest.raises(ImproperlyConfigured, match=re.escape(problem)):
            use()


@pytest.mark.parametrize("entry", [{"LOCATION": "redis://127.0.0.1:1"}, None, "redis://127.0.0.1:1", []], ids=repr)
def test_an_entry_without_a_backend_is_found(entry: object, settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "locks": entry}
    ((message),) = check_settings()
    assert message.id == "django_redislock.E003"
    assert message.msg.startswith("Cannot use the cache alias 'locks' for locks: ")


def test_the_memory_mode_warns_where_it_is_not_for_development(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "memory"}
    ((message),) = check()
    assert message.id == "django_redislock.W001"
    assert "guard that process only" in message.msg
    assert ids(deploy=True) == ["W001"]
    settings.DEBUG = True
    assert ids() == []


def test_the_memory_mode_is_an_error_where_redis_is_required(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "memory", "REQUIRE_REDIS": True}
    assert ids() == ["E003"]
    settings.REDISLOCK = {"CACHE": "locks", "REQUIRE_REDIS": True}
    assert ids() == []


@pytest.mark.parametrize("prefix", ["a{b}", "{", "}", "a b"])
def test_braces_and_whitespace_in_a_prefix_are_found(prefix: str, settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", "KEY_PREFIX": prefix}
    assert ids() == ["E004"]
    settings.REDISLOCK = {"CACHE": "locks", "KEY_PREFIX": prefix, "TTL": 0}
    assert ids() == ["E004", "E001"]


@pytest.mark.parametrize("prefix", ["{site}", "my site", "a\n", "a\x00"])
def test_a_prefix_of_the_alias_that_keys_cannot_begin_with_is_found(prefix: str, settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "locks": {**settings.CACHES["locks"], "KEY_PREFIX": prefix}}
    ((message),) = check()
    assert message.id == "django_redislock.E004"
    assert message.msg.startswith("The KEY_PREFIX of the cache alias 'locks' must not contain braces")
    assert repr(prefix) in message.msg


SETTINGS = pytest.mark.parametrize("setting", ["VIEW_ON_CONFLICT", "VIEW_OWNER"])


@SETTINGS
@pytest.mark.parametrize("path", ["nowhere.to.be.found", "tests.settings.SECRET_KEY", "plain", ".x", ".."])
def test_a_function_that_cannot_be_called_is_found(setting: str, path: str, settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", setting: path}
    ((message),) = check()
    assert message.id == "django_redislock.E005"
    assert message.msg.startswith(f"Cannot use REDISLOCK['{setting}'] = {path!r}: ")


@SETTINGS
def test_a_function_that_can_be_called_passes(setting: str, settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", setting: "django.http.HttpResponse"}
    assert ids() == []


def test_a_max_hold_below_a_ttl_is_found(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", "MAX_HOLD": 60, "TTL": 60, "TTLS": {"report:*": 600}}
    ((message),) = check()
    assert message.id == "django_redislock.W002"
    assert "(60 s) is shorter than REDISLOCK['TTLS']['report:*'] (600 s)" in message.msg


def test_a_ttl_too_short_to_be_renewed_in_time_is_found(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", "TTL": 0.6, "TTLS": {"a": 1, "b": 0.5}}
    assert ids() == ["W003", "W003"]
    assert "renewed every 0.2 s" in check()[0].msg
    settings.REDISLOCK = {**settings.REDISLOCK, "AUTO_RENEW": False}
    assert ids() == []


# -- connection classes -----------------------------------------------------------------------------------------------


class Own(redis.Connection):
    """A site's own, without a counterpart for coroutines."""


@pytest.mark.usefixtures("own_pools")
@pytest.mark.parametrize(
    ("scheme", "options", "expected"),
    [
        ("redis", {"connection_class": Own}, "Own has no counterpart in redis.asyncio"),
        ("rediss", {"ssl_validate_ocsp": True}, "does not know ssl_validate_ocsp"),
    ],
)
def test_options_that_coroutines_cannot_use_are_found(
    scheme: str, options: dict[str, Any], expected: str, settings: Any
) -> None:
    url = f"{scheme}://127.0.0.1:1/5"
    settings.CACHES = {**settings.CACHES, "locks": {"BACKEND": DJANGOS, "LOCATION": url, "OPTIONS": options}}
    ((message),) = check()
    assert message.id == "django_redislock.W007"
    assert expected in message.msg


def test_an_invalid_connection_class_is_found(settings: Any, server: RedisServer) -> None:
    options = {"connection_class": partial(redis.Connection)}
    settings.CACHES = {
        **settings.CACHES,
        "locks": {"BACKEND": DJANGOS, "LOCATION": f"redis://127.0.0.1:{server.port}/5", "OPTIONS": options},
    }
    ((message),) = check()
    assert message.id == "django_redislock.E003"
    assert "must be a class, not functools.partial" in message.msg


# -- a cache beside the locks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [BACKEND, DJANGOS])
def test_a_cache_in_the_same_database_is_found(backend: str, settings: Any, server: RedisServer) -> None:
    pages = {"BACKEND": backend, "LOCATION": f"redis://localhost:{server.port}/5", "KEY_PREFIX": "pages"}
    settings.CACHES = {**settings.CACHES, "pages": pages}
    ((message),) = check()
    assert message.id == "django_redislock.I001"
    assert "the cache 'pages'" in message.msg
    settings.CACHES = {**settings.CACHES, "pages": {**pages, "LOCATION": f"redis://localhost:{server.port}/6"}}
    assert ids() == []


def test_a_cache_in_memory_is_left_alone(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    """No lock is on that alias, so no in-memory server is made for it."""
    pages = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "pages"}
    settings.CACHES = {**settings.CACHES, "pages": pages}
    assert ids() == []
    assert "memory-mode" not in caplog.text


def test_locks_in_the_default_cache_are_told_as_that_one_is_cleared_by_cache_clear(settings: Any) -> None:
    settings.REDISLOCK = {}
    assert ids() == ["I001"]


def test_the_same_unix_socket_is_the_same_server(settings: Any, server: RedisServer) -> None:
    url = f"unix://{server.socket}?db=5"
    settings.CACHES = {
        "default": {"BACKEND": BACKEND, "LOCATION": url},
        "locks": {"BACKEND": DJANGOS, "LOCATION": url},
    }
    assert ids() == ["I001"]


def test_the_same_service_of_a_sentinel_is_the_same_server(settings: Any) -> None:
    sentinel = {
        "BACKEND": BACKEND,
        "LOCATION": "redis://main/0",
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
            "SENTINELS": [("127.0.0.1", 1)],
        },
    }
    settings.CACHES = {"default": sentinel, "locks": sentinel}
    settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
    assert ids() == ["I001"]


def test_a_broken_cache_alias_without_locks_is_ignored(settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "broken": {**settings.CACHES["locks"], "LOCATION": "carrier-pigeon://"}}
    assert ids() == []


# -- the locks of cache.lock() ----------------------------------------------------------------------------------------

OURS = "django_redislock.cache.RedisCache"


@pytest.fixture
def ours(settings: Any, server: RedisServer) -> Callable[..., None]:
    """Set up an alias whose ``lock()`` is ours, beside that of the settings."""

    def ours(alias: str = "pages", location: Any = None, **more: Any) -> None:
        location = location or f"redis://127.0.0.1:{server.port}/6"
        settings.CACHES = {**settings.CACHES, alias: {"BACKEND": OURS, "LOCATION": location, **more}}

    return ours


def test_the_check_says_which_locks_exclude_each_other(ours: Callable[..., None], settings: Any) -> None:
    ours()
    ours("second", VERSION=2)
    told = [message.msg for message in check() if message.id == "django_redislock.I002"]
    assert len(told) == 1
    assert "groups of cache aliases: 'locks'; 'pages' and 'second'." in told[0]
    assert Lock("x").acquire()
    assert Lock("x", using="pages").acquire()
    assert not Lock("x", using="second").acquire(blocking=False)
    settings.REDISLOCK = {"CACHE": "pages"}
    assert "I002" not in ids()


def test_the_clear_of_the_cache_whose_locks_they_are_is_told(ours: Callable[..., None]) -> None:
    ours()
    (told,) = [message.msg for message in check() if message.id == "django_redislock.I001"]
    assert "'pages' share a Redis database with the cache 'pages'" in told


def test_how_to_spare_the_locks_of_cache_lock_is_told(ours: Callable[..., None], settings: Any) -> None:
    """They are always in that alias: naming another one in REDISLOCK["CACHE"] would not help."""
    ours("default")
    settings.REDISLOCK = {}
    ((message),) = check()
    assert message.id == "django_redislock.I001"
    hint = str(message.hint)
    assert "with cache.delete_pattern('*'), which spares them, instead of clear()" in hint
    assert "REDISLOCK" not in hint
    cache: Any = caches["default"]
    cache.set("page", 1)
    with cache.lock("x") as lock:
        cache.delete_pattern("*")
        assert cache.get("page") is None
        assert lock.owned()
        cache.clear()
        assert not lock.locked()
        lock.acquire()  # for the end of the block


def test_a_prefix_with_braces_is_found_where_cache_lock_would_fail(ours: Callable[..., None]) -> None:
    ours(KEY_PREFIX="{site}")
    ((message),) = check()
    assert message.id == "django_redislock.E004"
    assert "the cache alias 'pages'" in message.msg


def test_a_sharded_alias_is_found_where_cache_lock_would_fail(ours: Callable[..., None], server: RedisServer) -> None:
    ours(location=[server.url, server.url], OPTIONS={"CLIENT_CLASS": "django_redis.client.ShardClient"})
    ((message),) = check()
    assert message.id == "django_redislock.E003"
    assert "'pages' spreads its keys over several servers" in message.msg
    assert "REDISLOCK" not in f"{message.msg}{message.hint}"
    with pytest.raises(ImproperlyConfigured, match="spreads its keys") as raised:
        caches["pages"].lock("x")  # type: ignore[attr-defined]
    assert "REDISLOCK" not in str(raised.value)


@pytest.mark.parametrize("alias", ["locks", "pages"])
def test_a_library_that_an_alias_with_locks_misses_is_told(alias: str, ours: Callable[..., None]) -> None:
    ours(alias, OPTIONS={"COMPRESSOR": "no_such_library.Compressor"})
    ((message),) = check()
    assert message.id == "django_redislock.E003"
    assert message.msg.startswith(f"Cannot use the cache alias {alias!r} for locks: ModuleNotFoundError: ")


def test_a_backend_that_misses_its_library_is_told(settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "locks": {"BACKEND": f"{__name__}.Without", "LOCATION": ""}}
    ((message),) = [message for message in check_settings() if message.id == "django_redislock.E003"]
    assert "No module named 'no_such_library'" in message.msg


class Without:
    """A cache backend like Django's PyMemcacheCache: it imports its library when it is made."""

    def __init__(self, *args: object) -> None:
        import_module("no_such_library")


def test_an_alias_without_locks_whose_library_is_missing_is_ignored(settings: Any, tmp_path: Path) -> None:
    before = ids()
    settings.CACHES = {**settings.CACHES, "missing": {"BACKEND": "no_such_library.Cache", "LOCATION": str(tmp_path)}}
    assert [message.id for message in check_settings()] == before == []
