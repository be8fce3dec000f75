"""Connections of coroutines do not outlive their event loop, however that ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from django_redislock import Lock
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS
from tests.helpers.ways import BOTH, DJANGO_REDIS, NAME, Alias, alias, caches, connections, stopped
from tests.inside import Wire, distrust, hang_up_idle, loops_with_connections, watch_connections

from .conftest import Eventually, ause

pytestmark = pytest.mark.usefixtures("own_pools")


def of_commands(client: redis.Redis) -> list[dict[str, str]]:
    """Those of our connections that listen to nothing."""
    return [connection for connection in connections(client) if connection["sub"] == "0"]


@BOTH
def test_fifty_event_loops_leave_no_connection_behind(
    backend: str, server: RedisServer, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await asyncio.gather(*map(ause, range(3)))
        assert len(of_commands(client)) >= 3

    with caches(alias(backend, server.url, client_name=NAME)):
        for _ in range(50):
            asyncio.run(main())
        gc.collect()  # a socket that nobody closed would warn now
        eventually(lambda: len(of_commands(client)) <= 2)  # those of the process's threads, on a slow machine
        assert loops_with_connections() == 0
    assert caplog.text == ""


@pytest.fixture(params=["plain", "tls"])
def where(request: pytest.FixtureRequest, server: RedisServer) -> Alias:
    """An alias on the session's server."""
    if request.param == "plain":
        return alias(DJANGO_REDIS, server.url, client_name=NAME)
    file, port = str(request.getfixturevalue("certificate")), request.getfixturevalue("tls_port")
    files = {"ssl_ca_certs": file, "ssl_certfile": file, "ssl_keyfile": file}
    return alias(DJANGO_REDIS, f"rediss://127.0.0.1:{port}/0", client_name=NAME, max_connections=4, **files)


@pytest.mark.complete
def test_a_loop_that_ends_in_the_middle_of_many_commands_leaves_no_connection_behind(
    where: Alias, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(turn: int) -> None:
        if where["LOCATION"].startswith("rediss"):  # asyncio itself leaves sockets open in the middle of a handshake
            await asyncio.gather(*(Wire().aexchange(("BLPOP", "nothing", "0.1")) for _ in range(4)))
        tasks = [asyncio.create_task(Lock(f"{turn}:{number}").aacquire()) for number in range(50)]
        for task in tasks:
            # a busy machine may not connect so many in time
            task.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    with caches(where):
        for turn in range(10):
            asyncio.run(main(turn))
        gc.collect()  # a socket that nobody closed would warn now
        assert loops_with_connections() == 0
    eventually(lambda: not connections(client))
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("turns", range(4))
def test_a_loop_that_ends_while_its_connections_are_dropped_leaves_none_open(where: Alias, turns: int) -> None:
    async def main() -> None:
        await ause(1)
        distrust()
        for _ in range(turns):
            await asyncio.sleep(0)

    with caches(where):
        asyncio.run(main())
        gc.collect()


def test_a_loop_may_run_in_pieces(server: RedisServer, client: redis.Redis, eventually: Eventually) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        loop = asyncio.new_event_loop()
        try:
            for _ in range(3):
                loop.run_until_complete(ause(1))
                assert loops_with_connections() == 1
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
        eventually(lambda: loops_with_connections() == 0 and len(of_commands(client)) <= 2)
        asyncio.run(ause(1))


def test_a_loop_that_was_closed_without_shutdown_disturbs_nobody(server: RedisServer) -> None:
    """The connection of such a loop is its owner's affair; here it is closed so that nothing warns."""

    def without_an_end() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ause(1))
        hang_up_idle(loop)
        loop.close()

    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        without_an_end()
        asyncio.run(ause(1))
        assert loops_with_connections() == 0
        without_an_end()
    # and the change of the settings does not mind either


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # those in use: nobody can close them any more
def test_tasks_of_a_closed_loop_end_silently(own: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with caches(alias(DJANGO_REDIS, own.url, max_connections=3)):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ause(1))
        counts = watch_connections()

        async def until_all_wait() -> None:
            while counts() != (3, 2):
                await asyncio.sleep(0.001)

        with stopped(own):
            tasks = [loop.create_task(Lock(f"a:{number}").aacquire()) for number in range(5)]
            loop.run_until_complete(until_all_wait())
            loop.close()
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                # as the garbage collector would, but one after the other: it may close one that is executing
                task.get_coro().close()
            del tasks, task
            gc.collect()
        assert "closed" not in caplog.text
        assert counts()[0] == 0


@pytest.mark.parametrize("before", [False, True], ids=["for the first time", "again"])
def test_generators_that_end_with_their_loop_may_use_locks(
    before: bool, server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    seen: list[bool] = []

    async def rows() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            seen.append(await Lock("a").alocked())
            seen.append(await Lock("a").alocked())

    async def main() -> None:
        if before:
            await ause(1)
        for each in left:
            await each.__anext__()

    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        left = [rows(), rows()]
        asyncio.run(main())
        assert seen == [False] * 4
        gc.collect()  # a socket that nobody closed would warn now
        eventually(lambda: not of_commands(client))
        asyncio.run(ause(1))
        assert loops_with_connections() == 0


def test_two_loops_in_two_threads_use_locks_at_the_same_time(server: RedisServer) -> None:
    gate = threading.Barrier(2)
    inside: list[int] = []
    worst: list[int] = []

    async def sections(number: int) -> None:
        for _ in range(5):
            async with Lock("shared", blocking_timeout=GENEROUS):
                inside.append(number)
                await asyncio.sleep(0.001)
                worst.append(len(inside))
                inside.remove(number)
            await ause(number)

    async def main(number: int) -> None:
        await asyncio.gather(*(sections(number) for _ in range(5)))

    def run(number: int) -> None:
        gate.wait(GENEROUS)
        asyncio.run(main(number))

    with caches(alias(DJANGO_REDIS, server.url)), ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(run, number) for number in range(2)]:
            done.result(60)
        assert worst == [1] * 50
        assert loops_with_connections() == 0
