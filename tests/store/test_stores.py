"""The connections of an alias in a process: what a change of the settings, a fork and the end of a loop do to them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redislock import Lock
from redisserver import RedisServer, redis_server
from tests.helpers.processes import Worker
from tests.helpers.ways import BOTH, DJANGO_REDIS, NAME, alias, caches, connections, stopped
from tests.inside import (
    all_seen,
    hang_up_idle,
    loops_with_connections,
    watch_connections,
)

from .conftest import Eventually, Exercise, ause

pytestmark = pytest.mark.usefixtures("own_pools")


# -- changed settings -------------------------------------------------------------------------------------------------


@BOTH
def test_changed_caches_lead_elsewhere_and_leave_no_connection_and_no_thread_behind(
    backend: str, server: RedisServer, client: redis.Redis, me: Any, exercise: Exercise, eventually: Eventually
) -> None:
    def threads() -> int:
        return sum(thread.name.startswith("redislock") for thread in threading.enumerate())

    before = threads()
    third = alias(backend, server.url.removesuffix("/0") + "/3")
    with caches(alias(backend, server.url, client_name=NAME), third=third):
        exercise()
        assert connections(client)
        with redis_server() as another, caches(alias(backend, another.url)):
            me(Lock("a"), "acquire")
            with another.client() as there:
                assert there.exists("redislock{0}:lock:a")
            assert not client.exists("redislock{0}:lock:a")
            eventually(lambda: not connections(client))
        exercise()
        me(Lock("a"), "acquire")
        with override_settings(REDISLOCK={"CACHE": "third"}):
            assert not me(Lock("a"), "locked")
        assert me(Lock("a"), "locked")
    eventually(lambda: not connections(client))
    eventually(lambda: threads() <= before + 2)  # renewer and notifier, which are for all aliases


def test_a_lock_from_before_a_change_of_settings_can_be_released_and_leaves_no_connection(
    me: Any, server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    """If it is held for long beyond that, too: nothing begins to listen."""
    lock = Lock("a", ttl=60)
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        me(lock, "acquire")
    eventually(all_seen)  # by the renewer, which has planned its next look
    assert not [connection for connection in connections(client) if connection["sub"] != "0"]
    me(lock, "release")
    assert not client.exists("redislock{0}:lock:a")
    eventually(lambda: not connections(client))


# -- a fork -----------------------------------------------------------------------------------------------------------

FORK = """
from tests.inside import hears, own_channel

held = Lock("held", ttl=600)
held.acquire()
while not hears():
    time.sleep(0.01)
say("parent", own_channel())
child = os.fork()
if child == 0:
    hear()
    other = Lock("other", ttl=600)
    other.acquire()
    while not hears():
        time.sleep(0.01)
    say("child", own_channel(), held.token, len(list_locks()))
    hear()
    with Lock("c"):
        say("still", "alive")
    hear()
else:
    say("forked", child)
    with Lock("d"):
        say("done", held.owned())
    time.sleep(600)
"""


def test_a_forked_child_has_connections_of_its_own_and_keeps_none_of_its_parent(
    start: Callable[..., Worker], client: redis.Redis, eventually: Eventually
) -> None:
    parent = start(FORK)
    (channel,) = parent.expect("parent")
    (child,) = map(int, parent.expect("forked"))
    try:
        assert dict(client.pubsub_numsub(channel)) == {channel.encode(): 1}
        assert parent.expect("done") == ["True"]
        parent.tell()
        own_channel, token, locks = parent.expect("child")
        assert own_channel != channel
        assert (token, locks) == ("None", "2")
        parent.signal(signal.SIGKILL)
        parent.process.wait()
        # were the child to keep the parent's socket open, Redis would count the parent as alive
        eventually(lambda: dict(client.pubsub_numsub(channel)) == {channel.encode(): 0})
        assert dict(client.pubsub_numsub(own_channel)) == {own_channel.encode(): 1}
        parent.tell()
        assert parent.expect("still") == ["alive"]
    finally:
        os.kill(child, signal.SIGKILL)


# -- event loops ------------------------------------------------------------------------------------------------------


def of_commands(client: redis.Redis) -> list[dict[str, str]]:
    """Those of our connections that listen to nothing."""
    return [connection for connection in connections(client) if connection["sub"] == "0"]


@BOTH
def test_many_event_loops_leave_no_connection_behind(
    backend: str, server: RedisServer, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bool] = []

    async def rows() -> AsyncIterator[int]:
        try:
            yield 1
        finally:  # with the loop
            seen.append(await Lock("a").alocked())

    async def main(number: int) -> None:
        if number % 2:
            await asyncio.gather(*map(ause, range(3)))
            assert len(of_commands(client)) >= 3
        left.append(rows())
        await left[-1].__anext__()

    with caches(alias(backend, server.url, client_name=NAME)):
        left: list[AsyncIterator[int]] = []
        for number in range(20):
            asyncio.run(main(number))
        assert seen == [False] * 20
        gc.collect()  # a socket that nobody closed would warn now
        eventually(lambda: len(of_commands(client)) <= 2)  # those of the process's threads, on a slow machine
        asyncio.run(ause(1))
        assert loops_with_connections() == 0
    assert caplog.text == ""


def test_a_loop_may_run_in_pieces_and_be_closed_without_shutdown(server: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        loop = asyncio.new_event_loop()
        for _ in range(3):
            loop.run_until_complete(ause(1))
            assert loops_with_connections() == 1
        hang_up_idle(loop)  # the connection of such a loop is its owner's affair; here it shall not warn
        loop.close()
        asyncio.run(ause(1))
        assert loops_with_connections() == 0
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ause(1))
        hang_up_idle(loop)
        loop.close()
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
