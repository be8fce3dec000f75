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
from django.core.checks import Tags, run_checks
from django.core.exceptions import ImproperlyConfigured

import django_redislock
from django_redislock import Lock, list_locks
from redisserver import RedisServer
from tests.checks import BACKEND, DJANGOS, OURS, check, ids, only
from tests.helpers.docs import page
from tests.helpers.ways import DJANGO, DJANGO_REDIS, alias

Set = Callable[..., None]
CANNOT = "Cannot use the cache alias 'locks' for locks: "


@pytest.fixture
def caching(settings: Any, server: RedisServer) -> Set:
    """Give the site these aliases beside its others; by default in database 5, where the locks are."""

    def caching(**aliases: Any) -> None:
        for name, entry in aliases.items():
            if isinstance(entry, dict):
                entry = {"BACKEND": BACKEND, "LOCATION": f"redis://127.0.0.1:{server.port}/5", **entry}
            settings.CACHES = {**settings.CACHES, name: entry}

    return caching


@pytest.fixture
def setting(settings: Any) -> Set:
    """Set REDISLOCK to this."""

    def setting(**values: Any) -> None:
        settings.REDISLOCK = {"CACHE": "locks", **values}

    return setting


def test_every_check_has_an_id_of_its_own_and_stands_on_the_page_of_checks() -> None:
    folder = Path(django_redislock.__file__).parent
    source = "".join(path.read_text("utf-8") for path in folder.glob("**/*.py"))
    used = re.findall(r'id="django_redislock\.([EWI]\d{3})"', source)
    assert len(used) == len(set(used)) > 10
    assert sorted(re.findall(r"^``([EWI]\d{3})`` ", page("checks"), re.M)) == sorted(used)


def test_a_sound_site_passes() -> None:
    assert ids() == ids(deploy=True) == []


# -- settings ---------------------------------------------------------------------------------------------------------


def test_every_wrong_setting_is_reported_among_the_checks_of_caches(settings: Any) -> None:
    settings.REDISLOCK = {"TLL": 3, "TTL": "soon", "MAX_HOLD": 5, "VIEW_STATUS": 200}
    found = run_checks(tags=[Tags.caches])
    assert [message.id for message in found] == ["django_redislock.E001"] * 3
    assert [re.findall(r"'(\w+)'", message.msg)[0] for message in found] == ["TLL", "TTL", "VIEW_STATUS"]
    settings.REDISLOCK = ["TTL"]
    only("E001")


@pytest.mark.parametrize("prefix", ["a{b}", "{", "}", "a b"])
def test_braces_and_whitespace_in_a_prefix_are_found(prefix: str, setting: Set) -> None:
    setting(KEY_PREFIX=prefix)
    only("E004")
    setting(KEY_PREFIX=prefix, TTL=0)
    assert ids() == ["E004", "E001"]


@pytest.mark.parametrize("name", ["locks", "pages"])
@pytest.mark.parametrize("prefix", ["{site}", "my site", "a\n", "a\x00"])
def test_a_prefix_of_an_alias_that_keys_cannot_begin_with_is_found(prefix: str, name: str, caching: Set) -> None:
    caching(**{name: {"BACKEND": OURS, "KEY_PREFIX": prefix, "LOCATION": "redis://127.0.0.1:1/6"}})
    message = only("E004")
    assert message.msg.startswith(f"The KEY_PREFIX of the cache alias {name!r} must not contain braces")
    assert repr(prefix) in message.msg


@pytest.mark.parametrize("name", ["VIEW_ON_CONFLICT", "VIEW_OWNER"])
def test_a_function_that_cannot_be_called_is_found(name: str, setting: Set) -> None:
    for path in ("nowhere.to.be.found", "tests.settings.SECRET_KEY", "plain", ".x", ".."):
        setting(**{name: path})
        assert only("E005").msg.startswith(f"Cannot use REDISLOCK['{name}'] = {path!r}: ")
    setting(**{name: "django.http.HttpResponse"})
    assert ids() == []


def test_a_max_hold_below_a_ttl_is_found(setting: Set) -> None:
    setting(MAX_HOLD=60, TTL=60, TTLS={"report:*": 600})
    assert "(60 s) is shorter than REDISLOCK['TTLS']['report:*'] (600 s)" in only("W002").msg


def test_a_ttl_too_short_to_be_renewed_in_time_is_found(setting: Set) -> None:
    setting(TTL=0.6, TTLS={"a": 1, "b": 0.5})
    assert ids() == ["W003", "W003"]
    assert "renewed every 0.2 s" in check()[0].msg
    setting(TTL=0.6, TTLS={"a": 1, "b": 0.5}, AUTO_RENEW=False)
    assert ids() == []


def test_the_memory_mode_warns_where_it_is_not_for_development_or_redis_is_required(
    setting: Set, settings: Any
) -> None:
    setting(CACHE="memory")
    assert "guard that process only" in only("W001").msg
    only("W001", deploy=True)
    settings.DEBUG = True
    assert ids() == []
    setting(CACHE="memory", REQUIRE_REDIS=True)
    only("E003")
    setting(REQUIRE_REDIS=True)
    assert ids() == []


# -- aliases that cannot hold locks -----------------------------------------------------------------------------------


def test_an_alias_that_is_missing_is_found(setting: Set) -> None:
    setting(CACHE="nowhere")
    assert "The aliases are: default, memory, locks." in only("E002").msg


class Without:
    """A cache backend like Django's PyMemcacheCache: it imports its library when it is made."""

    def __init__(self, *args: object) -> None:
        import_module("no_such_library")


def of(**entry: Any) -> dict[str, Any]:
    return {"BACKEND": DJANGO, "LOCATION": "redis://127.0.0.1:1", **entry}


without: list[Any] = [{"LOCATION": "redis://127.0.0.1:1"}, None, "redis://127.0.0.1:1", []]
UNUSABLE: list[tuple[Any, str]] = [
    (of(LOCATION=None), "The cache alias 'locks' has no LOCATION: "),
    (of(LOCATION=[]), "The cache alias 'locks' has no LOCATION: "),
    (of(LOCATION=[None]), f"{CANNOT}AttributeError: "),
    (of(LOCATION=5), f"{CANNOT}TypeError: "),
    (of(LOCATION={"a": 1}), f"{CANNOT}KeyError: "),
    (of(OPTIONS=None), f"{CANNOT}AttributeError: "),
    (of(OPTIONS={"pool_class": 5}), f"{CANNOT}AttributeError: "),
    (of(KEY_FUNCTION=".."), f"{CANNOT}TypeError: "),
    (of(BACKEND=""), f"{CANNOT}Could not find backend ''"),
    (of(BACKEND=f"{__name__}.Without"), f"{CANNOT}ModuleNotFoundError: No module named 'no_such_library'"),
    (of(BACKEND=OURS, OPTIONS={"COMPRESSOR": "no_such_library.Compressor"}), f"{CANNOT}ModuleNotFoundError: "),
    (of(BACKEND="django.core.cache.backends.filebased.FileBasedCache", LOCATION="/nowhere"), "FileBasedCache"),
    (of(OPTIONS={"connection_class": partial(redis.Connection)}), "must be a class, not functools.partial"),
    *[(entry, CANNOT) for entry in without],
    *[
        (alias(backend, "redis://127.0.0.1:1", **keywords), CANNOT)
        for backend in (DJANGO_REDIS, DJANGO)
        for keywords in ({"foo": 1}, {"socket_timeout": "a"}, {"db": "x"})
    ],
]


@pytest.mark.usefixtures("own_pools")
@pytest.mark.parametrize(("entry", "problem"), UNUSABLE, ids=str)
def test_an_alias_that_cannot_hold_locks_is_found_and_is_an_error_in_use(
    entry: Any, problem: str, settings: Any
) -> None:
    settings.CACHES = {**settings.CACHES, "locks": entry}
    assert problem in only("E003").msg
    assert ids(deploy=True) == ["E003"]
    for use in (Lock("a").acquire, list_locks):
        with pytest.raises(ImproperlyConfigured, match=re.escape(problem)):
            use()


def test_a_sharded_alias_is_found_where_cache_lock_would_fail(caching: Set, server: RedisServer) -> None:
    options = {"CLIENT_CLASS": "django_redis.client.ShardClient"}
    caching(pages={"BACKEND": OURS, "LOCATION": [server.url, server.url], "OPTIONS": options})
    message = only("E003")
    assert "'pages' spreads its keys over several servers" in message.msg
    assert "REDISLOCK" not in f"{message.msg}{message.hint}"
    with pytest.raises(ImproperlyConfigured, match="spreads its keys") as raised:
        caches["pages"].lock("x")  # type: ignore[attr-defined]
    assert "REDISLOCK" not in str(raised.value)


@pytest.mark.parametrize(
    "entry",
    [
        {"BACKEND": BACKEND, "LOCATION": "carrier-pigeon://"},
        {"BACKEND": "no_such_library.Cache", "LOCATION": ""},
        {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "pages"},
    ],
    ids=lambda entry: entry["BACKEND"],
)
def test_an_alias_without_locks_is_left_alone(
    entry: dict[str, Any], caching: Set, caplog: pytest.LogCaptureFixture
) -> None:
    caching(pages=entry)
    assert ids() == []
    assert "memory-mode" not in caplog.text


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
    scheme: str, options: dict[str, Any], expected: str, caching: Set
) -> None:
    caching(locks={"BACKEND": DJANGOS, "LOCATION": f"{scheme}://127.0.0.1:1/5", "OPTIONS": options})
    assert expected in only("W007").msg


# -- a cache beside the locks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [BACKEND, DJANGOS])
def test_a_cache_in_the_same_database_is_found(backend: str, caching: Set, server: RedisServer) -> None:
    url = f"redis://localhost:{server.port}"
    caching(pages={"BACKEND": backend, "LOCATION": f"{url}/5", "KEY_PREFIX": "pages"})
    assert "the cache 'pages'" in only("I001").msg
    caching(pages={"BACKEND": backend, "LOCATION": f"{url}/6"})
    assert ids() == []


def test_so_is_one_at_the_same_socket_or_of_the_same_sentinels(
    caching: Set, server: RedisServer, settings: Any
) -> None:
    socket = f"unix://{server.socket}?db=5"
    caching(default={"LOCATION": socket}, locks={"BACKEND": DJANGOS, "LOCATION": socket})
    only("I001")
    options = {
        "CLIENT_CLASS": "django_redis.client.SentinelClient",
        "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
        "SENTINELS": [("127.0.0.1", 1)],
    }
    settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
    entry = {"LOCATION": "redis://main/0", "OPTIONS": options}
    caching(default=entry, locks=entry)
    only("I001")


def test_locks_in_the_default_cache_are_told_as_that_one_is_cleared_by_cache_clear(setting: Set) -> None:
    setting(CACHE="default")
    only("I001")


# -- the locks of cache.lock() ----------------------------------------------------------------------------------------


def test_the_check_says_which_locks_exclude_each_other_and_whose_clear_flushes_them(
    caching: Set, setting: Set, server: RedisServer
) -> None:
    pages = {"BACKEND": OURS, "LOCATION": f"redis://127.0.0.1:{server.port}/6"}
    caching(pages=pages)
    (told,) = [message.msg for message in check() if message.id == "django_redislock.I001"]
    assert "'pages' share a Redis database with the cache 'pages'" in told
    caching(second={**pages, "VERSION": 2})
    (told,) = [message.msg for message in check() if message.id == "django_redislock.I002"]
    assert "groups of cache aliases: 'locks'; 'pages' and 'second'." in told
    assert Lock("x").acquire()
    assert Lock("x", using="pages").acquire()
    assert not Lock("x", using="second").acquire(blocking=False)
    setting(CACHE="pages")
    assert "I002" not in ids()


def test_how_to_spare_the_locks_of_cache_lock_is_told(caching: Set, setting: Set) -> None:
    """They are always in that alias: naming another one in REDISLOCK["CACHE"] would not help."""
    caching(default={"BACKEND": OURS})
    setting(CACHE="default")
    hint = str(only("I001").hint)
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
