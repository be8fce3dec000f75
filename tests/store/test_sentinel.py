"""An alias behind a Sentinel: failovers, a dead master, and connections that come to an end."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockUnavailable
from tests.helpers.actors import Crowd
from tests.helpers.state import LOCK, NAME
from tests.helpers.ways import Sentinels, caches, connections, kill, stopped
from tests.inside import PREFIX, command, distrust

from .conftest import Eventually
from .test_connections import ask_again

pytestmark = pytest.mark.usefixtures("own_pools")


@contextmanager
def thread_and_task() -> Iterator[list[Crowd]]:
    """Both, on the same servers: these take a while to start."""
    crowds = [Crowd(tasks=False), Crowd(tasks=True)]
    try:
        yield crowds
    finally:
        for crowd in crowds:
            crowd.close()


def demote(old: redis.Redis, new: int) -> None:
    """What the sentinel does to the old master too, up to ten seconds later."""
    old.replicaof("127.0.0.1", str(new))
    kill(old)


@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.complete)])
def test_held_locks_survive_a_failover(at_once: bool, sentinels: Sentinels, eventually: Eventually) -> None:
    old, new = sentinels.clients
    with thread_and_task() as crowds, caches(sentinels.alias()):
        held, waiting = [], []
        for number, crowd in enumerate(crowds):
            me, you, lock, following = crowd(), crowd(), Lock(f"a:{number}", ttl=60), Lock(f"a:{number}", ttl=60)
            me(lock, "acquire")
            held.append((me, lock, me.read(lambda lock=lock: lock.fence)))
            waiting.append((you, following, you.start(following, "acquire", blocking_timeout=60)))
            eventually(lambda me=me, lock=lock: me(lock, "info").waiters == 1)
        assert connections(old)
        assert not connections(new)
        sentinels.replicate()
        sentinels.fail_over()
        if at_once:
            demote(old, sentinels.servers[1].port)
        eventually(lambda: old.info("replication")["role"] == "slave")
        for me, lock, _ in held:
            assert me(lock, "owned")
            assert not me.read(lambda lock=lock: lock.lost)
            me(lock, "release")
        for (you, following, acquired), (_, _, fence) in zip(waiting, held, strict=True):
            assert acquired.result(60) is True
            assert you.read(lambda following=following: following.fence) > fence
        # not at once: whoever meets the end of the old master closes what idles, and a replica passes wakes on
        eventually(lambda: connections(new))


@pytest.mark.complete
def test_a_replaced_master_that_wakes_up_grants_nothing_that_replicas_have_to_acknowledge(
    sentinels: Sentinels, eventually: Eventually
) -> None:
    old = sentinels.servers[0].process
    assert old is not None
    sentinels.replicate()
    with caches(sentinels.alias()):
        with Lock(NAME, replicas=1):
            pass
        old.send_signal(signal.SIGSTOP)
        sentinels.promote()
        old.send_signal(signal.SIGCONT)
        with pytest.raises(LockUnavailable, match="0 of 1 replicas acknowledged it"):
            Lock(NAME, replicas=1).acquire()
        eventually(lambda: not sentinels.clients[0].exists(LOCK))


def test_locks_work_again_after_the_master_died(
    sentinels: Sentinels, eventually: Eventually, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    with thread_and_task() as crowds, caches(sentinels.alias()):
        people = [crowd() for crowd in crowds]
        lock = Lock("a")
        people[0](lock, "acquire")
        fence = people[0].read(lambda: lock.fence)
        people[0](lock, "release")
        sentinels.replicate()
        sentinels.wait_for_it(300)  # else the replica may be the master before we have asked
        sentinels.servers[0].stop()
        for me in people:
            with pytest.raises(LockUnavailable, match="alias 'default'"):
                me(Lock("a"), "acquire")
        sentinels.wait_for_it(0.2)
        eventually(lambda: sentinels.master() == sentinels.servers[1].port)
        sentinels.wait_for_it(300)  # else the new one may be taken for dead as well, where a machine is busy
        for me in people:
            eventually(lambda me=me: _works(me, fence))


def _works(me: Any, fence: int) -> bool:
    """Whether ``me`` gets a lock by now; its fence must be above this one."""
    lock = Lock("a", blocking_timeout=1)
    try:
        assert me(lock, "acquire")
    except LockUnavailable:
        return False
    assert me.read(lambda: lock.fence) > fence
    me(lock, "release")
    return True


def test_a_loop_that_ends_leaves_no_connection_to_the_sentinel(sentinels: Sentinels, eventually: Eventually) -> None:
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


def test_a_late_answer_of_the_master_is_given_to_nobody_else(sentinels: Sentinels) -> None:
    given = sentinels.alias()
    given["OPTIONS"] |= {"SOCKET_TIMEOUT": 0.1}
    with caches(given):
        ask_again(lambda: command("ECHO", "first"), b"first")
        with stopped(sentinels.servers[0]), pytest.raises(redis.TimeoutError):
            command("ECHO", "late")
        ask_again(lambda: command("ECHO", "next"), b"next")


@pytest.fixture(scope="module")
def three() -> Iterator[Sentinels]:
    """Three sentinels, which no test ends."""
    with closing(Sentinels(3)) as running:
        yield running


def test_a_silent_sentinel_takes_its_share_of_the_time_and_no_more(
    three: Sentinels, crowd: Crowd, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    me = crowd()
    for silent in three.sentinels:
        with caches(three.alias()), stopped(silent):  # the one that answers is asked first from then on
            for _ in range(2):
                lock, begin = Lock("a", blocking_timeout=1.5), monotonic()
                assert me(lock, "acquire")
                assert monotonic() - begin < 10  # far less, on a machine that is not busy
                me(lock, "release")
                distrust()


def test_a_sentinel_that_refuses_to_answer_is_skipped(three: Sentinels, crowd: Crowd) -> None:
    me, first = crowd(), three.sentinel_clients[0]
    first.execute_command("ACL", "SETUSER", "default", "-sentinel")
    try:
        with caches(three.alias()):
            lock = Lock("a")
            me(lock, "acquire")
            me(lock, "release")
    finally:
        first.execute_command("ACL", "SETUSER", "default", "+sentinel")


def test_the_error_about_a_missing_master_quotes_the_sentinels(
    three: Sentinels, crowd: Crowd, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    unknown = three.alias()
    unknown["LOCATION"] = "redis://others/0"
    me = crowd()
    with caches(unknown), pytest.raises(LockUnavailable, match=r"No sentinel knows the master 'others'\.$"):
        me(Lock("a"), "acquire")
    nobody = three.alias()
    nobody["OPTIONS"] |= {"SENTINELS": [("127.0.0.1", 1)]}
    with caches(nobody), pytest.raises(LockUnavailable, match=r"master 'tickets'\. Error .*connecting to 127"):
        me(Lock("a"), "acquire")


@pytest.mark.complete
def test_a_lease_goes_on_when_the_machine_of_the_master_and_of_the_first_sentinel_is_gone(
    eventually: Eventually,
) -> None:
    with closing(Sentinels(3)) as group, caches(group.alias()):
        lock = Lock("a", ttl=20)
        lock.acquire()
        group.replicate()
        with stopped(group.sentinels[0]), stopped(group.servers[0]):
            new, key = group.clients[1], f"{PREFIX}lock:a"
            eventually(lambda: new.info("replication")["role"] == "master")
            left = new.pttl(key)
            eventually(lambda: lock.lost or int(new.pttl(key)) > left)
            assert not lock.lost
