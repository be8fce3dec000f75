"""One lock store for each alias and process: when it is made, what a change of the settings does to it, and a fork."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import override_settings

from django_redislock import Lock
from django_redislock.engine.runtime import runtime
from django_redislock.store import stores as module
from django_redislock.store.lock_store import LockStore
from django_redislock.store.loop_connections import ENTERING
from django_redislock.store.stores import get_partition, get_store, make_store
from redisserver import RedisServer, redis_server
from tests.helpers.actors import GENEROUS, Crowd, Other
from tests.helpers.processes import Worker
from tests.helpers.ways import BOTH, DJANGO, DJANGO_REDIS, NAME, alias, caches, connections
from tests.inside import lease_of, listener, listens, own_channel

from .conftest import Eventually, Exercise, all_at_once, ause
from .test_loop_connections import Busy

pytestmark = pytest.mark.usefixtures("own_pools")


def test_threads_that_come_first_together_share_one(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LockStore] = []
    make = LockStore.__init__

    def noted(self: LockStore, *args: Any) -> None:
        made.append(self)
        make(self, *args)

    monkeypatch.setattr(LockStore, "__init__", noted)
    with caches(alias(DJANGO, server.url)):
        all_at_once(lambda _: get_partition(), 20)
    assert len(made) == 1


def test_a_single_command_raises_the_error_of_redis(client: redis.Redis) -> None:
    client.set("text", "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        get_partition().execute(("LPOP", "text"))


# -- changed settings -----------------------------------------------------------------------------------------------


@BOTH
def test_changed_caches_lead_elsewhere_and_leave_no_connection_and_no_thread_behind(
    backend: str, server: RedisServer, client: redis.Redis, me: Any, exercise: Exercise, eventually: Eventually
) -> None:
    with caches(alias(backend, server.url, client_name=NAME)):
        first = get_partition()
        assert get_partition("default") is first
        exercise()
        ears = listener()
        thread = ears.receiver.thread
        assert connections(client)
        with redis_server() as another, caches(alias(backend, another.url)):
            assert get_partition() is not first
            me(Lock("a"), "acquire")
            with another.client() as there:
                assert there.exists("redislock{0}:lock:a")
            assert not client.exists("redislock{0}:lock:a")
            eventually(lambda: not connections(client))
            thread.join(GENEROUS)
            assert not thread.is_alive()
        exercise()
        assert listener() is not ears
    eventually(lambda: not connections(client))


def test_a_closed_store_is_not_used_again(fresh: None, client: redis.Redis, eventually: Eventually) -> None:
    closed = get_partition()
    closed.store.close()
    assert get_partition() is not closed
    with Lock("a", ttl=600):  # it is held for long, so its process listens
        eventually(lambda: client.pubsub_numsub(own_channel())[0][1])
    again = get_partition()
    closed.store.close()
    assert get_partition() is again


def test_a_lock_from_before_a_change_of_settings_can_be_released_and_leaves_no_connection(
    me: Any, server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    lock = Lock("a", ttl=60)
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        me(lock, "acquire")
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
        lease = lease_of(lock)
    runtime().watchdog.release_later(lease.request, unknown=False)
    eventually(lambda: not client.exists("redislock{0}:lock:a"))
    eventually(lambda: not connections(client))


def test_a_lock_that_is_held_for_long_beyond_a_change_starts_nothing_that_listens(
    crowd: Crowd, server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock("a", ttl=60)
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        me(lock, "acquire")
    lease = me.read(lambda: lease_of(lock))
    # the watchdog has seen it and has planned its next look
    eventually(lambda: lease.seen and lease.due > monotonic() + 1)
    assert not listens(runtime().listener(lease.partition))
    me(lock, "release")
    eventually(lambda: not connections(client))


async def test_what_coroutines_send_after_a_change_leaves_no_connection_behind(
    server: RedisServer, client: redis.Redis, aeventually: Callable[..., Any]
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        used = get_partition()
        await ause(1)
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        unused = get_partition()
    for partition in (used, unused):
        answers, _ = await partition.aexchange([("ECHO", "1"), ("ECHO", "2")], urgency=ENTERING)
        assert answers == [b"1", b"2"]
    await aeventually(lambda: not connections(client))


async def test_a_change_leaves_no_connection_behind_that_is_in_use(
    server: RedisServer, client: redis.Redis, aeventually: Callable[..., Any]
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME, socket_timeout=GENEROUS)):
        busy = await Busy(client).begun()
    await busy.end()
    await aeventually(lambda: not connections(client))


def test_caches_that_change_at_the_very_end_of_a_loop_leave_no_connection_behind(
    server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    async def main() -> None:
        with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
            await ause(1)

    for _ in range(3):
        asyncio.run(main())
    eventually(lambda: not connections(client), within=10)


def test_caches_that_change_between_two_runs_of_a_loop_leave_no_connection_behind(
    server: RedisServer, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
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
            assert get_partition().alias == "third"
            assert not me(Lock("a"), "locked")
        assert me(Lock("a"), "locked")


# -- a fork ---------------------------------------------------------------------------------------------------------

FORK = """
from tests.inside import listener

held = Lock("held", ttl=600)
held.acquire()
while not listener().ready:
    time.sleep(0.01)
say("parent", listener().partition.channel)
child = os.fork()
if child == 0:
    hear()
    for _ in range(100):
        with Lock("b"):
            pass
    other = Lock("other", ttl=600)
    other.acquire()
    while not listener().ready:
        time.sleep(0.01)
    hear()
    say("child", listener().partition.channel, held.token, len(list_locks()))
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


def test_a_finalizer_may_use_an_alias_while_its_store_is_made(
    other: Callable[[], Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector runs it on the thread that makes the store, in the midst of that."""
    nested: list[LockStore] = []

    def make(alias: str, prefix: str) -> LockStore:
        if not nested:
            nested.append(make_store(alias, prefix))
            nested[0] = get_store("ours")
        return make_store(alias, prefix)

    with override_settings(CACHES=settings.CACHES | {"ours": settings.CACHES["default"]}):
        monkeypatch.setattr(module, "make_store", make)
        assert other()(lambda: get_store("ours")) is get_store("ours") is nested[0]
