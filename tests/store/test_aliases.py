"""Whatever an alias in ``CACHES`` is given and wherever it leads, locks work, for threads and for coroutines."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings
from django_redis.pool import ConnectionFactory
from fakeredis import FakeRedisConnection

import django_redislock
from django_redislock import Counter, Lock, LockPool, LockUnavailable, list_locks
from redisserver import RedisServer, redis_server
from tests.helpers.actors import Crowd
from tests.helpers.ways import BOTH, DJANGO, DJANGO_REDIS, NAME, PASSWORD, alias, caches, connections
from tests.inside import connection_class, is_told, limit, listening_connection_class, own_channel

from .conftest import Eventually, Exercise

pytestmark = pytest.mark.usefixtures("own_pools")

# -- what it is given -----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"protocol": 3, "decode_responses": True},
        {"pool_class": "redis.connection.BlockingConnectionPool", "max_connections": 3, "timeout": 1},
        {"socket_timeout": 0.2, "socket_connect_timeout": 5},
        {"socket_keepalive": True, "retry_on_timeout": True, "health_check_interval": 1, "encoding": "latin-1"},
        {"redis_connect_func": lambda connection: connection.on_connect()},
    ],
    ids=lambda options: repr(sorted(options)),
)
def test_locks_work_whatever_the_alias_is_given(
    backend: str, keywords: dict[str, Any], exercise: Exercise, server: RedisServer
) -> None:
    with caches(alias(backend, server.url, **keywords)):
        exercise()


@BOTH
def test_the_key_prefix_of_the_alias_leads_every_key_and_channel(
    backend: str, server: RedisServer, client: redis.Redis
) -> None:
    site = {**alias(backend, server.url), "KEY_PREFIX": "site"}
    with caches(site, other=alias(backend, server.url)), Lock("a"), Lock("b", using="other"):
        assert own_channel().startswith("site:redislock{0}:wake:")
        with override_settings(REDISLOCK={"KEY_PREFIX": "mine"}), Lock("c"):
            keys = sorted(key.decode() for key in client.scan_iter())
    assert [key for key in keys if ":lock:" in key] == [
        "redislock{0}:lock:b",
        "site:mine{0}:lock:c",
        "site:redislock{0}:lock:a",
    ]
    assert all(key.startswith(("redislock{0}:", "site:mine{0}:", "site:redislock{0}:")) for key in keys)


@BOTH
def test_the_database_of_the_alias_is_used(backend: str, me: Any, server: RedisServer) -> None:
    with caches(alias(backend, server.url.removesuffix("/0") + "/3")), server.client(db=3) as third:
        me(Lock("a"), "acquire")
        assert third.exists("redislock{0}:lock:a")


@BOTH
def test_a_short_socket_timeout_does_not_end_a_long_wait(
    backend: str, crowd: Crowd, server: RedisServer, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=1000.0)  # nor is it over by a look of its own
    me, you, third, lock = crowd(), crowd(), crowd(), Lock("a", ttl=600)
    with caches(alias(backend, server.url, socket_timeout=0.2)):
        me(lock, "acquire")
        waiting = you.start(Lock("a"), "acquire")
        assert third(Lock("a"), "acquire", blocking_timeout=0.7) is False
        assert not waiting.done()
        me(lock, "release")
        assert waiting.result(15)


# -- where it leads -------------------------------------------------------------------------------------------------


@BOTH
def test_a_unix_socket(backend: str, server: RedisServer, exercise: Exercise, client: redis.Redis) -> None:
    with caches(alias(backend, f"unix://{server.socket}?db=2", client_name=NAME)):
        exercise()
        ours = connections(client)
    assert len(ours) >= 3
    # Valkey 9 writes "[" before the path
    where = {(connection["addr"].lstrip("[").split(":")[0], connection["db"]) for connection in ours}
    assert where == {(str(server.socket), "2")}


@BOTH
@pytest.mark.parametrize("where", ["url", "options"])
def test_a_password(backend: str, where: str, guarded: RedisServer, exercise: Exercise) -> None:
    url = f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/0"
    given = alias(backend, url if where == "url" else guarded.url)
    if where == "options":
        given["OPTIONS"] |= {"PASSWORD" if backend == DJANGO_REDIS else "password": PASSWORD}
    with caches(given):
        exercise()


@BOTH
def test_a_user_with_rights_to_the_locks_alone(backend: str, guarded: RedisServer, exercise: Exercise) -> None:
    url = f"redis://site:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/0"
    with caches({**alias(backend, url), "KEY_PREFIX": "site"}):
        exercise()
        assert is_told()


def test_a_wrong_password_is_a_clear_error(me: Any, guarded: RedisServer, retry_for: Callable[[float], None]) -> None:
    retry_for(0.1)
    wrong = alias(DJANGO_REDIS, f"redis://:wrong@127.0.0.1:{guarded.port}/0")
    with caches(wrong), pytest.raises(LockUnavailable, match=r"alias 'default'.*password"):
        me(Lock("a"), "acquire")


@BOTH
def test_tls_with_certificates_on_both_sides(
    backend: str, tls_port: int, certificate: Path, exercise: Exercise
) -> None:
    files = {"ssl_ca_certs": str(certificate), "ssl_certfile": str(certificate), "ssl_keyfile": str(certificate)}
    with caches(alias(backend, f"rediss://127.0.0.1:{tls_port}/0", ssl_cert_reqs="required", **files)):
        exercise()
        assert listening_connection_class() is redis.SSLConnection


def test_a_certificate_that_cannot_be_verified_is_a_clear_error(
    me: Any, tls_port: int, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    unknown = alias(DJANGO_REDIS, f"rediss://127.0.0.1:{tls_port}/0")
    with caches(unknown), pytest.raises(LockUnavailable) as caught:
        me(Lock("a"), "acquire")
    # older redis-py keeps it out of its own message
    assert re.search(r"(?i)certificate.verify.failed", "".join(traceback.format_exception(caught.value)))


@BOTH
def test_of_several_locations_the_first_has_the_locks(
    backend: str, exercise: Exercise, own: RedisServer, eventually: Eventually
) -> None:
    with redis_server() as second, own.client() as master, second.client() as replica:
        master.config_set("repl-diskless-sync-delay", 0)
        replica.replicaof("127.0.0.1", str(own.port))
        eventually(lambda: replica.info("replication")["master_link_status"] == "up")
        with caches(alias(backend, [own.url, second.url], client_name=NAME)):
            exercise()
            assert connections(master)
            assert not connections(replica)
            with Lock("a"):
                assert master.exists("redislock{0}:lock:a")


# -- where no lock can be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"CACHE": "locks"}])
def test_the_error_about_a_missing_alias_lists_the_existing_ones(me: Any, settings: dict[str, str]) -> None:
    given = r"in REDISLOCK\['CACHE'\]" if settings else "given as using"
    problem = rf"^Unknown cache alias 'locks' \({given}\)\. The aliases in CACHES are: default, memory\.$"
    with override_settings(REDISLOCK=settings), pytest.raises(ImproperlyConfigured, match=problem):
        me(Lock("a", using=None if settings else "locks"), "acquire")


@pytest.mark.parametrize(
    "use",
    [
        lambda: Lock("a", using="").acquire(),
        lambda: list_locks(using=""),
        lambda: LockPool("a", using="").extend(["a"]),
        lambda: Counter("a", using="").incr(),
        lambda: call_command("redislocks", "list", "--using", ""),
    ],
    ids=["Lock", "list_locks", "LockPool", "Counter", "--using"],
)
def test_an_empty_alias_is_an_error_like_any_missing_one(use: Callable[[], object]) -> None:
    with pytest.raises(
        (ImproperlyConfigured, CommandError), match=r"^Unknown cache alias ''.* are: default, memory\.$"
    ):
        use()


class Pigeon:
    """No connection at all."""


SHARDS = {"BACKEND": DJANGO_REDIS, "LOCATION": ["redis://127.0.0.1:1/0", "redis://127.0.0.1:1/1"]}
NO_LOCKS = [
    (
        {
            "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
            "LOCATION": str(Path(gettempdir()) / "redislock-no-cache"),
        },
        r"'default' \(.*FileBasedCache\) has no Redis connection.*memory",
    ),
    (
        {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "table"},
        r"'default' \(.*DatabaseCache\) has no Redis connection.*memory",
    ),
    (
        {"BACKEND": DJANGO, "LOCATION": "localhost:6379"},
        "Cannot use the cache alias 'default' for locks: ValueError: Redis URL",
    ),
    (
        {"BACKEND": DJANGO_REDIS, "LOCATION": "localhost:6379"},
        "Cannot use the cache alias 'default' for locks: ValueError: Redis URL",
    ),
    ({"BACKEND": DJANGO_REDIS, "LOCATION": ""}, "Cannot use the cache alias 'default' for locks: Missing connections"),
    (
        {**SHARDS, "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"}},
        "'default' spreads .* over several servers",
    ),
    *(
        (
            alias(backend, "redis://127.0.0.1:1/0", connection_class=partial(kind)),
            r"connection_class of the cache alias 'default' must be a class, not functools\.partial",
        )
        for backend in (DJANGO, DJANGO_REDIS)
        for kind in (redis.Connection, FakeRedisConnection)
    ),
    (
        alias(DJANGO_REDIS, "redis://127.0.0.1:1/0", connection_class=Pigeon),
        r"^Cannot use the cache alias 'default' for locks: TypeError: Pigeon\(\) takes no arguments$",
    ),
    *(
        (
            {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://127.0.0.1:1/0", "KEY_PREFIX": prefix},
            rf"'default' must not contain braces .*, whitespace.*: {re.escape(repr(prefix))}",
        )
        for prefix in ("{site}", "a{", "}", "my site", "a\n", "\x7f")
    ),
]


@pytest.mark.parametrize(("given", "problem"), NO_LOCKS, ids=[problem[-40:] for _, problem in NO_LOCKS])
def test_an_alias_that_cannot_hold_locks_is_a_clear_error(given: dict[str, Any], problem: str, me: Any) -> None:
    asking: list[Callable[[], Any]] = [
        lambda: me(Lock("a"), "acquire"),
        lambda: me(django_redislock, "list_locks"),
    ]
    for ask in asking:
        with caches(given), pytest.raises(ImproperlyConfigured, match=problem):
            ask()


# -- connection classes, for coroutines -----------------------------------------------------------------------------


class AsyncOwn(redis.asyncio.Connection):
    """Its counterpart."""


class Own(redis.Connection):
    """A site's own connection, still a TCP connection."""

    async_class = AsyncOwn


class Pinning(redis.SSLConnection):
    """Accepts no certificate but one, which no server of these tests has."""

    def _connect(self) -> Any:
        made: Any = super()._connect()  # type: ignore[no-untyped-call]
        made.close()
        raise redis.ConnectionError("not the certificate that is pinned")


class Heir(Own):
    """What it does more, the counterpart of its base does not do."""


@BOTH
def test_a_class_of_a_sites_own_names_its_counterpart(
    backend: str, server: RedisServer, exercise: Exercise, crowd: Crowd
) -> None:
    with caches(alias(backend, server.url, connection_class=Own)):
        exercise()
        assert issubclass(connection_class(asynchronous=crowd.awaits), AsyncOwn if crowd.awaits else Own)


async def test_certificate_checks_are_never_skipped(
    tls_port: int, certificate: Path, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    files = {"ssl_ca_certs": str(certificate), "ssl_certfile": str(certificate), "ssl_keyfile": str(certificate)}
    pinned = alias(DJANGO_REDIS, f"rediss://127.0.0.1:{tls_port}/0", **files)
    with override_settings(DJANGO_REDIS_CONNECTION_FACTORY=f"{__name__}.PinningFactory"), caches(pinned):
        assert connection_class(asynchronous=False) is Pinning
        with pytest.raises(LockUnavailable, match="not the certificate"):
            await sync_to_async(Lock("a").acquire)()
        with pytest.raises(ImproperlyConfigured, match=r"Pinning has no counterpart.*alias 'default'.*async_class"):
            await Lock("a").aacquire()


class PinningFactory(ConnectionFactory):  # type: ignore[misc]
    """rediss:// itself names the connection class, so a site puts its own in here."""

    def get_or_create_connection_pool(self, params: dict[str, Any]) -> Any:
        pool = super().get_or_create_connection_pool(params)
        pool.connection_class = Pinning
        return pool


class Carrier(redis.connection.AbstractConnection):
    """A connection over something that redis-py knows nothing about."""

    def __init__(self, *, host: str, port: int, **keywords: Any) -> None:
        super().__init__(**keywords)

    def repr_pieces(self) -> list[tuple[str, object]]:
        return []

    def _connect(self) -> Any:
        raise AssertionError("not reached")

    def _host_error(self) -> str:
        return "nowhere"


FAR = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        *(
            (
                alias(DJANGO_REDIS, FAR, connection_class=kind),
                rf"connection class tests\.store\.test_aliases\.{kind.__name__} has no counterpart in redis\.asyncio",
            )
            for kind in (Carrier, Heir)
        ),
        (
            alias(DJANGO, "rediss://127.0.0.1:1/0", ssl_cert_reqs="none", ssl_validate_ocsp=True),
            r"SSLConnection does not know ssl_validate_ocsp of the cache alias 'default'",
        ),
    ],
    ids=["Carrier", "Heir", "a TLS option"],
)
async def test_what_coroutines_cannot_use_is_a_clear_error_and_never_ignored(
    given: dict[str, Any], problem: str
) -> None:
    with caches(given):
        with pytest.raises(ImproperlyConfigured, match=problem):
            await Lock("a").aacquire()
        with pytest.raises(ImproperlyConfigured, match=problem):
            await django_redislock.alist_locks()
