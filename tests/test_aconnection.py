"""Connections of coroutines: what they take from the alias, how many there are, and that none outlives its loop."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_redislock import (
    FairLock,
    Lock,
    LockLost,
    LockUnavailable,
    aforce_release,
    aget_lock,
    alist_locks,
)
from django_redislock.aconnection import LoopConnections
from django_redislock.connection import ENTERING, MAX_CONNECTIONS, get_backend
from django_redislock.listener import get_listener
from django_redislock.lock import _holdings
from redisserver import RedisServer, redis_server

from .actors import GENEROUS
from .proxy import proxy
from .ways import BOTH, DJANGO, DJANGO_REDIS, NAME, PASSWORD, Sentinels, alias, caches, connections, kill, stopped

AEventually = Callable[..., Awaitable[Any]]
Eventually = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("own_pools")


async def exercise(aeventually: AEventually) -> None:
    """Everything that a lock does with its connections: take, queue, hand over, renew, look, extend, force."""

    async def wait() -> int | None:
        async with FairLock("a", blocking_timeout=60) as mine:
            return mine.fence

    async with Lock("a", ttl=4.5) as lock:  # not less: a busy machine may stand still for a second
        waiting = asyncio.create_task(wait())
        await aeventually(lambda: _waiters(lock, 1))
        soon = (await aeventually(lock.ainfo)).expires + timedelta(seconds=0.2)
        while (await aeventually(lock.ainfo)).expires <= soon:  # the watchdog
            await asyncio.sleep(0.01)
        assert [info.name for info in await alist_locks()] == ["a"]
        assert await lock.aextend(60)
        assert await lock.aowned()
        fence = lock.fence or 0
    assert (await asyncio.wait_for(waiting, 30) or 0) > fence
    forced = Lock("b", ttl=60)
    await forced.aacquire()
    assert await aforce_release("b")
    await aeventually(lambda: forced.lost)  # the listener
    with pytest.raises(LockLost):
        await forced.arelease()
    assert await alist_locks() == []


async def _waiters(lock: Lock, count: int) -> bool:
    info = await lock.ainfo()
    return info is not None and info.waiters == count


def of_commands(client: redis.Redis) -> list[dict[str, str]]:
    """Those of our connections that listen to nothing."""
    return [connection for connection in connections(client) if connection["sub"] == "0"]


# -- what an alias can be given -------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"decode_responses": True},
        {"protocol": 3, "decode_responses": True},
        {"pool_class": "redis.connection.BlockingConnectionPool", "max_connections": 3, "timeout": 1},
        {"socket_timeout": 0.2, "socket_connect_timeout": 5},
        {"socket_keepalive": True, "retry_on_timeout": True, "health_check_interval": 1, "encoding": "latin-1"},
        {"redis_connect_func": lambda connection: connection.on_connect()},
    ],
    ids=lambda options: repr(sorted(options)),
)
async def test_locks_work_whatever_the_alias_is_given(
    backend: str, keywords: dict[str, Any], aeventually: AEventually, server: RedisServer
) -> None:
    with caches(alias(backend, server.url, **keywords)):
        await exercise(aeventually)


@BOTH
async def test_the_database_of_the_alias_is_used(backend: str, server: RedisServer) -> None:
    with caches(alias(backend, server.url.removesuffix("/0") + "/3")), server.client(db=3) as third:
        async with Lock("a"):
            assert third.exists("redislock{0}:lock:a")


@BOTH
async def test_a_short_socket_timeout_does_not_end_a_long_wait(backend: str, server: RedisServer) -> None:
    with caches(alias(backend, server.url, socket_timeout=0.2)):
        async with Lock("a", ttl=60) as lock:
            assert await lock.aacquire(blocking_timeout=2) is False


@BOTH
async def test_a_unix_socket(backend: str, server: RedisServer, aeventually: AEventually, client: redis.Redis) -> None:
    with caches(alias(backend, f"unix://{server.socket}?db=2", client_name=NAME)):
        await exercise(aeventually)
        ours = connections(client)
    assert len(ours) >= 3
    assert {(connection["addr"].split(":")[0], connection["db"]) for connection in ours} == {(str(server.socket), "2")}


@BOTH
async def test_a_password_in_the_url(backend: str, guarded: RedisServer, aeventually: AEventually) -> None:
    with caches(alias(backend, f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/0")):
        await exercise(aeventually)


@BOTH
async def test_a_password_among_the_options(backend: str, guarded: RedisServer, aeventually: AEventually) -> None:
    given = alias(backend, guarded.url)
    given["OPTIONS"] |= {"PASSWORD" if backend == DJANGO_REDIS else "password": PASSWORD}
    with caches(given):
        await exercise(aeventually)


@BOTH
async def test_a_user_with_rights_to_the_locks_alone(
    backend: str, guarded: RedisServer, aeventually: AEventually
) -> None:
    url = f"redis://site:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/0"
    with caches({**alias(backend, url), "KEY_PREFIX": "site"}):
        await exercise(aeventually)


async def test_a_wrong_password_is_a_clear_error(guarded: RedisServer) -> None:
    wrong = alias(DJANGO_REDIS, f"redis://:wrong@127.0.0.1:{guarded.port}/0")
    with caches(wrong), pytest.raises(LockUnavailable, match=r"alias 'default'.*password"):
        await Lock("a").aacquire()


@BOTH
async def test_tls_with_certificates_on_both_sides(
    backend: str, tls_port: int, certificate: Path, aeventually: AEventually
) -> None:
    files = {"ssl_ca_certs": str(certificate), "ssl_certfile": str(certificate), "ssl_keyfile": str(certificate)}
    with caches(alias(backend, f"rediss://127.0.0.1:{tls_port}/0", ssl_cert_reqs="required", **files)):
        await exercise(aeventually)


async def test_a_certificate_that_cannot_be_verified_is_a_clear_error(tls_port: int) -> None:
    unknown = alias(DJANGO_REDIS, f"rediss://127.0.0.1:{tls_port}/0")
    with caches(unknown), pytest.raises(LockUnavailable) as caught:
        await Lock("a").aacquire()
    # older redis-py keeps it out of its own message
    assert re.search(r"(?i)certificate.verify.failed", "".join(traceback.format_exception(caught.value)))


@BOTH
async def test_of_several_locations_the_first_has_the_locks(
    backend: str, aeventually: AEventually, eventually: Eventually
) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(redis_server(repl_diskless_sync_delay=0)) for _ in range(2))
        master, replica = (stack.enter_context(server.client()) for server in (first, second))
        replica.replicaof("127.0.0.1", str(first.port))
        eventually(lambda: replica.info("replication")["master_link_status"] == "up")
        stack.enter_context(caches(alias(backend, [first.url, second.url], client_name=NAME)))
        await exercise(aeventually)
        assert connections(master)
        assert not connections(replica)


async def test_a_held_lock_survives_a_failover_by_sentinel(sentinels: Sentinels, aeventually: AEventually) -> None:
    with caches(sentinels.alias()):
        await exercise(aeventually)
        old, new = sentinels.clients
        assert connections(old)
        assert not connections(new)
        async with FairLock("a", ttl=60) as lock:
            sentinels.replicate()
            sentinels.fail_over()
            await aeventually(lambda: old.info("replication")["role"] == "slave")
            assert await lock.aowned()
            assert not lock.lost
        assert connections(new)
        await exercise(aeventually)


async def test_locks_work_again_after_the_master_died(sentinels: Sentinels, aeventually: AEventually) -> None:
    with caches(sentinels.alias()):
        async with Lock("a") as lock:
            fence = lock.fence or 0
        sentinels.replicate()
        sentinels.wait_for_it(300)  # else the replica may be the master before we have asked
        sentinels.servers[0].stop()
        with pytest.raises(LockUnavailable, match="alias 'default'"):
            await Lock("a").aacquire()
        sentinels.wait_for_it(0.5)
        await aeventually(lambda: sentinels.master() == sentinels.servers[1].port)

        async def works() -> bool:
            try:
                async with Lock("a", blocking_timeout=1) as lock:
                    return (lock.fence or 0) > fence
            except LockUnavailable:
                return False

        await aeventually(works)


def test_a_loop_that_ends_leaves_no_connection_to_a_sentinel(sentinels: Sentinels, eventually: Eventually) -> None:
    async def main() -> None:
        async with Lock("a"):
            pass

    with caches(sentinels.alias()):
        before = len(sentinels.client.client_list())
        for _ in range(3):
            asyncio.run(main())
        gc.collect()
        eventually(lambda: len(sentinels.client.client_list()) <= before)
        eventually(lambda: not connections(sentinels.clients[0]))


class Own(redis.Connection):
    """A site's own connection, still a TCP connection."""


@BOTH
async def test_a_class_derived_from_redis_pys_own_is_replaced_by_the_counterpart_of_its_base(
    backend: str, server: RedisServer, aeventually: AEventually
) -> None:
    with caches(alias(backend, server.url, connection_class=Own)):
        await exercise(aeventually)
        maker = get_backend()._maker
        assert maker is not None
        assert maker._class is redis.asyncio.Connection


class Carrier(redis.connection.AbstractConnection):
    """A connection over something that redis-py knows nothing about."""

    def repr_pieces(self) -> list[tuple[str, object]]:
        return []

    def _connect(self) -> Any:
        raise AssertionError("not reached")

    def _host_error(self) -> str:
        return "nowhere"


async def test_a_class_without_a_counterpart_is_a_clear_error(server: RedisServer) -> None:
    problem = r"connection class tests\.test_aconnection\.Carrier has no counterpart in redis\.asyncio"
    with caches(alias(DJANGO_REDIS, server.url, connection_class=Carrier)):
        with pytest.raises(ImproperlyConfigured, match=problem):
            await Lock("a").aacquire()
        with pytest.raises(ImproperlyConfigured, match=problem):
            await alist_locks()


async def test_a_pool_of_something_else_than_connections_is_a_clear_error(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pigeon: ...

    with caches(alias(DJANGO_REDIS, server.url)):
        monkeypatch.setattr(get_backend()._pool, "connection_class", Pigeon)
        with pytest.raises(ImproperlyConfigured, match=r"Pigeon has no counterpart"):
            await Lock("a").alocked()


# -- loops ----------------------------------------------------------------------------------------------------------


@BOTH
def test_a_hundred_event_loops_leave_no_connection_behind(
    backend: str, server: RedisServer, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    async def section(number: int) -> None:
        async with Lock(f"a:{number}"):
            pass

    async def main() -> None:
        await asyncio.gather(*(section(number) for number in range(3)))
        assert len(of_commands(client)) >= 3

    with caches(alias(backend, server.url, client_name=NAME)):
        for _ in range(100):
            asyncio.run(main())
        gc.collect()  # a socket that nobody closed would warn now
        eventually(lambda: len(of_commands(client)) <= 2)  # those of the process's threads, on a slow machine
        assert get_backend()._loops == {}
    assert caplog.text == ""


def test_a_loop_that_ends_in_the_middle_of_many_commands_leaves_no_connection_behind(
    server: RedisServer, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(turn: int) -> None:
        tasks = [asyncio.create_task(Lock(f"{turn}:{number}").aacquire()) for number in range(50)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        for turn in range(20):
            asyncio.run(main(turn))
        gc.collect()
        assert get_backend()._loops == {}
    eventually(lambda: not connections(client))
    assert "never retrieved" not in caplog.text


def test_a_loop_may_run_in_pieces(server: RedisServer, client: redis.Redis, eventually: Eventually) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        loop = asyncio.new_event_loop()
        try:
            for _ in range(3):
                loop.run_until_complete(_use("a"))
                assert len(get_backend()._loops) == 1
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
        eventually(lambda: get_backend()._loops == {} and len(of_commands(client)) <= 2)
        asyncio.run(_use("a"))


def test_a_loop_that_was_closed_without_an_end_is_in_nobodys_way(
    server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the connection of such a loop is its owner's affair; here it is closed so that nothing warns
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_use("a"))
        (left,) = get_backend()._loops.values()
        loop.run_until_complete(left._idle[0][0].disconnect())
        loop.close()
        asyncio.run(_use("a"))
        assert get_backend()._loops == {}
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_use("a"))
        (left,) = get_backend()._loops.values()
        loop.run_until_complete(left._idle[0][0].disconnect())
        loop.close()
    # and the change of the settings does not mind either


def test_two_loops_in_two_threads_use_locks_at_the_same_time(server: RedisServer) -> None:
    gate = threading.Barrier(2)
    inside: list[int] = []
    worst: list[int] = []
    troubles: list[BaseException] = []

    async def sections(number: int) -> None:
        for _ in range(10):
            async with FairLock("shared", blocking_timeout=GENEROUS):
                inside.append(number)
                await asyncio.sleep(0.001)
                worst.append(len(inside))
                inside.remove(number)
            async with Lock(f"own:{number}"):
                pass

    async def main(number: int) -> None:
        await asyncio.gather(*(sections(number) for _ in range(5)))

    def run(number: int) -> None:
        try:
            gate.wait(GENEROUS)
            asyncio.run(main(number))
        except BaseException as error:
            troubles.append(error)

    with caches(alias(DJANGO_REDIS, server.url)):
        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert troubles == []
        assert worst == [1] * 100
        assert get_backend()._loops == {}


async def _use(name: str) -> None:
    async with Lock(name):
        pass


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

        await asyncio.gather(*(work(number) for number in range(200)))
        assert len(seen) == 200
        # the listener's, the watchdog's, and for a moment the one by which the listener probes
        assert 1 <= max(seen) <= min(bound, MAX_CONNECTIONS) + 3


@BOTH
async def test_a_holder_can_release_while_many_wait_on_a_pool_of_one(
    backend: str, server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(backend, server.url, max_connections=1, client_name=NAME)):
        lock = FairLock("a", ttl=60)
        await lock.aacquire()
        through: list[int | None] = []

        async def wait() -> None:
            async with FairLock("a", blocking_timeout=60) as mine:
                through.append(mine.fence)

        tasks = [asyncio.create_task(wait()) for _ in range(60)]
        await aeventually(lambda: _waiters(lock, 60))
        assert len(connections(client)) <= 4  # of coroutines, of threads, the listener's, the watchdog's
        await lock.arelease()
        await asyncio.gather(*tasks)
        assert through == sorted(set(through))  # type: ignore[type-var]


class Busy:
    """The only connection of an alias is in use until ``end()``."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.task = asyncio.create_task(get_backend().aexecute(("BLPOP", "busy", GENEROUS)))

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
    monkeypatch.setattr("django_redislock.connection.WAIT_FOR_CONNECTION", 0.05)
    retry_for(0.1)
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1, socket_timeout=GENEROUS)):
        busy = await Busy(client).begun()
        with pytest.raises(LockUnavailable, match=r"no connection became free within 0\.05 s"):
            await Lock("a").aacquire()
        await busy.end()
        async with Lock("a"):
            pass


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
        release = asyncio.create_task(note("release", _release(lock, lock.token)))
        await asyncio.sleep(0)
        await busy.end()
        await asyncio.gather(release, *others)
        assert done == ["release"] + ["other"] * 5


async def _release(lock: Lock, token: str | None) -> None:
    await Lock(lock.name, token=token).arelease()


@pytest.fixture
async def lone(server: RedisServer) -> Any:
    """The connections of a loop that may have one only, whose permit is taken."""
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1)):
        connections = await get_backend()._of_loop()
        await connections._get_permit(ENTERING)
        yield connections


def awaited(connections: LoopConnections) -> asyncio.Future[None]:
    """The permit that the first in line waits for."""
    return next(permit for queue in connections._queues for permit in queue)


async def test_a_permit_that_arrives_in_the_moment_of_a_cancellation_is_given_back(lone: LoopConnections) -> None:
    waiting = asyncio.create_task(get_backend().aexecute(("ECHO", "1")))
    await asyncio.sleep(0)
    lone._return_permit()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await get_backend().aexecute(("ECHO", "2")) == b"2"
    assert lone._permits == 1


async def test_a_permit_that_arrives_after_a_cancellation_goes_to_the_next_one(lone: LoopConnections) -> None:
    tasks = [asyncio.create_task(get_backend().aexecute(("ECHO", "1"))) for _ in range(3)]
    await asyncio.sleep(0)
    for task in tasks[:2]:
        task.cancel()
    lone._return_permit()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [True, True, False]
    assert lone._permits == 1


async def test_patience_that_ends_in_the_moment_of_a_cancellation_makes_no_permit(
    lone: LoopConnections, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.create_task(get_backend().aexecute(("ECHO", "1")))
    await asyncio.sleep(0)
    lone._give_up(awaited(lone))
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    lone._return_permit()
    assert lone._permits == 1
    del waiting
    gc.collect()
    assert "never retrieved" not in caplog.text


class Forgetful(redis.CredentialProvider):
    """A site's own, with a defect; what it raises is not of connections."""

    def get_credentials(self) -> tuple[str, str]:
        raise RuntimeError("no credentials")


async def test_an_error_of_the_sites_own_code_goes_up_and_takes_no_permit(server: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, server.url, credential_provider=Forgetful())):
        backend = get_backend()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no credentials"):
                await backend.aexecute(("ECHO", "1"))
        assert backend._loops[asyncio.get_running_loop()]._permits == backend._bound


async def test_patience_that_ends_as_the_permit_arrives_changes_nothing(lone: LoopConnections) -> None:
    waiting = asyncio.create_task(get_backend().aexecute(("ECHO", "1")))
    await asyncio.sleep(0)
    permit = awaited(lone)
    lone._return_permit()
    lone._give_up(permit)
    assert await waiting == b"1"
    assert lone._permits == 1


# -- connections that break -----------------------------------------------------------------------------------------


@BOTH
async def test_connections_killed_while_they_idle_surface_in_no_call(
    backend: str, server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(backend, server.url, client_name=NAME)):
        await asyncio.gather(*(_use(f"a:{number}") for number in range(8)))
        async with FairLock("a", ttl=60) as lock:
            waiting = asyncio.create_task(FairLock("a", blocking_timeout=60).aacquire())
            await aeventually(lambda: _waiters(lock, 1))
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: lock.aextend(1),
                lock.aowned,
                lock.ainfo,
                alist_locks,
                Lock("b").aacquire,
            ]
            for call in calls:
                kill(client)
                assert await call()
            await aeventually(lambda: _waiters(lock, 1))
            kill(client)
        assert await asyncio.wait_for(waiting, GENEROUS)
        kill(client)
        await asyncio.gather(*(_use(f"a:{number}") for number in range(8)))


@pytest.mark.parametrize("idle", [0.0, 1000.0], ids=["looked at", "not looked at"])
async def test_a_connection_killed_while_it_idles_is_replaced(
    idle: float, server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redislock.connection.IDLE", idle)
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        for _ in range(5):
            assert not await Lock("a").alocked()
            kill(client)
        assert not await Lock("a").alocked()
        assert len(get_backend()._loops[asyncio.get_running_loop()]._idle) == 1


async def test_a_connection_with_an_answer_that_nobody_asked_for_is_not_used(
    server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, aeventually: AEventually
) -> None:
    monkeypatch.setattr("django_redislock.connection.IDLE", 0.0)
    with caches(alias(DJANGO_REDIS, server.url)):
        assert await get_backend().aexecute(("ECHO", "1")) == b"1"
        (loop_connections,) = get_backend()._loops.values()
        connection = loop_connections._idle[0][0]
        await connection.send_command("ECHO", "of somebody else")
        await aeventually(connection.can_read if hasattr(connection, "can_read") else connection.can_read_destructive)
        assert await get_backend().aexecute(("ECHO", "2")) == b"2"


async def test_a_connection_that_was_closed_under_our_hands_is_replaced(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redislock.connection.IDLE", 0.0)
    with caches(alias(DJANGO_REDIS, server.url)):
        assert await get_backend().aexecute(("ECHO", "1")) == b"1"
        (loop_connections,) = get_backend()._loops.values()
        await loop_connections._idle[0][0].disconnect()
        assert await get_backend().aexecute(("ECHO", "2")) == b"2"


async def test_a_server_that_is_gone_is_lock_unavailable_and_comes_back() -> None:
    with redis_server() as own, caches(alias(DJANGO_REDIS, own.url)):
        await asyncio.gather(*(_use(f"a:{number}") for number in range(8)))
        own.stop()
        with pytest.raises(LockUnavailable, match=r"cannot be reached for the lock 'a' .*alias 'default'"):
            await Lock("a").aacquire()
        own.start()
        await asyncio.gather(*(_use(f"a:{number}") for number in range(8)))


async def test_a_late_answer_is_given_to_nobody_else(server: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, server.url, socket_timeout=0.1, max_connections=1)):
        backend = get_backend()
        assert await backend.aexecute(("ECHO", "first")) == b"first"
        with stopped(server), pytest.raises(redis.TimeoutError, match=r"no answer within 0\.1 s"):
            await backend.aexecute(("ECHO", "late"))
        await _retry(lambda: backend.aexecute(("ECHO", "between")), b"between")
        with stopped(server), pytest.raises(redis.TimeoutError):
            await backend.aexecute_many([("ECHO", "late"), ("ECHO", "later")])
        await _retry(lambda: backend.aexecute(("ECHO", "next")), b"next")


async def _retry(ask: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """Ask again as long as a slow machine makes the short timeout strike; any answer must be the right one."""
    for _ in range(50):
        try:
            assert await ask() == expected
        except redis.TimeoutError:
            continue
        return
    pytest.fail("the server never answered in time")


async def test_the_answer_of_a_cancelled_command_is_given_to_nobody_else(
    server: RedisServer, client: redis.Redis
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1)):
        busy = await Busy(client).begun()
        busy.task.cancel()
        await asyncio.wait([busy.task])
        assert await get_backend().aexecute(("ECHO", "next")) == b"next"


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


# -- changed settings -----------------------------------------------------------------------------------------------


@BOTH
async def test_changed_caches_leave_no_connection_behind(
    backend: str, server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(backend, server.url, client_name=NAME)):
        await exercise(aeventually)
        await asyncio.gather(*(_use(f"a:{number}") for number in range(8)))
        assert connections(client)
        with redis_server() as other, caches(alias(backend, other.url)):
            async with Lock("a"):
                with other.client() as there:
                    assert there.exists("redislock{0}:lock:a")
            await aeventually(lambda: not connections(client))
        await exercise(aeventually)
    await aeventually(lambda: not connections(client))


async def test_changed_caches_leave_no_connection_behind_that_is_in_use(
    server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME, socket_timeout=GENEROUS)):
        busy = await Busy(client).begun()
    await busy.end()
    await aeventually(lambda: not connections(client))


async def test_what_is_sent_after_a_change_leaves_no_connection_behind(
    server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        lock = Lock("a", ttl=60)
        await lock.aacquire()
        first = get_backend()
    await lock.arelease()
    assert not client.exists("redislock{0}:lock:a")
    assert await first.aexecute_many([("ECHO", "1"), ("ECHO", "2")]) == [b"1", b"2"]
    await aeventually(lambda: not connections(client))


async def test_a_lock_that_is_held_for_long_beyond_a_change_opens_no_connection_for_its_sake(
    server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        lock = Lock("a", ttl=60)
        await lock.aacquire()
    lease = _holdings.get()[lock].lease
    # the watchdog has seen it and has planned its next look
    await aeventually(lambda: lease.seen and lease.due > monotonic() + 1)
    assert get_listener(lease.backend)._thread is None
    await lock.arelease()
    await aeventually(lambda: not connections(client))


async def test_what_is_sent_for_the_first_time_after_a_change_leaves_no_connection_behind(
    server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        backend = get_backend()
    assert await backend.aexecute(("ECHO", "1")) == b"1"
    await aeventually(lambda: not connections(client))


def test_caches_that_change_between_two_loops_leave_no_connection_behind(
    server: RedisServer, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.new_event_loop()
    try:
        with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
            loop.run_until_complete(_use("a"))
            assert of_commands(client)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    gc.collect()
    eventually(lambda: not connections(client))
    assert caplog.text == ""


async def test_changed_settings_choose_another_alias_at_once(server: RedisServer) -> None:
    third = alias(DJANGO_REDIS, server.url.removesuffix("/0") + "/3")
    with caches(alias(DJANGO_REDIS, server.url), third=third):
        async with Lock("a"):
            with override_settings(REDISLOCK={"CACHE": "third"}):
                assert not await Lock("a").alocked()
            assert await Lock("a").alocked()


# -- commands -------------------------------------------------------------------------------------------------------


async def test_scripts_may_be_flushed_before_every_call(client: redis.Redis) -> None:
    client.script_flush()
    lock = FairLock("a", ttl=60)
    assert await lock.aacquire()
    client.script_flush()
    assert await lock.ainfo()
    client.script_flush()
    assert await lock.aextend(1)
    client.script_flush()
    assert not await FairLock("a", blocking=False).aacquire()
    client.script_flush()
    assert not await FairLock("a").aacquire(blocking_timeout=0.1)  # and withdraws
    client.script_flush()
    await lock.arelease()
    async with Lock("a"):
        client.script_flush()
        assert await aget_lock("a")
        client.script_flush()
        assert await alist_locks()
    await lock.aacquire()
    client.script_flush()
    assert await aforce_release("a")
    assert not await lock.alocked()


@pytest.mark.parametrize("using", ["default", "memory"])
async def test_the_errors_of_single_commands_stand_among_the_answers(using: str) -> None:
    backend = get_backend(using)
    commands = [("ECHO", "1"), ("NO-SUCH",), ("ECHO", "2")]
    for _ in range(2):  # the connection is still good
        first, error, second = await backend.aexecute_many(commands)
        assert (first, second) == (b"1", b"2")
        assert isinstance(error, redis.ResponseError)


@pytest.mark.parametrize("using", ["default", "memory"])
async def test_the_error_of_a_command_is_raised(using: str) -> None:
    with pytest.raises(redis.ResponseError):
        await get_backend(using).aexecute(("NO-SUCH",))
    assert await get_backend(using).aexecute(("ECHO", "1")) == b"1"


async def test_coroutines_need_the_listener_of_the_process_only(
    server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(DJANGO, server.url, client_name=NAME)):
        async with Lock("a") as lock:
            tasks = [asyncio.create_task(_use("a")) for _ in range(20)]
            await aeventually(lambda: _waiters(lock, 20))
            assert get_listener(get_backend()).ready
            assert len([one for one in connections(client) if one["sub"] != "0"]) == 1
        await asyncio.gather(*tasks)
