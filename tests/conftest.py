"""One private redis-server for the session; every test starts with it empty."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from django.conf import settings
from django.core.cache import caches
from django.core.signals import setting_changed
from django.test import TestCase

from django_redislock import Lock, lock_acquired, lock_force_released, lock_lost, lock_released
from redisserver import NoServerError, RedisServer, find_server, redis_server
from tests.helpers.actors import Crowd, Ghost, Other, until
from tests.helpers.databases import Account, Commits, mariadb_server, one_database, postgres_server, sqlite_file
from tests.helpers.docs import Undocumented
from tests.helpers.jobs import Program
from tests.helpers.processes import Worker, left_out
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.state import endless, trips, two_aliases, waiters  # noqa: F401 (fixtures)
from tests.helpers.ways import certificate, guarded, sentinels, tls_port  # noqa: F401 (fixtures)
from tests.inside import command, hears, let_go, limit, listen, note_loops

T = TypeVar("T")

# a shell that runs the tests in the background ignores these signals, and so would programs that the tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# between two tests pytest captures no log: what a listener logs then, whose server has gone with a test, would be
# printed by logging's handler of last resort
undocumented = Undocumented()
logging.getLogger("django_redislock").addHandler(undocumented)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--complete", action="store_true", help="run the long tests as well")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    """Every test needs Redis, so without it the run does not begin."""
    try:
        find_server()
    except NoServerError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after the output of all other plugins
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield
    if line := left_out(report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line, yellow=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("complete") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))  # those that compute for a minute, on a machine that is busy
    if not config.getoption("--complete"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("complete")])
        items[:] = [item for item in items if not item.get_closest_marker("complete")]


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        os.environ["REDISLOCK_TEST_URL"] = running.url
        settings.CACHES["default"]["LOCATION"] = running.url
        # a module may have made the cache while tests were collected
        setting_changed.send(sender=None, setting="CACHES", value=settings.CACHES, enter=True)
        yield running


@pytest.fixture(autouse=True)
def client(server: RedisServer) -> Iterator[redis.Redis]:
    """A plain client, to look at Redis from outside; the server is flushed before each test."""
    with server.client() as plain:
        plain.flushall()
        yield plain


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """What is logged stands in the documentation. Locks that a test did not release are dropped, as if its threads had
    never existed; what it left open in a closed event loop would warn in whichever later test it is collected."""
    with pytest.MonkeyPatch.context() as patch:
        left_open = note_loops(patch)
        limit(patch, grace=5.0)  # on a busy machine, an answer may take long: who tries once would get an error
        yield
    let_go()
    found, undocumented.found = undocumented.found, []
    assert (left_open(), found) == (0, [])


def _makes(make: Callable[..., T], end: Callable[[T], object]) -> Iterator[Callable[..., T]]:
    """What makes such things; all of them end with the test."""
    with ExitStack() as stack:

        def one(*args: Any, **options: Any) -> T:
            made = make(*args, **options)
            stack.callback(end, made)
            return made

        yield one


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    yield from _makes(Worker, Worker.kill)


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    yield from _makes(Program, Program.kill)


@pytest.fixture
def other() -> Iterator[Callable[[], Other]]:
    yield from _makes(Other, Other.end)


@pytest.fixture
def ghost(client: redis.Redis) -> Iterator[Callable[..., Ghost]]:
    yield from _makes(partial(Ghost, client), Ghost.close)


@pytest.fixture
def own(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A server for this test alone, which it can stop and restart; the default alias of this process and of workers
    uses it."""
    with redis_server() as running:
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": running.url}}
        monkeypatch.setenv("REDISLOCK_TEST_URL", running.url)
        yield running


@pytest.fixture
def replica(own: RedisServer) -> Iterator[RedisServer]:
    """A replica of ``own``, which keeps up with it."""
    with redis_server() as running, running.client() as replica, own.client() as master:
        replica.replicaof("127.0.0.1", str(own.port))
        until(lambda: replica.info("replication")["master_link_status"] == "up")
        until(lambda: master.incr("mark") and master.wait(1, 1000))
        yield running


@pytest.fixture
def network(server: RedisServer, settings: Any) -> Iterator[Proxy]:
    """A proxy between the default alias and the server."""
    with proxy(server.port) as running:
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": running.url}}
        yield running
        settings.CACHES = {**settings.CACHES}


@pytest.fixture
def fresh(settings: Any) -> None:
    """Start as in a new process: no connections, no listeners."""
    settings.CACHES = {**settings.CACHES}


@pytest.fixture
def listening(fresh: None) -> None:
    """Subscribe first, so that waiters queue at once."""
    listen()
    until(hears)


@pytest.fixture(params=["default", "memory"])
def using(request: pytest.FixtureRequest) -> str:
    """The test runs twice: on an alias of the session's server, and on one of fakeredis in this process."""
    command("FLUSHALL", using="memory")
    return str(request.param)


@pytest.fixture
def nowhere(settings: Any, retry_for: Callable[[float], None]) -> None:
    """There is no Redis: whoever needs it gets LockUnavailable."""
    retry_for(0.1)
    nowhere = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "default": nowhere}


@pytest.fixture
def retry_for(settings: Any) -> Callable[[float], None]:
    def retry_for(seconds: float) -> None:
        settings.REDISLOCK = {**getattr(settings, "REDISLOCK", {}), "RETRY_FOR": seconds}

    return retry_for


@pytest.fixture
def cache_lock(settings: Any) -> Callable[..., Any]:
    """``cache.lock()`` of our backend, on the default alias's Redis."""
    ours = {**settings.CACHES["default"], "BACKEND": "django_redislock.cache.RedisCache"}
    settings.CACHES = {**settings.CACHES, "ours": ours}
    return lambda name, **options: caches["ours"].lock(name, **options)  # type: ignore[attr-defined]


@pytest.fixture(params=[False, True], ids=["threads", "tasks"])
def crowd(request: pytest.FixtureRequest) -> Iterator[Crowd]:
    """Makes users of locks. The test runs twice: with threads, and with tasks of an event loop."""
    with closing(Crowd(tasks=request.param)) as made:
        yield made


@pytest.fixture
def me(crowd: Crowd) -> Any:
    return crowd()


@pytest.fixture
def you(crowd: Crowd) -> Any:
    return crowd()


@pytest.fixture
def queue(other: Callable[[], Other]) -> Callable[..., Future[bool]]:
    """Let somebody (a thread, if it is not said who) wait for a lock; return their future."""

    def queue(lock: Lock, who: Any = None, **options: Any) -> Future[bool]:
        before = waiters(lock.name, lock.using)
        acquire = partial(lock.acquire, **options)
        waiting: Future[bool] = other().start(acquire) if who is None else who.start(lock, "acquire", **options)
        until(lambda: waiters(lock.name, lock.using) > before)
        return waiting

    return queue


@pytest.fixture
def no_look_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters look at the end of a lease, and otherwise only when they are told."""
    limit(monkeypatch, look_every=1000.0)


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The signals that were sent: (name of the signal, arguments)."""
    heard: list[tuple[str, dict[str, Any]]] = []
    signals = {"acquired": lock_acquired, "released": lock_released, "lost": lock_lost, "force": lock_force_released}

    def receive(which: str, *, sender: type, signal: object, **facts: Any) -> None:
        heard.append((which, facts))

    with ExitStack() as stack:
        for which, sent in signals.items():
            sent.connect(receiver := partial(receive, which), weak=False)
            stack.callback(sent.disconnect, receiver)
        yield heard


@pytest.fixture(scope="session")
def postgres() -> Iterator[dict[str, Any]]:
    with postgres_server() as options:
        yield options


@pytest.fixture(scope="session")
def mariadb() -> Iterator[dict[str, Any]]:
    with mariadb_server() as options:
        yield options


@pytest.fixture
def sqlite(tmp_path: Path) -> dict[str, Any]:
    return sqlite_file(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def account(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[Account]:
    """A real database under ``default`` with one row in it, not inside a test's transaction."""
    with django_db_blocker.unblock(), one_database("default", request.getfixturevalue(request.param)) as made:
        yield made


@pytest.fixture
def second(tmp_path: Path, account: Account) -> Iterator[Account]:
    with one_database("second", {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "second.sqlite3"}) as made:
        yield made


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


@pytest.fixture
def in_testcase(account: Account) -> Iterator[None]:
    case: Any = TestCase
    atomics = case._enter_atomics()
    yield
    case._rollback_atomics(atomics)
