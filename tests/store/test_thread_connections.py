"""Connections of threads: how many there are, who waits for one, and what becomes of those that break."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockUnavailable, get_lock
from django_redislock.conf import conf
from django_redislock.store.stores import get_partition
from django_redislock.store.thread_connections import _Loan
from django_redislock.store.wire import NotAsked, exchange
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.ways import BOTH, DJANGO_REDIS, NAME, alias, caches, connections, kill, stopped
from tests.inside import limit

from .conftest import Eventually, all_at_once

pytestmark = pytest.mark.usefixtures("own_pools")


def ask_again(ask: Callable[[], Any], expected: Any) -> None:
    """Ask as often as a slow machine makes a short timeout strike; any answer must be the right one."""
    for _ in range(50):
        try:
            assert ask() == expected
        except redis.TimeoutError:
            continue
        return
    pytest.fail("the server never answered in time")


# -- how many -------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("bound", [3, 100])
def test_the_number_of_connections_is_bounded(
    backend: str, bound: int, server: RedisServer, client: redis.Redis
) -> None:
    seen: list[int] = []

    def work(number: int) -> None:
        for _ in range(3):
            with Lock(f"a:{number % 10}", blocking_timeout=60):
                pass
        seen.append(len(connections(client)))

    with caches(alias(backend, server.url, client_name=NAME, max_connections=bound)):
        all_at_once(work, 60)
    # the listener's, the watchdog's, and for a moment the one by which the listener probes
    assert 1 <= max(seen) <= min(bound, conf().MAX_CONNECTIONS) + 3


@BOTH
def test_a_holder_can_release_while_many_wait_on_a_pool_of_one(
    backend: str, server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    fences: list[int | None] = []

    def wait() -> None:
        with Lock("a", blocking_timeout=60) as mine:
            fences.append(mine.fence)

    with caches(alias(backend, server.url, max_connections=1, client_name=NAME)):
        with Lock("a", ttl=60):
            threads = [threading.Thread(target=wait) for _ in range(40)]
            for thread in threads:
                thread.start()
            eventually(lambda: get_lock("a").waiters == 40)  # type: ignore[union-attr]
            assert len(connections(client)) <= 3  # one for commands, the listener's, the watchdog's
        for thread in threads:
            thread.join(60)
        assert len(fences) == 40
        assert fences == sorted(set(fences))  # type: ignore[type-var]


@pytest.fixture
def one_connection(server: RedisServer) -> Any:
    """The partition of an alias that may have one only."""
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1, client_name=NAME)):
        yield get_partition()


def test_who_finds_no_connection_free_is_told_so_in_the_end(
    one_connection: Any, monkeypatch: pytest.MonkeyPatch, retry_for: Callable[[float], None]
) -> None:
    limit(monkeypatch, patience_threads=0.02)
    retry_for(0.05)
    pool, node, loan = one_connection.store._thread_connections, one_connection.node, _Loan()
    pool._enter(loan, None)
    with pytest.raises(LockUnavailable, match="no connection became free in time"):
        Lock("a").acquire()
    pool._leave(node, loan)
    with Lock("a"):
        pass


def test_who_waits_for_a_connection_gets_the_one_that_becomes_free(
    one_connection: Any, other: Callable[[], Other], eventually: Eventually
) -> None:
    pool, node, loan = one_connection.store._thread_connections, one_connection.node, _Loan()
    pool._enter(loan, None)
    waiting = [other().start(lambda: one_connection.execute(("ECHO", "1"))) for _ in range(5)]
    eventually(lambda: pool._waiting == 5)
    pool._leave(node, loan)
    assert [asked.result(GENEROUS) for asked in waiting] == [b"1"] * 5
    assert not pool._loans


def test_a_connection_that_comes_back_while_its_node_is_closed_is_not_kept(one_connection: Any) -> None:
    class Closing(deque[Any]):
        def append(self, entry: Any) -> None:
            super().append(entry)
            node.closed = True

    pool, node, loan = one_connection.store._thread_connections, one_connection.node, _Loan()
    node.idle = Closing()
    loan.connection = node.connect(None)
    pool._leave(node, loan)
    assert loan.connection._sock is None
    assert not node.idle
    node.closed = False


def test_nobody_waits_for_a_connection_beyond_its_own_deadline(one_connection: Any) -> None:
    loan = _Loan()
    one_connection.store._thread_connections._enter(loan, None)
    with pytest.raises(NotAsked, match="no connection became free in time"):
        one_connection.exchange([("ECHO", "1")], by=monotonic() + 0.05)
    one_connection.store._thread_connections._leave(one_connection.node, loan)
    assert one_connection.exchange([("ECHO", "1")], by=monotonic() + GENEROUS)[0] == [b"1"]


def test_a_loan_that_nobody_gives_back_ends_with_its_object(one_connection: Any) -> None:
    """As where a signal handler raises in the very moment of giving it back."""
    loan = _Loan()
    one_connection.store._thread_connections._enter(loan, None)
    del loan
    assert one_connection.execute(("ECHO", "1")) == b"1"


# -- whose answer it is ---------------------------------------------------------------------------------------------


def test_a_late_answer_is_given_to_nobody_else(server: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, server.url, socket_timeout=0.1, max_connections=1)):
        partition = get_partition()
        ask_again(lambda: partition.execute(("ECHO", "first")), b"first")
        with stopped(server), pytest.raises(redis.TimeoutError):
            partition.execute(("ECHO", "late"))
        ask_again(lambda: partition.execute(("ECHO", "between")), b"between")
        with stopped(server), pytest.raises(redis.TimeoutError):
            partition.exchange([("ECHO", "late"), ("ECHO", "later")])
        ask_again(lambda: partition.execute(("ECHO", "next")), b"next")
        ask_again(lambda: partition.exchange([("ECHO", "1"), ("NO-SUCH",), ("ECHO", "2")])[0][::2], [b"1", b"2"])


def test_an_answer_is_waited_for_no_longer_than_to_the_deadline(one_connection: Any, server: RedisServer) -> None:
    assert one_connection.execute(("ECHO", "first")) == b"first"
    for warm in (True, False):
        if not warm:
            one_connection.store.doubt(one_connection.node)
        begin = monotonic()
        with stopped(server), pytest.raises((redis.TimeoutError, redis.ConnectionError)):
            one_connection.exchange([("ECHO", "late")], by=begin + 0.1)
        assert monotonic() - begin < 4  # the timeout is 5 s
        assert one_connection.execute(("ECHO", "next")) == b"next"


@pytest.mark.complete
def test_a_connection_that_was_made_under_a_deadline_is_used_again_without_it(
    one_connection: Any, server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    node = one_connection.node
    for _ in range(3):
        assert one_connection.exchange([("ECHO", "1")], by=monotonic() + GENEROUS)[0] == [b"1"]
        (connection,) = (connection for connection, _ in node.idle)
    one_connection.store.doubt(node)
    assert one_connection.exchange([("ECHO", "2")], by=monotonic() + 0.5)[0] == [b"2"]
    (again,) = (connection for connection, _ in node.idle)
    assert again is not connection
    with stopped(server):
        asked = monotonic()
        with pytest.raises(redis.TimeoutError):
            one_connection.execute(("ECHO", "3"))
        assert monotonic() - asked > 4  # the timeout is 5 s


def test_a_connection_with_an_answer_that_nobody_asked_for_is_not_used(
    one_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, check_idle_threads=-1.0)
    assert one_connection.execute(("ECHO", "1")) == b"1"
    connection = one_connection.node.idle[0][0]
    connection.send_command("ECHO", "of somebody else")
    assert connection.can_read(GENEROUS)
    assert one_connection.execute(("ECHO", "2")) == b"2"
    assert one_connection.node.idle[0][0] is not connection


@pytest.mark.parametrize("idle", [-1.0, 1000.0], ids=["looked at", "not looked at"])
def test_a_connection_killed_while_it_idles_is_replaced(
    idle: float, one_connection: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, check_idle_threads=idle)
    for _ in range(3):
        assert not Lock("a").locked()
        kill(client)
    assert not Lock("a").locked()
    assert len(one_connection.node.idle) == 1


def test_the_errors_of_single_commands_stand_among_the_answers(server: RedisServer) -> None:
    connection = redis.Connection(port=server.port, protocol=2)
    for _ in range(2):  # the connection is still good
        first, error, second = exchange(connection, [("ECHO", "1"), ("NO-SUCH",), ("ECHO", "2")])
        assert (first, second) == (b"1", b"2")
        assert isinstance(error, redis.ResponseError)
    connection.disconnect()
