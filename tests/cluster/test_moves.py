"""Slots that move to another node, and nodes that come and go, while locks are held and waited for (C3, C4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from django_redislock import Lock, LockUnavailable, get_lock, list_locks
from django_redislock.engine.runtime import runtime
from django_redislock.store.node import Node
from django_redislock.store.probe import probe_command
from django_redislock.store.stores import get_partition, get_store
from rediscluster import HOST
from tests.helpers.actors import stands_in
from tests.helpers.cluster import Cluster
from tests.inside import lease_of, limit

from .conftest import Eventually, names_on, port_of, slot_of

pytestmark = pytest.mark.complete


@pytest.fixture
def contended(own_cluster: Cluster, other: Any, eventually: Eventually) -> Any:
    """A held lock and a waiter: the name, the holder, and the waiter's future."""
    first = own_cluster.masters()[0]
    (name,) = names_on(own_cluster, first)
    held, thread = Lock(name), other()
    held.acquire()
    waiting = thread.start(Lock(name).acquire)
    eventually(lambda: (info := get_lock(name)) is not None and info.waiters == 1)
    eventually(lambda: runtime().listener(get_partition(None, name)).hears)
    return name, held, waiting


def test_a_lock_and_its_waiter_move_with_their_slot(
    own_cluster: Cluster, contended: Any, eventually: Eventually
) -> None:
    name, held, waiting = contended
    listener = runtime().listener(get_partition(None, name))
    source, target = own_cluster.owner_of(slot_of(name)), own_cluster.masters()[1]
    fence, generation, receiver = held.fence, listener.generation, listener.receiver
    assert receiver is not None
    owners = own_cluster.owners()
    own_cluster.move(*(slot for slot in get_store()._slots if owners[slot] is source), to=target)  # type: ignore[attr-defined]
    assert own_cluster.owner_of(slot_of(name)) is target is not source
    # Redis has told the process that its subscription is over; it subscribes anew, and all who wait look again
    eventually(lambda: listener.generation > generation and port_of(listener) == target.port)
    eventually(lambda: not receiver.thread.is_alive())  # nothing listens where nobody is told anything any more
    eventually(lambda: (info := get_lock(name)) is not None and info.waiters == 1)
    held.extend(1)
    assert held.fence == fence
    held.release()
    assert waiting.result(30)
    info = get_lock(name)
    assert info is not None
    assert info.fence > fence


def test_a_thread_that_reads_where_its_lock_was_is_woken_where_it_is(
    own_cluster: Cluster, other: Any, eventually: Eventually, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tags of its node stay, and their messages go on arriving on the old connection."""
    limit(monkeypatch, look_every=600)
    settings.REDISLOCK = {**settings.REDISLOCK, "SLOW_WAIT": 600}
    first, target = own_cluster.masters()[:2]
    (name,) = names_on(own_cluster, first)
    partition = get_partition(None, name)
    listener = runtime().listener(partition)
    listener.start()
    eventually(lambda: listener.hears and listener.receiver is not None)  # who waits before cannot read
    held, thread, receiver = Lock(name, ttl=600), other(), listener.receiver
    assert receiver is not None
    held.acquire()
    waiting = thread.start(Lock(name).acquire)

    def reads_messages() -> bool:
        partition.execute(probe_command(partition))  # whoever reads now makes room for one who waits
        return stands_in(thread._thread, "lead", "can_read")

    eventually(reads_messages)
    own_cluster.move(slot_of(name), to=target)
    eventually(lambda: port_of(listener) == target.port)
    assert receiver.thread.is_alive()
    held.release()
    assert waiting.result(60)


@pytest.mark.parametrize("half", [True, False], ids=["TRYAGAIN", "ASK"])
def test_a_single_try_is_not_refused_while_a_slot_is_being_moved(
    half: bool, own_cluster: Cluster, crowd: Any, eventually: Eventually, settings: Any
) -> None:
    first, target = own_cluster.masters()[:2]
    (name,) = names_on(own_cluster, first)
    neighbour = next(f"n:{i}" for i in count() if slot_of(f"n:{i}") == slot_of(name))
    Lock(neighbour, ttl=60).acquire()
    own_cluster.begin_move(slot_of(name), to=target)
    if half:  # the fence alone: the index stays
        (fence,) = first.client().keys("*fence")
        first.client().execute_command("MIGRATE", HOST, target.port, fence, 0, 5000)
    else:
        own_cluster.migrate_keys(slot_of(name))
    if half:
        settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 0.1}
        with pytest.raises(LockUnavailable, match=r"^Redis refuses to serve the lock .*: TRYAGAIN \w"):
            Lock(name).acquire(blocking_timeout=0)
        settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 10}
    lock = Lock(name)
    trying = crowd().start(lock, "acquire", blocking_timeout=0)
    told = "errorstat_TRYAGAIN" if half else "errorstat_ASK"
    eventually(lambda: told in first.client().info("errorstats") or trying.done())
    assert not trying.done()
    if half:
        own_cluster.migrate_keys(slot_of(name))
    own_cluster.finish_move(slot_of(name))
    assert trying.result(30)


def test_renewals_follow_a_slot(own_cluster: Cluster, eventually: Eventually) -> None:
    first, target = own_cluster.masters()[:2]
    names = names_on(own_cluster, first, 8)
    locks = [Lock(name, ttl=3) for name in names]
    for lock in locks:
        lock.acquire()
    own_cluster.move(*map(slot_of, names), to=target)
    ends = [lease_of(lock).ends for lock in locks]
    eventually(lambda: all(lease_of(lock).ends > end for lock, end in zip(locks, ends, strict=True)))
    assert not any(lock.lost for lock in locks)


def test_a_node_that_joins_and_one_that_leaves(own_cluster: Cluster, contended: Any, eventually: Eventually) -> None:
    name, held, waiting = contended
    source = own_cluster.owner_of(slot_of(name))
    joined = own_cluster.add_master()
    own_cluster.move(slot_of(name), to=joined)
    own_cluster.remove(source)
    eventually(lambda: (info := get_lock(name)) is not None and info.waiters == 1)
    held.release()
    assert waiting.result(30)
    # nothing of the one that has left is kept, once somebody has asked for what it had
    assert [lock.name for lock in list_locks()] == [name]
    eventually(lambda: source.port not in ports_of(get_store().nodes))


def test_nothing_is_kept_of_nodes_that_have_no_slots_any_more(
    own_cluster: Cluster, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that only follows the redirections forgets them as well."""
    limit(monkeypatch, idle_look=0.1)
    source, target = own_cluster.masters()[:2]
    (name,) = names_on(own_cluster, source)
    with Lock(name):
        joined = own_cluster.add_master()
        own_cluster.move(slot_of(name), to=joined)
        assert Lock(name).locked()
        eventually(lambda: joined.port in ports_of(get_store().nodes))
        own_cluster.move(slot_of(name), to=target)
        assert Lock(name).locked()
        eventually(lambda: joined.port not in ports_of(get_store().nodes))


def ports_of(nodes: Iterable[Node]) -> list[int]:
    return [node.origin.keywords["port"] for node in nodes]


def test_holder_and_waiters_survive_a_manual_failover(own_cluster: Cluster, crowd: Any, eventually: Eventually) -> None:
    first = own_cluster.masters()[0]
    names = names_on(own_cluster, first, 3)
    held = [(crowd(), Lock(name)) for name in names]
    for person, lock in held:
        person(lock, "acquire")
    waiting = [crowd().start(Lock(name), "acquire") for name in names for _ in range(3)]
    for name in names:
        eventually(lambda name=name: (info := get_lock(name)) is not None and info.waiters == 3)
    (replica,) = own_cluster.replicas_of(first)
    own_cluster.failover(replica)
    # with everything that the old master had; the processes notice by their looks and renewals
    for name in names:
        listener = runtime().listener(get_partition(None, name))
        eventually(lambda listener=listener: port_of(listener) == replica.port)
    for person, lock in held:
        assert not person.read(lambda lock=lock: lock.lost)
        person(lock, "release")
    eventually(lambda: sum(future.done() for future in waiting) == 3)


def test_a_cluster_that_hangs_and_comes_back_can_be_used_again(own_cluster: Cluster, settings: Any) -> None:
    settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 0.2}
    (name,) = names_on(own_cluster, own_cluster.masters()[0])
    with Lock(name):
        pass
    for node in own_cluster.nodes:
        own_cluster.pause(node)
    with pytest.raises(LockUnavailable, match="cannot be reached"):
        Lock(name).acquire(blocking_timeout=0)

    async def main() -> None:
        with pytest.raises(LockUnavailable, match="cannot be reached"):
            await Lock(name).aacquire(blocking_timeout=0)

    asyncio.run(main())
    for node in own_cluster.nodes:
        own_cluster.resume(node)
    settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 20}
    with Lock(name):
        pass
