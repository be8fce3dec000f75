"""Connections of coroutines: how many there are, who waits for one, and what becomes of those that break."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockUnavailable
from django_redislock.conf import conf
from django_redislock.store.loop_connections import ENTERING, LoopConnections, _Loan
from django_redislock.store.node import Node
from django_redislock.store.stores import get_partition
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS
from tests.helpers.proxy import proxy
from tests.helpers.ways import BOTH, DJANGO, DJANGO_REDIS, NAME, alias, caches, connections, kill, stopped
from tests.inside import idle, limit, listener

from .conftest import Eventually, ause

AEventually = Callable[..., Awaitable[Any]]

pytestmark = pytest.mark.usefixtures("own_pools")


async def ask(*words: str) -> Any:
    """A command of a new caller."""
    (answer,), _ = await get_partition().aexchange([words], urgency=ENTERING)
    if isinstance(answer, redis.ResponseError):
        raise answer
    return answer


async def queued(lock: Lock, count: int) -> bool:
    info = await lock.ainfo()
    return info is not None and info.waiters == count


# -- how many -------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("bound", [3, 100])
async def test_the_number_of_connections_is_bounded(
    backend: str, bound: int, server: RedisServer, client: redis.Redis
) -> None:
    with caches(alias(backend, server.url, client_name=NAME, max_connections=bound)):
        seen: list[int] = []

        async def work(number: int) -> None:
            for _ in range(3):
                async with Lock(f"a:{number % 10}", blocking_timeout=60):
                    pass
            seen.append(len(connections(client)))

        await asyncio.gather(*map(work, range(100)))
        # the listener's, the watchdog's, and for a moment the one by which the listener probes
        assert 1 <= max(seen) <= min(bound, conf().MAX_CONNECTIONS) + 3


@BOTH
async def test_a_holder_can_release_while_many_wait_on_a_pool_of_one(
    backend: str, server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(backend, server.url, max_connections=1, client_name=NAME)):
        fences: list[int | None] = []

        async def wait() -> None:
            async with Lock("a", blocking_timeout=60) as mine:
                fences.append(mine.fence)

        async with Lock("a", ttl=60) as lock:
            tasks = [asyncio.create_task(wait()) for _ in range(40)]
            await aeventually(lambda: queued(lock, 40))
            assert len(connections(client)) <= 4  # of coroutines, of threads, the listener's, the watchdog's
        await asyncio.gather(*tasks)
        assert fences == sorted(set(fences))  # type: ignore[type-var]


async def test_coroutines_need_the_listener_of_the_process_only(
    server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(DJANGO, server.url, client_name=NAME)):
        async with Lock("a:1") as lock:
            tasks = [asyncio.create_task(ause(1)) for _ in range(20)]
            await aeventually(lambda: queued(lock, 20))
            assert listener().ready
            assert len([one for one in connections(client) if one["sub"] != "0"]) == 1
        await asyncio.gather(*tasks)


# -- who waits for one ----------------------------------------------------------------------------------------------


class Busy:
    """The only connection of an alias is in use until ``end()``."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.task = asyncio.create_task(ask("BLPOP", "busy", str(GENEROUS)))

    async def begun(self) -> Busy:
        while not any(connection["flags"] == "b" for connection in self.client.client_list()):
            await asyncio.sleep(0.001)
        return self

    async def end(self) -> None:
        self.client.rpush("busy", "over")
        assert await self.task == [b"busy", b"over"]


async def test_who_finds_no_connection_free_is_told_so_in_the_end(
    server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, retry_for: Callable[[float], None]
) -> None:
    limit(monkeypatch, patience_loops=0.05)
    retry_for(0.1)
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1, socket_timeout=GENEROUS)):
        busy = await Busy(client).begun()
        with pytest.raises(LockUnavailable, match="no connection became free in time"):
            await Lock("a").aacquire()
        await busy.end()
        async with Lock("a"):
            pass


async def test_a_caller_with_time_waits_longer_for_a_connection_than_for_an_answer(
    server: RedisServer, retry_for: Callable[[float], None], aeventually: AEventually
) -> None:
    retry_for(0.1)
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1, socket_timeout=0.3)):
        connections, loan, begin = await get_partition().store._of_loop(), _Loan(), monotonic()
        await connections._enter(loan, GENEROUS, ENTERING)
        lock = Lock("a")
        acquiring = asyncio.create_task(lock.aacquire(blocking_timeout=GENEROUS))
        await aeventually(lambda: monotonic() - begin > 0.7)
        connections._leave(loan)
        assert await acquiring


async def test_a_missing_free_connection_does_not_count_against_the_server(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, patience_loops=0.01)
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1)):
        partition, loan = get_partition(), _Loan()
        assert partition.execute(("ECHO", "1")) == b"1"
        await (await partition.store._of_loop())._enter(loan, GENEROUS, ENTERING)
        with pytest.raises(LockUnavailable, match="no connection became free in time"):
            await Lock("a").aacquire(blocking_timeout=0)
        assert len(partition.node.idle) == 1  # that of this thread is kept


async def test_a_release_goes_before_the_coroutines_that_wait_for_a_connection(
    server: RedisServer, client: redis.Redis
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1, socket_timeout=GENEROUS)):
        done: list[str] = []

        async def note(what: str, call: Coroutine[Any, Any, object]) -> None:
            await call
            done.append(what)

        lock = Lock("a")
        await lock.aacquire()
        busy = await Busy(client).begun()
        others = [asyncio.create_task(note("other", Lock("b").alocked())) for _ in range(5)]
        await asyncio.sleep(0)
        ending = asyncio.create_task(busy.end())  # not before this coroutine waits
        await note("release", lock.arelease())
        await asyncio.gather(ending, *others)
        assert done == ["release"] + ["other"] * 5


@pytest.fixture
async def lone(server: RedisServer) -> Any:
    """The connections of a loop that may have one only, and the loan by which somebody has it."""
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1)):
        connections, loan = await get_partition().store._of_loop(), _Loan()
        await connections._enter(loan, GENEROUS, ENTERING)
        yield connections, loan


Lone = tuple[LoopConnections, _Loan]


def awaited(connections: LoopConnections) -> asyncio.Future[None]:
    """The future that the first in the queue waits for."""
    granted = next(loan.granted for queue in connections._queues for loan in queue)
    assert granted is not None
    return granted


async def test_a_loan_that_is_granted_in_the_moment_of_a_cancellation_is_given_back(lone: Lone) -> None:
    connections, loan = lone
    waiting = asyncio.create_task(ask("ECHO", "1"))
    await asyncio.sleep(0)
    connections._leave(loan)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await ask("ECHO", "2") == b"2"
    assert not connections._loans


async def test_a_loan_that_ends_after_a_cancellation_is_for_the_next_one(lone: Lone) -> None:
    connections, loan = lone
    tasks = [asyncio.create_task(ask("ECHO", "1")) for _ in range(3)]
    await asyncio.sleep(0)
    for task in tasks[:2]:
        task.cancel()
    connections._leave(loan)
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [True, True, False]
    assert not connections._loans


async def test_a_timeout_at_the_moment_of_a_cancellation_grants_nothing(
    lone: Lone, caplog: pytest.LogCaptureFixture
) -> None:
    connections, loan = lone
    waiting = asyncio.create_task(ask("ECHO", "1"))
    await asyncio.sleep(0)
    connections._give_up(awaited(connections))
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert [entry() for entry in connections._loans] == [loan]
    connections._leave(loan)
    assert not connections._loans
    del waiting
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_timeout_at_the_moment_of_the_grant_changes_nothing(lone: Lone) -> None:
    connections, loan = lone
    waiting = asyncio.create_task(ask("ECHO", "1"))
    await asyncio.sleep(0)
    granted = awaited(connections)
    connections._leave(loan)
    connections._give_up(granted)
    assert await waiting == b"1"
    assert not connections._loans


class Forgetful(redis.CredentialProvider):
    """A site's own connection class with a bug, which raises no connection error."""

    def get_credentials(self) -> tuple[str, str]:
        raise RuntimeError("no credentials")


async def test_an_error_of_the_sites_own_code_propagates_and_takes_no_connection(server: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, server.url, credential_provider=Forgetful())):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no credentials"):
                await ask("ECHO", "1")
        assert get_partition().store._loops[asyncio.get_running_loop()]._loans == set()


# -- whose answer it is ---------------------------------------------------------------------------------------------


async def ask_again(ask: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """Ask until a call succeeds, as a short timeout may expire on a slow machine; any answer must be the right one."""
    for _ in range(50):
        try:
            assert await ask() == expected
        except redis.TimeoutError:
            continue
        return
    pytest.fail("the server never answered in time")


async def test_a_late_answer_is_given_to_nobody_else(server: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, server.url, socket_timeout=0.1, max_connections=1)):
        await ask_again(lambda: ask("ECHO", "first"), b"first")
        with stopped(server), pytest.raises(redis.TimeoutError, match=r"no answer within 0\.1 s"):
            await ask("ECHO", "late")
        await ask_again(lambda: ask("ECHO", "between"), b"between")
        with stopped(server), pytest.raises(redis.TimeoutError):
            await get_partition().aexchange([("ECHO", "late"), ("ECHO", "later")], urgency=ENTERING)
        await ask_again(lambda: ask("ECHO", "next"), b"next")


async def test_the_answer_of_a_cancelled_command_is_given_to_nobody_else(
    server: RedisServer, client: redis.Redis
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1)):
        busy = await Busy(client).begun()
        busy.task.cancel()
        await asyncio.wait([busy.task])
        assert await ask("ECHO", "next") == b"next"


async def test_an_answer_that_came_while_the_loop_was_blocked_counts(
    server: RedisServer, retry_for: Callable[[float], None], aeventually: AEventually, eventually: Eventually
) -> None:
    retry_for(0.1)
    with proxy(server.port) as network, caches(alias(DJANGO_REDIS, network.url, socket_timeout=0.5)):
        async with Lock("a"):
            answer = network.hold_answer("lock:a")
            asking = asyncio.create_task(Lock("a").alocked())
            await aeventually(answer.caught.is_set)
            begin = monotonic()
            answer.let_go()
            eventually(lambda: answer.over.is_set() and monotonic() - begin > 0.7)  # blocks
            assert await asking is True


@pytest.mark.parametrize("look_after", [-1.0, 1000.0], ids=["looked at", "not looked at"])
async def test_a_connection_killed_while_it_idles_is_replaced(
    look_after: float, server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, check_idle_loops=look_after)
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        for _ in range(3):
            assert not await Lock("a").alocked()
            kill(client)
        assert not await Lock("a").alocked()
        assert len(idle(get_partition().store._loops[asyncio.get_running_loop()])) == 1


@pytest.mark.parametrize("look_after", [-1.0, 1000.0], ids=["looked at", "not looked at"])
async def test_a_connection_that_was_reset_while_it_idled_is_replaced(
    look_after: float, server: RedisServer, monkeypatch: pytest.MonkeyPatch, aeventually: AEventually
) -> None:
    """Unlike one that the server has closed, it is no transport any more: some Pythons fail where it is written to."""
    limit(monkeypatch, check_idle_loops=look_after)
    with caches(alias(DJANGO_REDIS, server.url)):
        assert not await Lock("a").alocked()
        (connection,) = idle(get_partition().store._loops[asyncio.get_running_loop()])
        transport = connection._writer.transport
        transport._fatal_error(ConnectionResetError(errno.ECONNRESET, "as the loop reads it"))
        await aeventually(lambda: transport._sock is None)
        assert not await Lock("a").alocked()


async def test_nothing_of_a_removed_node_is_kept(
    server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    """Clusters replace their nodes, for years."""
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        await ask("PING")
        store = get_partition().store
        (of_loop,) = store._loops.values()

        async def visit(node: Node) -> None:
            await of_loop.exchange(node, [("PING",)], None, urgency=ENTERING)

        gone, busy, there = (Node(store.origin) for _ in range(3))
        await visit(gone)
        slow = asyncio.create_task(of_loop.exchange(busy, [("BLPOP", "gate", str(GENEROUS))], None, urgency=ENTERING))
        await aeventually(lambda: client.info("clients")["blocked_clients"])
        gone.close()
        busy.close()
        await visit(there)
        client.rpush("gate", "open")
        await slow
        assert set(of_loop._idle) == {*store.nodes, there}
        await aeventually(lambda: len(connections(client)) == 2)


@pytest.mark.parametrize("how", ["an answer that nobody asked for", "closed under our hands"])
async def test_a_connection_that_is_not_as_we_left_it_is_not_used(
    how: str, server: RedisServer, monkeypatch: pytest.MonkeyPatch, aeventually: AEventually
) -> None:
    limit(monkeypatch, check_idle_loops=-1.0)
    with caches(alias(DJANGO_REDIS, server.url)):
        assert await ask("ECHO", "1") == b"1"
        (of_loop,) = get_partition().store._loops.values()
        (connection,) = idle(of_loop)
        if how == "closed under our hands":
            await connection.disconnect()
        else:
            await connection.send_command("ECHO", "of somebody else")
            look = connection.can_read if hasattr(connection, "can_read") else connection.can_read_destructive
            await aeventually(look)
        assert await ask("ECHO", "2") == b"2"


@pytest.mark.parametrize("using", ["default", "memory"])
async def test_the_errors_of_single_commands_stand_among_the_answers(using: str) -> None:
    partition = get_partition(using)
    for _ in range(2):  # the connection is still good
        commands = [("ECHO", "1"), ("NO-SUCH",), ("ECHO", "2")]
        (first, error, second), _ = await partition.aexchange(commands, urgency=ENTERING)
        assert (first, second) == (b"1", b"2")
        assert isinstance(error, redis.ResponseError)
    (alone,), _ = await partition.aexchange([("NO-SUCH",)], urgency=ENTERING)
    assert isinstance(alone, redis.ResponseError)
    assert (await partition.aexchange([("ECHO", "1")], urgency=ENTERING))[0] == [b"1"]
