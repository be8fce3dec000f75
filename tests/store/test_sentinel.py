"""An alias behind a Sentinel: failovers, a dead master, and connections that come to an end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic
from typing import Any

import pytest

from django_redislock import Lock, LockUnavailable
from tests.helpers.actors import Crowd
from tests.helpers.ways import Sentinels, caches, connections, kill, stopped
from tests.inside import distrust

from .conftest import Eventually, ause

pytestmark = pytest.mark.usefixtures("own_pools")


@pytest.mark.complete
@pytest.mark.parametrize("at_once", [True, False])
def test_held_locks_survive_a_failover(at_once: bool, sentinels: Sentinels, eventually: Eventually) -> None:
    old, new = sentinels.clients
    with closing(Crowd(tasks=False)) as threads, closing(Crowd(tasks=True)) as tasks, caches(sentinels.alias()):
        held, waiting = [], []
        for number, crowd in enumerate((threads, tasks)):
            me, you, lock, following = crowd(), crowd(), Lock(f"a:{number}", ttl=60), Lock(f"a:{number}", ttl=60)
            me(lock, "acquire")
            held.append((me, lock, me.read(lambda lock=lock: lock.fence)))
            waiting.append((you, following, you.start(following, "acquire", blocking_timeout=60)))
            eventually(lambda me=me, lock=lock: me(lock, "info").waiters == 1)
        assert connections(old)
        assert not connections(new)
        sentinels.replicate()
        sentinels.fail_over()
        if at_once:  # what the sentinel does to the old master too, up to ten seconds later
            old.replicaof("127.0.0.1", str(sentinels.servers[1].port))
            kill(old)
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


def test_locks_work_again_after_the_master_died(
    sentinels: Sentinels, eventually: Eventually, retry_for: Callable[[float], None]
) -> None:
    def works(me: Any) -> bool:
        lock = Lock("a", blocking_timeout=1)
        try:
            assert me(lock, "acquire")
        except LockUnavailable:
            return False
        assert me.read(lambda: lock.fence) > fence
        me(lock, "release")
        return True

    retry_for(0.1)
    with closing(Crowd(tasks=False)) as threads, closing(Crowd(tasks=True)) as tasks, caches(sentinels.alias()):
        people = [threads(), tasks()]
        with Lock("a") as lock:
            fence = lock.fence
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
            eventually(lambda me=me: works(me))


@pytest.fixture(scope="module")
def three() -> Iterator[Sentinels]:
    """Three sentinels, which no test ends."""
    with closing(Sentinels(3)) as running:
        yield running


def test_silent_and_refusing_sentinels_cost_a_share_of_the_time_and_no_connection_stays(
    three: Sentinels, crowd: Crowd, eventually: Eventually, retry_for: Callable[[float], None]
) -> None:
    def use() -> None:
        lock, begin = Lock("a", blocking_timeout=1.5), monotonic()
        assert me(lock, "acquire")
        assert monotonic() - begin < 10  # far less, on a machine that is not busy
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
    eventually(lambda: not connections(three.clients[0]))


def test_the_error_about_a_missing_master_quotes_the_sentinels(
    three: Sentinels, crowd: Crowd, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    me, unknown, nobody = crowd(), three.alias(), three.alias()
    unknown["LOCATION"] = "redis://others/0"
    nobody["OPTIONS"]["SENTINELS"] = [("127.0.0.1", 1)]
    for given, said in (unknown, r"'others'\.$"), (nobody, r"'tickets'\. Error .*connecting to 127"):
        with caches(given), pytest.raises(LockUnavailable, match=rf"No sentinel knows the master {said}"):
            me(Lock("a"), "acquire")


@pytest.mark.complete
def test_a_replaced_master_that_wakes_up_grants_nothing_that_replicas_have_to_acknowledge(
    sentinels: Sentinels, eventually: Eventually
) -> None:
    sentinels.replicate()
    with caches(sentinels.alias()):
        Lock("a").locked()  # a connection to the old master
        with stopped(sentinels.servers[0]):
            sentinels.fail_over()
        with pytest.raises(LockUnavailable, match="0 of 1 replicas acknowledged it"):
            Lock("a", replicas=1).acquire()
        eventually(lambda: not sentinels.clients[0].exists("redislock{0}:lock:a"))
