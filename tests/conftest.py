"""One private redis-server for the session; every test starts with it empty."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings
from django.core.signals import setting_changed
from django.test import TestCase

from django_redislock import Lock, lock_acquired, lock_force_released, lock_lost, lock_released
from redisserver import NoServerError, RedisServer, find_server, redis_server
from tests.helpers.actors import Actor, Crowd, Ghost, Other
from tests.helpers.databases import Account, Commits, one_database, sqlite_file
from tests.helpers.docs import Undocumented
from tests.helpers.mariadb import find_server as find_mariadb
from tests.helpers.mariadb import mariadb_server
from tests.helpers.postgres import find_programs, postgres_server
from tests.helpers.processes import Worker
from tests.helpers.requirements import left_out, require
from tests.helpers.ways import certificate as certificate
from tests.helpers.ways import guarded as guarded
from tests.helpers.ways import own_pools as own_pools
from tests.helpers.ways import sentinels as sentinels
from tests.helpers.ways import tls_port as tls_port
from tests.inside import let_go, note_loops, will_hear_of

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
    skipped = terminalreporter.stats.get("skipped", [])
    line = left_out(report.longrepr[2] for report in skipped)
    if line:
        terminalreporter.write_line(line, yellow=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--complete"):
        long = [item for item in items if item.get_closest_marker("complete")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[RedisServer]:
    """The session's server."""
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
def _let_go() -> Iterator[None]:
    """Drop locks that a test did not release, as if its threads had never existed."""
    yield
    let_go()


@pytest.fixture(autouse=True)
def _no_loose_ends() -> Iterator[None]:
    """Collect what a test left open in a closed event loop, since it would warn in whichever later test it is
    collected."""
    with pytest.MonkeyPatch.context() as patch:
        left_open = note_loops(patch)
        yield
    assert left_open() == 0


@pytest.fixture(autouse=True)
def _documented() -> Iterator[None]:
    """What is logged stands in the documentation."""
    yield
    found, undocumented.found = undocumented.found, []
    assert found == []


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Start worker processes; those that still run at the end are killed."""
    workers: list[Worker] = []

    def start(code: str, **values: Any) -> Worker:
        worker = Worker(code, **values)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture
def other() -> Iterator[Callable[[], Other]]:
    """Make threads that run what they are given."""
    made: list[Other] = []

    def other() -> Other:
        made.append(Other())
        return made[-1]

    yield other
    for thread in made:
        thread.end()


@pytest.fixture
async def actor() -> AsyncIterator[Callable[[], Actor]]:
    """Make tasks that run what they are given."""
    made: list[Actor] = []

    def actor() -> Actor:
        made.append(Actor())
        return made[-1]

    yield actor
    for task in made:
        await task.end()


@pytest.fixture
def ghost(client: redis.Redis) -> Iterator[Callable[..., Ghost]]:
    """Make simulated processes that queue and do nothing else."""
    made: list[Ghost] = []

    def ghost(*, alive: bool = True) -> Ghost:
        made.append(Ghost(client, alive=alive))
        return made[-1]

    yield ghost
    for one in made:
        one.close()


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Wait for a state, not for a time; return what the condition returned."""

    def eventually(condition: Callable[[], Any], within: float = 20) -> Any:
        deadline = time.monotonic() + within
        while not (result := condition()):
            if time.monotonic() >= deadline:
                faulthandler.dump_traceback(2)  # what all threads are doing, for the log
                pytest.fail(f"still not so after {within} s")
            time.sleep(0.002)
        return result

    return eventually


@pytest.fixture
def listens(eventually: Callable[..., Any]) -> Callable[[Lock], None]:
    """Wait until the holder's process would learn from a message that the lock is lost, and not by asking."""
    return lambda lock: eventually(lambda: will_hear_of(lock))


@pytest.fixture
def aeventually() -> Callable[[Callable[[], Any]], Awaitable[Any]]:
    """The same for coroutines, and for conditions that must be awaited."""

    async def aeventually(condition: Callable[[], Any], within: float = 20) -> Any:
        deadline = time.monotonic() + within
        while True:
            result = condition()
            if result := (await result if isawaitable(result) else result):
                return result
            assert time.monotonic() < deadline, f"still not so after {within} s"
            await asyncio.sleep(0.002)

    return aeventually


@pytest.fixture
def own(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A server for this test alone, which it can stop and restart; the default alias of this process and of workers
    uses it."""
    with redis_server() as running:
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": running.url}}
        monkeypatch.setenv("REDISLOCK_TEST_URL", running.url)
        yield running


@pytest.fixture
def fresh(settings: Any) -> None:
    """Start as in a new process: no connections, no listeners."""
    settings.CACHES = {**settings.CACHES}


@pytest.fixture
def retry_for(settings: Any) -> Callable[[float], None]:
    """Set for how many seconds failed calls are retried."""

    def retry_for(seconds: float) -> None:
        settings.REDISLOCK = {**getattr(settings, "REDISLOCK", {}), "RETRY_FOR": seconds}

    return retry_for


@pytest.fixture(params=[False, True], ids=["threads", "tasks"])
def crowd(request: pytest.FixtureRequest) -> Iterator[Crowd]:
    """Makes users of locks. The test runs twice: with threads, and with tasks of an event loop."""
    made = Crowd(tasks=request.param)
    yield made
    made.close()


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The signals that were sent: (name of the signal, arguments)."""
    heard: list[tuple[str, dict[str, Any]]] = []
    signals = {
        "acquired": lock_acquired,
        "released": lock_released,
        "lost": lock_lost,
        "force": lock_force_released,
    }
    receivers = {}

    def receiver(which: str) -> Callable[..., None]:
        def receive(*, sender: type, signal: object, **facts: Any) -> None:
            heard.append((which, facts))

        return receive

    for which, sent in signals.items():
        receivers[which] = receiver(which)
        sent.connect(receivers[which], weak=False)
    yield heard
    for which, sent in signals.items():
        sent.disconnect(receivers[which])


@pytest.fixture(scope="session")
def postgres() -> Iterator[dict[str, Any]]:
    """The session's PostgreSQL, as DATABASES describes it."""
    with postgres_server(require(find_programs)) as options:
        yield options


@pytest.fixture(scope="session")
def mariadb() -> Iterator[dict[str, Any]]:
    """The session's MariaDB, as DATABASES describes it."""
    with mariadb_server(require(find_mariadb)) as options:
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
    """Another database, under the alias ``second``."""
    options = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "second.sqlite3")}
    with one_database("second", options) as made:
        yield made


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    """Records which locks are held when a transaction commits."""
    return Commits(monkeypatch)


@pytest.fixture
def in_testcase(account: Account) -> Iterator[None]:
    """Run inside a TestCase's transaction, as its tests do."""
    case: Any = TestCase
    atomics = case._enter_atomics()
    yield
    case._rollback_atomics(atomics)
