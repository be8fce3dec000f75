"""Whatever an alias in ``CACHES`` is given and wherever it leads, locks work, for threads and for coroutines."""

import re
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
from django.core.cache import caches as caches_of_django
from django.core.cache.backends.base import BaseCache
from django.core.cache.backends.redis import RedisCache
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings
from redis._parsers import _RESP3Parser

from django_redislock import Counter, Lock, LockPool, LockUnavailable, list_locks
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.operations import all_of_them
from tests.helpers.processes import Worker
from tests.helpers.ways import BOTH, DJANGO_REDIS, NAME, PASSWORD, alias, caches, connections
from tests.inside import (
    Wire,
    connection_class,
    limit,
    listening_connection_class,
    own_channel,
    seconds_to_keepalive,
    shown_alias,
)

from .conftest import Exercise


@BOTH
@pytest.mark.parametrize(
    "keywords",
    [
        {"protocol": 3, "decode_responses": True, "encoding": "latin-1", "parser_class": _RESP3Parser},
        {"pool_class": "redis.connection.BlockingConnectionPool", "max_connections": 3, "timeout": 1},
        {"socket_timeout": 0.2, "socket_keepalive": True, "retry_on_timeout": True, "health_check_interval": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_locks_work_whatever_the_alias_is_given(
    backend: str, keywords: dict[str, Any], exercise: Exercise, server: RedisServer
) -> None:
    with caches(alias(backend, server.url, **keywords)):
        exercise()


@BOTH
@pytest.mark.parametrize("crowd", [False], ids=["threads"], indirect=True)
def test_threads_connect_by_the_function_of_the_alias(backend: str, exercise: Exercise, server: RedisServer) -> None:
    connected: list[redis.Connection] = []

    def connect(connection: redis.Connection) -> None:
        connection.on_connect()
        connected.append(connection)

    with caches(alias(backend, server.url, redis_connect_func=connect)):
        exercise()
    assert connected


@pytest.mark.parametrize(
    ("given", "idle"),
    [({"socket_keepalive": None}, 15), ({"socket_keepalive": False}, 0)],
    ids=["ours", "the alias's own"],
)
def test_the_system_looks_after_idle_connections_unless_the_alias_has_it_otherwise(
    given: dict[str, Any], idle: int, me: Any, server: RedisServer
) -> None:
    """So that nothing on the way forgets them without a word."""
    with caches(alias(DJANGO_REDIS, server.url, **given)):
        me(Wire(), "exchange", ("PING",))
        assert me.read(seconds_to_keepalive) == idle


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


def test_each_of_two_aliases_with_the_same_url_has_its_own_options(crowd: Crowd, server: RedisServer) -> None:
    """django-redis keeps one pool for both, with the options of whichever is used first: as two processes may use them
    in different orders, two would hold a lock at once."""
    me, you, url = crowd(), crowd(), f"redis://127.0.0.1:{server.port}"
    first, second = (alias(DJANGO_REDIS, url, db=number) for number in (1, 2))
    with caches(first, second=second, plain=alias(DJANGO_REDIS, f"{url}/2")):
        caches_of_django["default"].set(NAME, 1)
        lock, other = Lock(NAME), Lock(NAME, using="second")
        me(lock, "acquire")
        assert me(other, "acquire", blocking=False)
        assert not you(Lock(NAME, using="plain"), "acquire", blocking=False)
        me(other, "release")
        me(lock, "release")


def test_a_short_socket_timeout_does_not_end_a_long_wait(
    crowd: Crowd, server: RedisServer, monkeypatch: pytest.MonkeyPatch, retry_for: Callable[[float], None]
) -> None:
    retry_for(GENEROUS)
    limit(monkeypatch, look_every=1000.0)  # nor is it over by a look of its own
    me, you, third, lock = crowd(), crowd(), crowd(), Lock("a", ttl=600)
    with caches(alias(DJANGO_REDIS, server.url, socket_timeout=0.5)):
        me(lock, "acquire")
        waiting = you.start(Lock("a"), "acquire")
        assert third(Lock("a"), "acquire", blocking_timeout=1.5) is False
        assert not waiting.done()
        me(lock, "release")
        assert waiting.result(GENEROUS)


@BOTH
def test_a_database_behind_a_unix_socket(
    backend: str, server: RedisServer, exercise: Exercise, client: redis.Redis
) -> None:
    with caches(alias(backend, f"unix://{server.socket}?db=2", client_name=NAME)):
        exercise()
        ours = connections(client)
    assert len(ours) >= 3
    # Valkey 9 writes "[" before the path
    where = {(connection["addr"].lstrip("[").split(":")[0], connection["db"]) for connection in ours}
    assert where == {(str(server.socket), "2")}


class OwnDirectory(RedisCache):
    """A site's own backend, with what its connections need for as long as it lives."""

    def __init__(self, socket: str, params: dict[str, Any]) -> None:
        directory = mkdtemp()
        weakref.finalize(self, rmtree, directory)
        link = Path(directory, "link")
        link.symlink_to(socket)
        super().__init__(f"unix://{link}", params)


def test_a_cache_of_a_sites_own_lives_as_long_as_connections_are_made(server: RedisServer, exercise: Exercise) -> None:
    with caches({"BACKEND": f"{__name__}.OwnDirectory", "LOCATION": str(server.socket)}):
        exercise()


@BOTH
@pytest.mark.parametrize("where", ["url", "options"])
def test_a_password(
    backend: str, where: str, guarded: RedisServer, exercise: Exercise, me: Any, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    url = f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/0"
    given = alias(backend, url if where == "url" else guarded.url)
    if where == "options":
        given["OPTIONS"] |= {"PASSWORD" if backend == DJANGO_REDIS else "password": PASSWORD}
    with caches(given):
        exercise()
    wrong = alias(backend, f"redis://:wrong@127.0.0.1:{guarded.port}/0")
    with caches(wrong), pytest.raises(LockUnavailable, match=r"alias 'default'.*password"):
        me(Lock("a"), "acquire")


@BOTH
def test_tls_with_certificates_on_both_sides(
    backend: str, tls_port: int, certificate: Path, exercise: Exercise, me: Any, retry_for: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    retry_for(0.1)
    limit(monkeypatch, check_idle_threads=-1.0)  # each time that a connection is used
    files = {"ssl_ca_certs": str(certificate), "ssl_certfile": str(certificate), "ssl_keyfile": str(certificate)}
    with caches(alias(backend, f"rediss://127.0.0.1:{tls_port}/1", ssl_cert_reqs="required", **files)):
        first = Wire().exchange(("CLIENT", "ID"))
        assert Wire().exchange(("CLIENT", "ID")) == first
        Wire().spoil("closed")
        assert Wire().exchange(("CLIENT", "ID")) != first
        exercise()
        assert listening_connection_class() is redis.SSLConnection
    unknown = alias(backend, f"rediss://127.0.0.1:{tls_port}/0")
    with caches(unknown), pytest.raises(LockUnavailable) as caught:
        me(Lock("a"), "acquire")
    # older redis-py keeps it out of its own message
    assert re.search(r"(?i)certificate.verify.failed", "".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize(
    "use",
    [
        lambda: Lock("a").acquire(),
        lambda: Lock("a", using="").acquire(),
        lambda: Lock("a", using=["locks"]).acquire(),  # type: ignore[arg-type]
        lambda: list_locks(using=""),
        lambda: LockPool("a", using="").extend(["a"]),
        lambda: Counter("a", using="").incr(),
        lambda: call_command("redislocks", "list", "--using", ""),
    ],
    ids=["the setting", "Lock", "a list", "list_locks", "LockPool", "Counter", "--using"],
)
def test_the_error_about_a_missing_alias_lists_the_existing_ones(use: Callable[[], object]) -> None:
    found = r"'locks' \(in REDISLOCK\['CACHE'\]\)|(''|\['locks'\]) \(given as using\)"
    problem = rf"^Unknown cache alias ({found})\. The aliases in CACHES are: default, memory\.$"
    with (
        override_settings(REDISLOCK={"CACHE": "locks"}),
        pytest.raises((ImproperlyConfigured, CommandError), match=problem),
    ):
        use()


class AsyncOwn(redis.asyncio.Connection):
    """Its counterpart."""


class Own(redis.Connection):
    """A site's own connection, still a TCP connection."""

    async_class = AsyncOwn


@BOTH
def test_a_class_of_a_sites_own_names_its_counterpart_and_what_both_say_as_they_connect_is_sent_as_text(
    backend: str, server: RedisServer, exercise: Exercise, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18: hiredis crashes the interpreter if a signal handler raises while it packs a number."""
    kind: Any = AsyncOwn if crowd.awaits else Own
    sent: list[tuple[Any, ...]] = []
    send = kind.send_command

    def note(connection: Any, *words: Any, **options: Any) -> Any:
        sent.append(words)
        return send(connection, *words, **options)

    monkeypatch.setattr(kind, "send_command", note)
    with caches(alias(backend, f"redis://127.0.0.1:{server.port}/1", connection_class=Own)):
        exercise()
        assert issubclass(connection_class(asynchronous=crowd.awaits), kind)
    assert ("SELECT", "1") in sent
    assert [words for words in sent if not all(isinstance(word, (str, bytes)) for word in words)] == []


class Foreign:
    """As that of valkey-py, which django-valkey uses."""

    def __init__(self, **options: Any) -> None: ...


@BOTH
def test_a_connection_of_another_library_is_refused_before_anything_is_sent(backend: str, server: RedisServer) -> None:
    with (
        caches(alias(backend, server.url, connection_class=Foreign)),
        pytest.raises(
            ImproperlyConfigured, match=rf"'default' connects through {__name__}, but locks work only through redis-py"
        ),
    ):
        Lock(NAME).acquire()


class OfDjangoValkey(BaseCache):
    """As its backend for a cluster: it connects as soon as it is asked for its client, with errors of its own."""

    __module__ = "django_valkey.cluster_cache.cache"

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self.client = self

    def get_client(self, **options: Any) -> Any:
        raise OSError("Valkey Cluster cannot be connected")


class OfTheSite(OfDjangoValkey): ...


def test_django_valkey_is_refused_before_it_connects() -> None:
    text = "The cache alias 'default' connects through valkey-py, but locks work only through redis-py"
    with caches({"BACKEND": f"{__name__}.OfTheSite"}):
        with pytest.raises(ImproperlyConfigured, match=text):
            Lock(NAME).acquire()
        assert [error.id for error in run_checks() if text in error.msg] == ["django_redislock.E003"]


@BOTH
def test_a_server_without_a_password_does_not_mind_one(backend: str, crowd: Crowd, server: RedisServer) -> None:
    """Nor does it for the cache: a developer's server, and the URL of production."""
    me, lock = crowd(), Lock(NAME)
    with caches(alias(backend, server.url.replace("//", "//:s3cret@"))):
        me(lock, "acquire")
        me(lock, "release")


def test_a_database_that_is_no_integer_is_an_error_at_once(me: Any, server: RedisServer) -> None:
    """ "Not an integer" does not mean that somebody has written our keys, which nobody can look at here."""
    given = alias(DJANGO_REDIS, f"redis://127.0.0.1:{server.port}", db=1.0)
    with caches(given), pytest.raises(LockUnavailable, match="refuses to serve the lock 'a'"):
        me(Lock("a"), "acquire")


def test_what_error_reports_show_of_an_alias_has_no_password(settings: Any) -> None:
    settings.CACHES = {"default": alias(DJANGO_REDIS, "redis://user:s3cret@127.0.0.1:1/0")}
    assert "s3cret" not in shown_alias()


# -- the memory mode: an in-process server that runs the same scripts -----------------------------------------------

LOCMEM = "django.core.cache.backends.locmem.LocMemCache"
DUMMY = "django.core.cache.backends.dummy.DummyCache"

in_memory = pytest.mark.usefixtures("_memory")
KINDS = pytest.mark.parametrize("_memory", [LOCMEM, DUMMY], ids=["LocMemCache", "DummyCache"], indirect=True)


@pytest.fixture
def _memory(request: pytest.FixtureRequest, settings: Any) -> None:
    """The default alias, and another one, have no Redis."""
    kind = getattr(request, "param", LOCMEM)
    settings.CACHES = {"default": {"BACKEND": kind}, "second": {"BACKEND": kind}}


@in_memory
@KINDS
def test_locks_pools_and_values_work(crowd: Crowd, exercise: Exercise) -> None:
    exercise()
    all_of_them(crowd)


@in_memory
def test_what_asks_for_replicas_works(crowd: Crowd, settings: Any) -> None:
    settings.REDISLOCK = {"REPLICAS": 1}
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    assert me(lock, "extend", 60)
    me(lock, "release")


@in_memory
@KINDS
def test_each_alias_has_a_server_of_its_own(me: Any, you: Any, settings: Any) -> None:
    me(Lock(NAME), "acquire")
    assert me(Lock(NAME, using="default"), "locked")
    assert not me(Lock(NAME, using="second"), "locked")
    assert me(Lock("other", using="second"), "acquire", blocking=False)
    assert not you(Lock("other"), "locked")
    settings.REDISLOCK = {"CACHE": "second"}
    assert you(Lock("other"), "locked")
    settings.CACHES = {**settings.CACHES}  # new servers
    assert not you(Lock("other"), "locked")


FORKED = """
from django.test import override_settings

def wait_for(held):
    thread = threading.Thread(target=Lock(name, blocking_timeout=60).acquire, daemon=True)
    thread.start()
    while held.info().waiters == 0:
        time.sleep(0.001)
    return thread

with override_settings(CACHES={"default": {"BACKEND": backend}}):
    lock = Lock(name)
    lock.acquire()
    waiting = wait_for(lock)  # its threads run at the time of the fork
    if os.fork() == 0:
        say("child", Lock(name).locked(), lock.token)
        lock = Lock(name)
        lock.acquire()
        waiting = wait_for(lock)
    else:
        os.wait()
    lock.release()
    waiting.join(30)
    say("next", waiting.is_alive())
    os._exit(0)
"""


@in_memory
def test_a_fork_starts_a_fresh_server_and_leaves_the_parent_alone(start: Callable[..., Worker]) -> None:
    worker = start(FORKED, fresh=True, name=NAME, backend=LOCMEM)
    assert worker.expect("child") == ["False", "None"]
    assert worker.expect("next") == ["False"]
    assert worker.expect("next") == ["False"]


@in_memory
@KINDS
@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])  # the former may have been installed without the latter
def test_without_fakeredis_the_error_says_what_to_install(
    missing: str, me: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CACHES = {**settings.CACHES}
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImproperlyConfigured, match=r"'default'.*pip install \"django-redislock\[memory\]\""):
        me(Lock(NAME), "acquire")


@in_memory
def test_its_begin_is_logged_once_unless_debug_is_on(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    def begin() -> int:
        caplog.clear()
        settings.CACHES = {**settings.CACHES}
        for prefix in "one", "other":
            with override_settings(REDISLOCK={"KEY_PREFIX": prefix}), Lock(NAME):
                pass
        return caplog.text.count("event=memory-mode alias=default detail=")

    assert begin() == 1
    settings.DEBUG = True
    assert begin() == 0


@in_memory
def test_where_redis_is_required_it_is_an_error(me: Any, settings: Any) -> None:
    message = r"^The cache alias 'default' is not Redis, and REDISLOCK\['REQUIRE_REDIS'\] is True: "
    for begun in False, True:
        settings.CACHES = {**settings.CACHES}
        if begun:
            me(Lock(NAME), "locked")
        with override_settings(REDISLOCK={"REQUIRE_REDIS": True}), pytest.raises(ImproperlyConfigured, match=message):
            me(Lock(NAME), "acquire")
    assert me(Lock(NAME), "acquire")
