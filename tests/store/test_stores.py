"""The locks of an alias in a process: what a change of the settings does to their connections, and a fork."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from django.core.cache.backends.redis import RedisCache
from django.test import override_settings

from django_redislock import Lock
from redisserver import RedisServer, redis_server
from tests.helpers.actors import Other
from tests.helpers.processes import Worker
from tests.helpers.ways import BOTH, DJANGO, DJANGO_REDIS, NAME, alias, caches, connections
from tests.inside import Wire, all_seen, close_store, command, own_channel, release_in_the_background

from .conftest import Eventually, Exercise, all_at_once, ause

pytestmark = pytest.mark.usefixtures("own_pools")

AEventually = Callable[..., Awaitable[Any]]


def test_threads_that_come_first_together_share_one(server: RedisServer) -> None:
    found: list[str] = []
    with caches(alias(DJANGO, server.url)):
        all_at_once(lambda _: found.append(own_channel()), 20)
    assert len(found) == 20
    assert len({*found}) == 1


def test_a_single_command_raises_the_error_of_redis(client: redis.Redis) -> None:
    client.set("text", "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        command("LPOP", "text")


# -- changed settings -------------------------------------------------------------------------------------------------


@BOTH
def test_changed_caches_lead_elsewhere_and_leave_no_connection_and_no_thread_behind(
    backend: str, server: RedisServer, client: redis.Redis, me: Any, exercise: Exercise, eventually: Eventually
) -> None:

    def threads() -> int:
        return sum(thread.name.startswith("redislock") for thread in threading.enumerate())

    before = threads()
    with caches(alias(backend, server.url, client_name=NAME)):
        first = own_channel()
        assert own_channel("default") == first
        exercise()
        assert connections(client)
        with redis_server() as another, caches(alias(backend, another.url)):
            assert own_channel() != first
            me(Lock("a"), "acquire")
            with another.client() as there:
                assert there.exists("redislock{0}:lock:a")
            assert not client.exists("redislock{0}:lock:a")
            eventually(lambda: not connections(client))
        exercise()
    eventually(lambda: not connections(client))
    eventually(lambda: threads() <= before + 2)  # renewer and notifier, which are for all aliases


def test_a_closed_store_is_not_used_again(fresh: None, client: redis.Redis, eventually: Eventually) -> None:
    channel = own_channel()
    close_store()
    assert own_channel() != channel
    with Lock("a", ttl=600):  # it is held for long, so its process listens
        eventually(lambda: client.pubsub_numsub(own_channel())[0][1])


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


def test_a_release_in_the_background_after_a_change_leaves_no_connection_behind(
    server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    """Of a waiter that left as the settings changed, say."""
    lock = Lock("a", ttl=60)
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        lock.acquire()
    release_in_the_background(lock)
    eventually(lambda: not client.exists("redislock{0}:lock:a"))
    eventually(lambda: not connections(client))


async def test_what_coroutines_send_after_a_change_leaves_no_connection_behind(
    server: RedisServer, client: redis.Redis, aeventually: AEventually
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        used, wire = Lock("a"), Wire()
        await used.aacquire()
        busy = asyncio.create_task(wire.aexchange(("BLPOP", "busy", "60")))
        await aeventually(lambda: client.info("clients")["blocked_clients"])
    client.rpush("busy", "over")
    await busy
    await used.arelease()
    await aeventually(lambda: not connections(client))


def test_caches_that_change_at_the_very_end_of_a_loop_or_between_two_runs_leave_no_connection_behind(
    server: RedisServer, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
            await ause(1)

    for _ in range(3):
        asyncio.run(main())
    loop = asyncio.new_event_loop()
    try:
        with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
            loop.run_until_complete(ause(1))
            assert connections(client)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    gc.collect()
    eventually(lambda: not connections(client))
    assert caplog.text == ""


def test_changed_settings_choose_another_alias_at_once(me: Any, server: RedisServer) -> None:
    third = alias(DJANGO_REDIS, server.url.removesuffix("/0") + "/3")
    with caches(alias(DJANGO_REDIS, server.url), third=third):
        me(Lock("a"), "acquire")
        with override_settings(REDISLOCK={"CACHE": "third"}):
            assert not me(Lock("a"), "locked")
        assert me(Lock("a"), "locked")


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
    for _ in range(100):
        with Lock("b"):
            pass
    other = Lock("other", ttl=600)
    other.acquire()
    while not hears():
        time.sleep(0.01)
    hear()
    say("child", own_channel(), held.token, len(list_locks()))
    hear()
    with Lock("c"):
        say("still", "alive")
    hear()
else:
    say("forked", child)
    for _ in range(100):
        with Lock("d"):
            pass
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
        before = {connection["id"] for connection in client.client_list()}
        parent.tell()
        assert parent.expect("done") == ["True"]
        parent.tell()
        own_channel, token, locks = parent.expect("child")
        assert own_channel != channel
        assert (token, locks) == ("None", "2")
        assert {connection["id"] for connection in client.client_list()} - before
        parent.signal(signal.SIGKILL)
        parent.process.wait()
        # were the child to keep the parent's socket open, Redis would count the parent as alive
        eventually(lambda: dict(client.pubsub_numsub(channel)) == {channel.encode(): 0})
        assert dict(client.pubsub_numsub(own_channel)) == {own_channel.encode(): 1}
        parent.tell()
        assert parent.expect("still") == ["alive"]
    finally:
        os.kill(child, signal.SIGKILL)


# -- a finalizer ------------------------------------------------------------------------------------------------------


class Nesting(RedisCache):
    """It uses locks of its alias while that is made: as a finalizer may, which the garbage collector runs then."""

    nested: list[str] = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if not self.nested:
            self.nested.append("")
            self.nested[0] = own_channel("ours")


def test_a_finalizer_may_use_an_alias_while_its_store_is_made(server: RedisServer, other: Callable[[], Other]) -> None:
    ours = {"BACKEND": f"{__name__}.Nesting", "LOCATION": server.url}
    with caches(alias(DJANGO, server.url), ours=ours):
        assert other()(lambda: own_channel("ours")) == own_channel("ours") == Nesting.nested[0]
