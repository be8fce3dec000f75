"""Checks of the settings: a mistake shows when the site starts. None of them asks Redis."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from django.core.cache import caches
from django.core.checks import Tags, run_checks
from django.core.exceptions import ImproperlyConfigured
from fakeredis import FakeRedisConnection

import django_redislock
from django_redislock import Lock
from redisserver import RedisServer
from tests.checks.conftest import OURS, Set, check, ids, only
from tests.helpers.docs import page
from tests.helpers.ways import BOTH, DJANGO, DJANGO_REDIS, alias

SHARDS = "django_redis.client.ShardClient"
CANNOT = "Cannot use the cache alias 'locks' for locks: "
USES = (Lock("a"), "acquire"), (django_redislock, "list_locks")


@pytest.fixture
def setting(settings: Any) -> Set:
    return lambda **values: setattr(settings, "REDISLOCK", {"CACHE": "locks", **values})


def test_every_check_has_an_id_of_its_own_and_stands_on_the_page_of_checks() -> None:
    folder = Path(django_redislock.__file__).parent
    source = "".join(path.read_text("utf-8") for path in folder.glob("**/*.py"))
    used = re.findall(r'id="django_redislock\.([EWI]\d{3})"', source)
    assert len(used) == len(set(used)) > 10
    assert sorted(re.findall(r"^``([EWI]\d{3})`` ", page("checks"), re.M)) == sorted(used)


SHORT = {"TTL": 0.6, "TTLS": {"a": 1, "b": 0.5}}


@pytest.mark.parametrize(
    ("values", "expected", "said"),
    [
        ({}, [], ""),
        ({"TLL": 3, "TTL": "soon", "MAX_HOLD": 5}, ["E001"] * 2, "'TLL'"),
        ({"CACHE": "nowhere"}, ["E002"], "The aliases are: default, memory, locks."),
        ({"KEY_PREFIX": "a{b}"}, ["E004"], "braces"),
        ({"KEY_PREFIX": "a b", "TTL": 0}, ["E004", "E001"], ""),
        ({"VIEW_OWNER": "nowhere.to.be.found"}, ["E005"], "Cannot use REDISLOCK['VIEW_OWNER'] = 'nowhere.to.be.found'"),
        ({"VIEW_ON_CONFLICT": "tests.settings.SECRET_KEY"}, ["E005"], "REDISLOCK['VIEW_ON_CONFLICT']"),
        ({"VIEW_OWNER": "django.http.HttpResponse"}, [], ""),
        ({"VIEW_OWNER": "builtins.max"}, [], ""),  # it has no signature
        ({"VIEW_OWNER": "os.getcwd"}, ["E005"], "REDISLOCK['VIEW_OWNER'] = 'os.getcwd' cannot be called: too many"),
        ({"VIEW_ON_CONFLICT": "os.fspath"}, ["E005"], "['VIEW_ON_CONFLICT'] = 'os.fspath' cannot be called: too many"),
        ({"MAX_HOLD": 60, "TTL": 60, "TTLS": {"a": 600}}, ["W002"], "(60 s) is shorter than"),
        (SHORT, ["W003"] * 2, "renewed every 0.2 s"),
        ({**SHORT, "AUTO_RENEW": False}, [], ""),
        ({"CACHE": "memory"}, ["W001"], "guard that process only"),
        ({"CACHE": "memory", "REQUIRE_REDIS": True}, ["E003"], ""),
        ({"REQUIRE_REDIS": True}, [], ""),
        ({"CACHE": "default"}, ["I001"], ""),
    ],
    ids=str,
)
def test_what_is_wrong_with_the_settings_is_said(values: Any, expected: list[str], said: str, setting: Set) -> None:
    setting(**values)
    found = check()
    assert [message.id for message in found] == [f"django_redislock.{id}" for id in expected]
    assert said in f"{[message.msg for message in found[:1]]}"
    assert ids(deploy=True) == expected


def test_they_are_among_the_checks_of_caches_and_the_memory_mode_is_for_development(settings: Any) -> None:
    settings.REDISLOCK = ["TTL"]
    assert [message.id for message in run_checks(tags=[Tags.caches])] == ["django_redislock.E001"]
    settings.REDISLOCK = {"CACHE": "memory"}
    settings.DEBUG = True
    assert ids() == []


@pytest.mark.parametrize("wrong", ["{", " ", "\x7f"])
def test_a_prefix_of_an_alias_that_keys_cannot_begin_with_is_found_and_an_error_in_use(
    wrong: str, caching: Set, me: Any
) -> None:
    names = ("locks", "pages")
    for name in names:
        caching(**{name: {"BACKEND": OURS, "KEY_PREFIX": f"{name}{wrong}", "LOCATION": "redis://127.0.0.1:1/6"}})
    told = [message.msg.partition(" must not contain braces")[0] for message in check()]
    assert told == [f"The KEY_PREFIX of the cache alias '{name}'" for name in names]
    for thing, method in USES:
        with pytest.raises(ImproperlyConfigured, match="'locks' must not .*: " + re.escape(repr(f"locks{wrong}"))):
            me(thing, method)


ASKING_SENTINELS = {
    "CLIENT_CLASS": "django_redis.client.SentinelClient",
    "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
    "SENTINELS": [("127.0.0.1", 1)],
}
ASKING_WRONGLY = {**ASKING_SENTINELS, "SENTINEL_KWARGS": {"ssl": True, "ssl_cert_reqs": "often"}}
CREDENTIALS = redis.UsernamePasswordCredentialProvider("locks", "b")
of: Any = partial(dict, BACKEND=DJANGO, LOCATION="redis://127.0.0.1:1")
UNUSABLE: list[tuple[Any, str]] = [
    (of(LOCATION=None), "The cache alias 'locks' has no LOCATION: "),
    (of(OPTIONS=None), f"{CANNOT}AttributeError: "),
    (of(LOCATION="localhost:6379"), f"{CANNOT}ValueError: Redis URL"),
    (of(BACKEND=DJANGO_REDIS, LOCATION=""), f"{CANNOT}Missing connections"),
    (of(BACKEND=""), f"{CANNOT}Could not find backend ''"),
    (of(BACKEND=OURS, OPTIONS={"COMPRESSOR": "no_such_library.Compressor"}), f"{CANNOT}ModuleNotFoundError: "),
    (of(BACKEND="django.core.cache.backends.filebased.FileBasedCache", LOCATION="/nowhere"), "FileBasedCache) has no"),
    (of(LOCATION="rediss://127.0.0.1:1", OPTIONS={"ssl_cert_reqs": "often"}), f"{CANNOT}RedisError: Invalid SSL"),
    (of(OPTIONS={"password": "a", "credential_provider": CREDENTIALS}), f"{CANNOT}DataError: "),
    (of(OPTIONS={"password": ["s3cret"]}), f"{CANNOT}TypeError: password must be text or bytes, not of type list."),
    (of(OPTIONS={"socket_timeout": "5"}), f"{CANNOT}TypeError: socket_timeout must be seconds (int, float or "),
    (of(OPTIONS={"socket_timeout": 0}), f"{CANNOT}ValueError: socket_timeout must be at least 0.001 seconds"),
    (of(OPTIONS={"socket_connect_timeout": -1}), f"{CANNOT}ValueError: socket_connect_timeout must be at least"),
    (of(OPTIONS={"health_check_interval": "5"}), f"{CANNOT}TypeError: health_check_interval must be seconds"),
    (of(OPTIONS={"connection_class": partial(redis.Connection)}), "must be a class, not functools.partial"),
    (alias(DJANGO_REDIS, "redis://127.0.0.1:1", connection_class=partial(FakeRedisConnection)), "must be a class"),
    (of(BACKEND=OURS, LOCATION=["redis://127.0.0.1:1"] * 2, OPTIONS={"CLIENT_CLASS": SHARDS}), "spreads its keys"),
    (of(BACKEND=DJANGO_REDIS, LOCATION="redis://shop/0", OPTIONS=ASKING_WRONGLY), f"{CANNOT}RedisError: Invalid SSL"),
    (None, CANNOT),
    (alias(DJANGO_REDIS, "redis://127.0.0.1:1", foo=1), CANNOT),
]


@pytest.mark.parametrize(("entry", "problem"), UNUSABLE, ids=[problem for _, problem in UNUSABLE])
def test_an_alias_that_cannot_hold_locks_is_found_and_an_error_in_use(
    entry: Any, problem: str, settings: Any, me: Any
) -> None:
    settings.CACHES = {**settings.CACHES, "locks": entry}
    assert problem in (found := only("E003")).msg
    assert ("django-redis's own BACKEND" in str(found.hint)) == (entry is not None and entry["BACKEND"] == OURS)
    assert ids(deploy=True) == ["E003"]
    for thing, method in USES:
        with pytest.raises(ImproperlyConfigured, match=re.escape(problem)):
            me(thing, method)


def test_an_alias_without_locks_is_left_alone(caching: Set, caplog: pytest.LogCaptureFixture) -> None:
    caching(
        pages={"BACKEND": DJANGO_REDIS, "LOCATION": "carrier-pigeon://"},
        more={"BACKEND": "no_such_library.Cache", "LOCATION": ""},
        local={"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "pages"},
    )
    assert ids() == []
    assert "memory-mode" not in caplog.text


class Own(redis.Connection):
    """A site's own."""

    async_class = redis.asyncio.Connection


class Heir(Own):
    """What it does more, such as a check of certificates, the counterpart of its base does not do."""


@pytest.mark.parametrize(
    ("scheme", "options", "problem"),
    [
        ("redis", {"connection_class": Heir}, "tests.checks.test_settings.Heir has no counterpart in redis.asyncio"),
        ("rediss", {"ssl_validate_ocsp": True}, "does not know ssl_validate_ocsp of the cache alias 'locks'"),
        ("redis", {"redis_connect_func": redis.Connection.on_connect}, "redis_connect_func of the cache alias 'locks'"),
    ],
)
async def test_options_that_coroutines_cannot_use_are_never_ignored(
    scheme: str, options: Any, problem: str, caching: Set
) -> None:
    caching(locks={"BACKEND": DJANGO, "LOCATION": f"{scheme}://127.0.0.1:1/5", "OPTIONS": options})
    with pytest.raises(ImproperlyConfigured, match=re.escape(problem)):
        await Lock("a").aacquire()


def test_options_of_sentinels_are_for_coroutines_as_well(caching: Set) -> None:
    sentinels = {**ASKING_SENTINELS, "SENTINEL_KWARGS": {"ssl": True}}
    caching(locks=of(BACKEND=DJANGO_REDIS, LOCATION="redis://shop/0", OPTIONS=sentinels))
    assert ids() == []


@BOTH
def test_a_cache_in_the_same_database_is_found(backend: str, caching: Set, server: RedisServer) -> None:
    for same in (f"redis://localhost:{server.port}/5", f"unix://{server.socket}?db=5"):
        caching(pages={"BACKEND": backend, "LOCATION": same, "KEY_PREFIX": "pages"}, locks={"LOCATION": same})
        assert "the cache 'pages'" in only("I001").msg
    caching(pages={"BACKEND": backend, "LOCATION": f"redis://localhost:{server.port}/6"})
    assert ids() == []


def test_which_locks_exclude_each_other_and_whose_clear_flushes_them_is_said(caching: Set, setting: Set) -> None:
    pages = {"BACKEND": OURS, "LOCATION": "redis://127.0.0.1:1/6"}
    caching(pages=pages)
    (told,) = [message.msg for message in check() if message.id == "django_redislock.I001"]
    assert "'pages' share a Redis database with the cache 'pages'" in told
    caching(second={**pages, "VERSION": 2})
    (info,) = [message for message in check() if message.id == "django_redislock.I002"]
    assert "groups of cache aliases: 'locks'; 'pages' and 'second'. Lock('x') is on 'locks' (REDISLOCK" in info.msg
    assert "give all aliases of one Redis the same address" in f"{info.hint}"
    setting(CACHE="pages")
    assert "I002" not in ids()


def test_the_same_service_of_other_sentinels_is_another_database(caching: Set) -> None:
    def asking(user: str, *sentinels: tuple[str, int], backend: str = OURS) -> dict[str, Any]:
        location = f"redis://{user}@shop/0"  # django-redis has one pool for each URL
        return {"BACKEND": backend, "LOCATION": location, "OPTIONS": {**ASKING_SENTINELS, "SENTINELS": sentinels}}

    caching(
        locks=asking("a", ("127.0.0.1", 1), ("127.0.0.1", 2), backend=DJANGO_REDIS),
        same=asking("b", ("localhost", 2), ("127.0.0.1", 1)),
        others=asking("c", ("127.0.0.1", 3)),
    )
    told = {message.msg for message in check()}
    assert [text for text in told if "groups of cache aliases: 'locks' and 'same'; 'others'. " in text]
    (shared,) = [text for text in told if text.startswith("The locks of the cache alias 'locks' share")]
    assert "a Redis database with the cache 'same': " in shared


def test_how_to_spare_the_locks_of_cache_lock_is_told(caching: Set, setting: Set) -> None:
    caching(default={"BACKEND": OURS})
    setting(CACHE="default")
    assert "with cache.delete_pattern('*'), which spares them, instead of clear()" in str(only("I001").hint)
    cache: Any = caches["default"]
    with cache.lock("x") as lock:
        cache.delete_pattern("*")
        assert lock.owned()
