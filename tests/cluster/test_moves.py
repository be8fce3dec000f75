"""Slots that move to another node, and nodes that come and go, while locks are held and waited for (C3, C4)."""

from __future__ import annotations

from itertools import count
from time import monotonic
from typing import Any

import pytest

from django_redislock import Lock, LockUnavailable, get_lock, list_locks
from rediscluster import HOST
from tests.helpers.cluster import Cluster
from tests.inside import Ears, limit, nodes_known

from .conftest import Eventually, Queue, names_on, slot_of, waiters

pytestmark = pytest.mark.complete


@pytest.fixture
def contended(own_cluster: Cluster, queue: Queue, eventually: Eventually) -> Any:
    """A held lock and a waiter: the name, the holder, and the waiter's future."""
    (name,) = names_on(own_cluster, own_cluster.masters()[0])
    held = Lock(name)
    held.acquire()
    waiting = queue(Lock(name))
    eventually(lambda: Ears(name=name).hears)
    return name, held, waiting


def test_a_lock_and_its_waiter_move_with_their_slot(
    own_cluster: Cluster, contended: Any, eventually: Eventually
) -> None:
    name, held, waiting = contended
    ears, fence = Ears(name=name), held.fence
    source, target = own_cluster.owner_of(slot_of(name)), own_cluster.masters()[1]
    others = [Lock(name, ttl=3) for name in names_on(own_cluster, source, 8)[1:]]
    for lock in others:
        lock.acquire()
    generation, owners = ears.generation, own_cluster.owners()
    slots = {slot_of(f"order:{number}") for number in range(1000)}  # all that locks may be in
    own_cluster.move(*(slot for slot in slots if owners[slot] is source), to=target)
    # Redis has told the process that its subscription is over; it subscribes anew, and all who wait look again
    eventually(lambda: ears.generation > generation and ears.node == target.port)
    eventually(lambda: not source.client().client_list(_type="pubsub"))  # where nobody is told anything any more
    eventually(lambda: waiters(name) == 1)
    held.extend(1)
    assert held.fence == fence
    held.release()
    assert waiting.result(30)
    info = get_lock(name)
    assert info is not None
    assert info.fence > fence
    end = monotonic() + max(lock.remaining() for lock in others)
    eventually(lambda: monotonic() + min(lock.remaining() for lock in others) > end)
    assert not any(lock.lost for lock in others)


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
        settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 0.1}
        with pytest.raises(LockUnavailable, match=r"^Redis refuses to serve the lock .*: TRYAGAIN \w"):
            Lock(name).acquire(blocking_timeout=0)
        settings.REDISLOCK = {**settings.REDISLOCK, "RETRY_FOR": 10}
    else:
        own_cluster.migrate_keys(slot_of(name))
    trying = crowd().start(Lock(name), "acquire", blocking_timeout=0)
    told = "errorstat_TRYAGAIN" if half else "errorstat_ASK"
    eventually(lambda: told in first.client().info("errorstats") or trying.done())
    assert not trying.done()
    if half:
        own_cluster.migrate_keys(slot_of(name))
    own_cluster.finish_move(slot_of(name))
    assert trying.result(30)


def test_a_node_that_joins_and_one_that_leaves(
    own_cluster: Cluster, contended: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, idle_look=0.1)
    name, held, waiting = contended
    source, target = own_cluster.owner_of(slot_of(name)), own_cluster.masters()[1]
    joined = own_cluster.add_master()
    own_cluster.move(slot_of(name), to=joined)
    assert Lock(name).locked()
    eventually(lambda: joined.port in nodes_known())
    own_cluster.move(slot_of(name), to=target)
    assert Lock(name).locked()
    eventually(lambda: joined.port not in nodes_known())  # who only follows the redirections forgets nodes as well
    own_cluster.remove(source)
    eventually(lambda: waiters(name) == 1)
    held.release()
    assert waiting.result(30)
    # nothing of the one that has left is kept, once somebody has asked for what it had
    assert [lock.name for lock in list_locks()] == [name]
    eventually(lambda: source.port not in nodes_known())
