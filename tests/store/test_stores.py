"""The connections of an alias in a process: what a change of the settings, a fork, the end of a loop and a failover by
Sentinel do to them."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from time import monotonic
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redislock import Lock, LockUnavailable
from redisserver import RedisServer, redis_server
from tests.helpers import state
from tests.helpers.actors import Crowd, auntil, until
from tests.helpers.processes import Worker
from tests.helpers.proxy import proxy
from tests.helpers.ways import (
    BOTH,
    DJANGO_REDIS,
    HOST,
    MASTER,
    NAME,
    Sentinels,
    SentinelServer,
    alias,
    caches,
    connections,
    kill,
    stopped,
)
from tests.inside import (
    Wire,
    all_seen,
    change_caches_while_a_store_is_made,
    distrust,
    drop_idle_here,
    ends,
    hang_up_idle,
    loops_with_connections,
    renew_all,
    unused_here,
    watch_connections,
)

from .conftest import Exercise, ause


@BOTH
def test_changed_caches_lead_elsewhere_and_leave_no_connection_and_no_thread_behind(
    backend: str, server: RedisServer, client: redis.Redis, me: Any, exercise: Exercise
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
            until(lambda: not connections(client))
        exercise()
        me(Lock("a"), "acquire")
        with override_settings(REDISLOCK={"CACHE": "third"}):
            assert not me(Lock("a"), "locked")
        assert me(Lock("a"), "locked")
    until(lambda: not connections(client))
    until(lambda: threads() <= before + 2)  # renewer and notifier, which are for all aliases


def test_a_lock_from_before_a_change_of_settings_can_be_released_and_leaves_no_connection(
    me: Any, server: RedisServer, client: redis.Redis
) -> None:
    """If it is held for long beyond that, too: nothing begins to listen."""
    lock = Lock("a", ttl=60)
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        me(lock, "acquire")
    until(all_seen)  # by the renewer, which has planned its next look
    assert not [connection for connection in connections(client) if connection["sub"] != "0"]
    me(lock, "release")
    assert not client.exists("redislock{0}:lock:a")
    until(lambda: not connections(client))


FORK = """
from tests.inside import hears, own_channel

def wait():
    Lock(name, blocking_timeout=60).acquire()

held = Lock("held", ttl=600)
held.acquire()
threading.Thread(target=wait, daemon=True).start()
while not hears():
    time.sleep(0.01)
say("parent", own_channel())
hear()
child = os.fork()
if child == 0:
    hear()
    other = Lock("other", ttl=600)
    other.acquire()
    while not hears():
        time.sleep(0.01)
    say("child", own_channel(), held.token, len(list_locks()))
    wait()
    say("waited")
    hear()
else:
    say("forked", child, held.owned())
    time.sleep(600)
"""


def test_a_forked_child_has_connections_of_its_own_and_keeps_none_of_its_parent(
    start: Callable[..., Worker], client: redis.Redis
) -> None:
    lock, parent = Lock(state.NAME), start(FORK, fresh=True, name=state.NAME)
    lock.acquire()
    (channel,) = parent.expect("parent")
    until(lambda: state.queued(client) == 1)
    parent.tell()
    child, owned = parent.expect("forked")
    try:
        assert owned == "True"
        assert dict(client.pubsub_numsub(channel)) == {channel.encode(): 1}
        parent.signal(signal.SIGKILL)
        parent.process.wait()
        # were the child to keep the parent's socket open, Redis would count the parent as alive, and nobody would
        # overtake its waiters
        until(lambda: dict(client.pubsub_numsub(channel)) == {channel.encode(): 0})
        parent.tell()  # the child, which has used no lock yet
        own_channel, token, locks = parent.expect("child")
        assert own_channel != channel
        assert (token, locks) == ("None", "3")
        until(lambda: state.queued(client) == 2)
        _, second = list[Any](client.zrange(state.QUEUE, 0, -1))
        assert dict(client.pubsub_numsub(own_channel)) == {own_channel.encode(): 1}
        lock.release()
        assert state.holder(client) == second.decode()
        parent.expect("waited")
    finally:
        os.kill(int(child), signal.SIGKILL)


def of_commands(client: redis.Redis) -> list[dict[str, str]]:
    """Those of our connections that listen to nothing."""
    return [connection for connection in connections(client) if connection["sub"] == "0"]


@BOTH
def test_many_event_loops_leave_no_connection_behind(
    backend: str, server: RedisServer, client: redis.Redis, caplog: pytest.LogCaptureFixture
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
        until(lambda: len(of_commands(client)) <= 2)  # those of the process's threads, on a slow machine
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
        with stopped(own):
            tasks = [loop.create_task(Lock(f"a:{number}").aacquire()) for number in range(5)]
            loop.run_until_complete(auntil(lambda: counts() == (3, 2)))
            loop.close()
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                # as the garbage collector would, but one after the other: it may close one that is executing
                task.get_coro().close()
            del tasks, task
            gc.collect()
        assert "closed" not in caplog.text
        assert counts()[0] == 0


# -- Sentinel ---------------------------------------------------------------------------------------------------------


@pytest.mark.complete
@pytest.mark.parametrize("at_once", [True, False])
def test_held_locks_survive_a_failover(at_once: bool, sentinels: Sentinels, crowd: Crowd, queue: Any) -> None:
    old, new = sentinels.clients
    me, you, lock, following = crowd(), crowd(), Lock("a", ttl=60), Lock("a", ttl=60)
    with caches(sentinels.alias()):
        me(lock, "acquire")
        fence = me.read(lambda: lock.fence)
        acquired = queue(following, you, blocking_timeout=60)
        assert connections(old)
        assert not connections(new)
        sentinels.replicate()
        sentinels.fail_over()
        if at_once:  # what the sentinel does to the old master too, up to ten seconds later
            old.replicaof("127.0.0.1", str(sentinels.servers[1].port))
            kill(old)
        until(lambda: old.info("replication")["role"] == "slave")
        assert me(lock, "owned")
        assert not me.read(lambda: lock.lost)
        me(lock, "release")
        assert acquired.result(60) is True
        assert you.read(lambda: following.fence) > fence
        # not at once: whoever meets the end of the old master closes what idles, and a replica passes wakes on
        until(lambda: connections(new))


@pytest.mark.complete
def test_of_a_master_that_hangs_the_first_call_is_told_and_the_next_reaches_its_successor(
    sentinels: Sentinels, crowd: Crowd, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    sentinels.wait_for_it(300)  # none is taken for dead, where a machine is busy
    master, me = sentinels.clients[0], crowd()
    with caches(sentinels.alias(timeout=5)):
        waiting = [crowd().start(Wire(), "exchange", ("BLPOP", "busy", "30")) for _ in range(3)]
        until(lambda: master.info("clients")["blocked_clients"] == 3)
        master.rpush("busy", 1, 2, 3)
        for waited in waiting:
            waited.result(60)
        assert me.read(unused_here) == 3
        with sentinels.another_master():
            with pytest.raises(LockUnavailable, match="cannot be reached"):
                me(Lock("a"), "acquire")
            assert me(Lock("a"), "acquire", blocking=False)


@pytest.mark.complete
def test_wakes_come_from_the_successor_of_a_master_that_hangs(
    sentinels: Sentinels, crowd: Crowd, retry_for: Callable[[float], None]
) -> None:
    """What leads to the one that hangs stays open, and the other one hands no lock to a process that it cannot tell."""
    retry_for(30)
    sentinels.wait_for_it(300)  # none is taken for dead, where a machine is busy
    old, new = sentinels.clients
    me, lock = crowd(), Lock("a", ttl=60)
    with caches(sentinels.alias()):
        me(lock, "acquire")
        waiting = crowd().start(Lock("a", ttl=60), "acquire")
        until(lambda: old.pubsub_channels("*wake*") and me(lock, "info").waiters == 1)
        with sentinels.another_master():
            assert me(Lock("b"), "acquire")
            until(lambda: new.pubsub_channels("*wake*"))
            me(lock, "release")
            assert waiting.result(60)


@pytest.mark.complete
def test_once_sentinels_name_another_master_nothing_leads_to_the_former_one_though_it_lives_on(crowd: Crowd) -> None:
    """It may be cut off from them, and renew what its successor grants to others."""
    with closing(Sentinels()) as own, caches(own.alias()):
        new, (sentinel,) = own.clients[1], own.sentinel_clients
        me, lock = crowd(), Lock("a", ttl=60)
        me(lock, "acquire")
        end = ends(lock)
        renew_all()
        until(lambda: ends(lock) > end)  # there is a connection to renew by
        new.replicaof("NO", "ONE")
        new.flushall()
        sentinel.execute_command("SENTINEL", "REMOVE", MASTER)
        sentinel.execute_command("SENTINEL", "MONITOR", MASTER, HOST, str(own.servers[1].port), "1")
        me.read(drop_idle_here)
        assert me(Lock("b"), "acquire")
        renew_all()
        until(lambda: me.read(lambda: lock.lost))


@pytest.fixture(scope="module")
def three() -> Iterator[Sentinels]:
    with closing(Sentinels(3)) as running:
        yield running


def test_silent_and_refusing_sentinels_cost_a_share_of_the_time_and_no_connection_stays(
    three: Sentinels, crowd: Crowd, retry_for: Callable[[float], None]
) -> None:
    def use() -> None:
        lock = Lock("a", blocking_timeout=6)
        assert me(lock, "acquire")
        me(lock, "release")
        distrust()

    retry_for(0.1)
    me, first = crowd(), three.sentinel_clients[0]
    for silent in three.sentinels:
        with caches(three.alias()), stopped(silent):  # the one that answers is asked first from then on
            use()
            use()
    first.execute_command("ACL", "SETUSER", "default", "-sentinel")
    with caches(three.alias()):
        use()
        asyncio.run(ause(1))
        gc.collect()  # a socket that nobody closed would warn now
    first.execute_command("ACL", "SETUSER", "default", "+sentinel")
    until(lambda: not connections(three.clients[0]))


@pytest.mark.parametrize(
    "trouble", ["No sentinel knows the master", r"The sentinels find the master 'tickets' down: \S*o_down"]
)
def test_where_sentinels_name_no_master_the_connections_that_there_are_go_on_working(
    trouble: str, three: Sentinels, crowd: Crowd, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    lock, another = Lock("a", ttl=60), Lock("b")
    down = SentinelServer(f"monitor {MASTER} {HOST} 1 1")
    with closing(down), closing(down.start().client()) as client, proxy(three.sentinels[0].port) as network:
        client.sentinel_set(MASTER, "down-after-milliseconds", 1)
        until(lambda: "o_down" in str(client.sentinel_masters()))
        with caches(three.alias(network.port)):
            me = crowd()
            me(lock, "acquire")
            if "down" in trouble:
                network.target = down.port
            else:
                network.cut()
            with pytest.raises(LockUnavailable, match=trouble):
                another.acquire() if crowd.awaits else asyncio.run(another.aacquire())
            until(lambda: me.read(unused_here) == 1)  # the withdrawal of what was refused may use it at this moment
            me(lock, "release")


@pytest.mark.parametrize("refuses", ["NOREPLICAS", "READONLY", "connections"])
def test_where_a_sentinel_names_a_replaced_master_the_next_one_is_asked(
    refuses: str, three: Sentinels, own: RedisServer, me: Any, retry_for: Callable[[float], None]
) -> None:
    retry_for(30)
    given, behind = three.alias(), SentinelServer(f"monitor {MASTER} {HOST} {own.port} 1")
    with closing(behind), own.client() as replaced:
        behind.start()
        if refuses == "NOREPLICAS":
            replaced.config_set("min-replicas-to-write", 1)
        elif refuses == "READONLY":
            replaced.replicaof(HOST, "1")
        else:
            replaced.config_set("maxclients", 1)
        given["OPTIONS"]["SENTINELS"].insert(0, (HOST, behind.port))
        with caches(given):
            assert me(Lock(refuses, ttl=6), "acquire")
            assert three.clients[0].exists(f"redislock{{0}}:lock:{refuses}")


def test_the_error_about_a_missing_master_quotes_the_sentinels(
    three: Sentinels, crowd: Crowd, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    me, unknown = crowd(), {**three.alias(), "LOCATION": "redis://others/0"}
    for given, said in (unknown, r"'others'\."), (three.alias(1), r"'tickets'\. Error .*connecting to 127"):
        with caches(given), pytest.raises(LockUnavailable, match=rf"No sentinel knows the master {said}"):
            me(Lock("a"), "acquire")


@pytest.mark.complete
def test_sentinels_lead_nobody_to_a_replaced_master_that_nobody_has_demoted_yet(crowd: Crowd) -> None:
    """Their answer of before comes late; and the one that leads the failover lists the old master until all replicas
    follow the new one."""
    with closing(Sentinels(replicas=2)) as several:
        sentinel = several.sentinel_clients[0]
        several.clients[2].config_set("replica-priority", 0)  # the other one is promoted
        until(lambda: 0 in {one["slave-priority"] for one in sentinel.sentinel_slaves(MASTER)})
        several.wait_for_it(300)  # none is taken for dead
        sentinel.sentinel_set(MASTER, "failover-timeout", 300_000)
        with proxy(several.sentinels[0].port) as network, stopped(several.servers[2]):
            with caches(several.alias(network.port, timeout=60)):
                late = network.hold_answer("GET-MASTER-ADDR-BY-NAME")
                acquiring = crowd().start(Lock("a"), "acquire")
                assert late.caught.wait(60)
                several.fail_over()
                since = monotonic()
                until(lambda: monotonic() > since + 0.5)  # C7: no answer of a moment ago is doubted
                late.let_go()
                assert acquiring.result(60)
            with caches(several.alias()):
                listed: Any = sentinel.sentinel_masters()
                assert (listed[MASTER]["port"], listed[MASTER]["is_sdown"]) == (several.servers[0].port, False)
                assert crowd()(Lock("b"), "acquire")
        assert several.clients[1].exists("redislock{0}:lock:a", "redislock{0}:lock:b") == 2


@pytest.mark.complete
def test_what_a_replaced_master_answers_when_it_wakes_up_does_not_count(me: Any, sentinels: Sentinels) -> None:
    sentinels.wait_for_it(300)  # none is taken for dead, where a machine is busy
    with caches(sentinels.alias(timeout=60)):
        me(Lock("a"), "locked")  # it is connected
        sentinels.replicate()
        with stopped(sentinels.servers[0]):
            acquiring = me.start(Lock("b"), "acquire")
            sentinels.fail_over()
        assert acquiring.result(60)
        assert sentinels.clients[1].exists("redislock{0}:lock:b")


@pytest.mark.complete
def test_where_no_sentinel_answers_a_late_answer_counts(me: Any, sentinels: Sentinels) -> None:
    with caches(sentinels.alias(timeout=60)):
        me(Lock("a"), "locked")  # it is connected
        with stopped(sentinels.sentinels[0]):
            with stopped(sentinels.servers[0]):
                acquiring, since = me.start(Lock("b", ttl=60), "acquire"), monotonic()
                until(lambda: monotonic() > since + 1)  # C7: no answer of a moment ago is doubted
            assert acquiring.result(60)
            assert me(Lock("c"), "acquire")


@pytest.mark.complete
def test_a_replaced_master_that_wakes_up_grants_nothing_that_replicas_have_to_acknowledge(sentinels: Sentinels) -> None:
    """Whoever is told so reaches the new one with the next call."""
    old, new = sentinels.clients
    sentinels.replicate()
    with caches(sentinels.alias()):
        Lock("a").locked()  # a connection to the old master
        with stopped(sentinels.servers[0]):
            sentinels.fail_over()
        with pytest.raises(LockUnavailable, match="0 of 1 replicas acknowledged it"):
            Lock("a", replicas=1).acquire()
        assert Lock("b").acquire()
        assert new.exists("redislock{0}:lock:b")
        until(lambda: not old.exists("redislock{0}:lock:a"))


@pytest.mark.complete
def test_a_question_to_the_replicas_that_a_failover_breaks_off_is_asked_again(
    sentinels: Sentinels, crowd: Crowd
) -> None:
    def asking() -> list[str]:
        return [connection["id"] for connection in connections(master) if "b" in connection["flags"]]

    master, me = sentinels.clients[0], crowd()
    with caches(sentinels.alias()):
        me(Lock("b"), "acquire")  # the master knows the script
        sentinels.replicate()
        with stopped(sentinels.servers[1]):
            acquiring = me.start(Lock("a", replicas=1), "acquire")
            (id,) = until(asking)
            master.client_unblock(int(id), error=True)  # a demotion sends the same
        assert acquiring.result(60)
        with stopped(sentinels.servers[1]):
            acquiring = me.start(Lock("c", replicas=1), "acquire")
            until(asking)
            master.replicaof("127.0.0.1", str(sentinels.servers[1].port))
            assert "set REPLICAS to 0" not in str(acquiring.exception(60))  # it is asked as a replica, too


def test_a_store_that_is_made_while_caches_change_is_not_used_for_good(
    monkeypatch: pytest.MonkeyPatch, settings: Any, server: RedisServer, client: redis.Redis
) -> None:
    with redis_server() as another:
        elsewhere = {"default": alias(DJANGO_REDIS, another.url)}
        change_caches_while_a_store_is_made(monkeypatch, lambda: setattr(settings, "CACHES", elsewhere))
        settings.CACHES = {"default": alias(DJANGO_REDIS, server.url)}
        assert Lock("a").acquire()  # by the settings of before
        assert Lock("b").acquire()
        with another.client() as there:
            assert there.exists("redislock{0}:lock:b")
        assert not client.exists("redislock{0}:lock:b")
