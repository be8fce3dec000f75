"""What works on one server works on a cluster: locks, waiting, pools, values, looking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis
from django.conf import settings as site
from django.core.management import call_command

from django_redislock import (
    ConditionalValue,
    Counter,
    Lock,
    LockNotAcquired,
    LockPool,
    alist_locks,
    get_lock,
    list_locks,
    list_pools,
    locked_get_or_set,
)
from tests.helpers.cluster import Cluster
from tests.helpers.processes import Worker
from tests.inside import RENEW, Ears, believe_at, note_round_trips, refuse_subscription

from .conftest import Eventually, Queue, key_of, names_on, slot_of

MANY = [f"order:{number}" for number in range(200)]

Look = Callable[[int, Any], object]


def mine(look: Look) -> Look:
    """Only in this thread: the process has others that send."""
    me = threading.current_thread()
    return lambda port, commands: look(port, commands) if threading.current_thread() is me else None


def test_names_are_spread_over_slots_and_a_section_is_two_round_trips_and_a_list_two_to_each_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    for _ in range(2):  # at first, the nodes do not know the scripts
        with monkeypatch.context() as patch:
            asked.clear()
            note_round_trips(patch, mine(lambda port, commands: asked.append(port)))
            for name in MANY:
                with Lock(name):
                    pass
    assert len(asked) == 2 * len(MANY)
    assert len({slot_of(name) for name in MANY}) > 50
    for name in MANY:
        Lock(name).acquire()
    (key,) = cluster.owner_of(slot_of("order:1")).client().keys("*lock:order:1")
    assert key == key_of("order:1").encode()
    asked.clear()
    note_round_trips(monkeypatch, mine(lambda port, commands: asked.append(port)))
    assert [lock.name for lock in list_locks("order:1?")] == [f"order:{number}" for number in range(10, 20)]
    assert max(asked.count(node.port) for node in cluster.masters()) == 2
    assert len(asyncio.run(alist_locks())) == len(MANY)
    call_command("redislocks", "clear", "--all", "--noinput")
    assert list_locks() == []


def test_whoever_waits_at_a_node_first_subscribes_to_all_its_tags_and_is_woken_by_one_message(
    cluster: Cluster, queue: Queue, eventually: Eventually
) -> None:
    """So whoever waits there next is not overtaken while its process subscribes, and each node has one connection."""
    for node in cluster.masters():
        names = names_on(cluster, node, 5)
        held = Lock(names[0])
        held.acquire()
        waiting = queue(Lock(names[0]))
        ears = [Ears(name=name) for name in names]
        eventually(lambda ears=ears: all(each.hears for each in ears))
        channels = [each.channel for each in ears]
        assert node.client().execute_command("PUBSUB", "SHARDNUMSUB", *channels)[1::2] == [1] * 5
        heard = ears[0].heard
        held.release()
        assert waiting.result(30)
        assert ears[0].heard == heard + 1
    eventually(lambda: all(len(node.client().client_list(_type="pubsub")) == 1 for node in cluster.masters()))


@pytest.mark.complete
def test_coroutines_and_processes_exclude_each_other_on_all_nodes(
    cluster: Cluster, start: Callable[..., Worker]
) -> None:
    code = """
import asyncio, redis
from django.test.utils import override_settings
override_settings(CACHES=CACHES, REDISLOCK={"CACHE": "locks", "CLUSTER": True}).enable()
mark = redis.Redis.from_url(os.environ["REDISLOCK_TEST_URL"])

async def section(name):
    async with Lock(name):
        assert mark.set(name, "inside", nx=True), "two holders at once"
        await asyncio.sleep(0)
        mark.delete(name)

async def main():
    await asyncio.gather(*[section(name) for _ in range(10) for name in NAMES])

asyncio.run(main())
say("done")
"""
    names = [name for node in cluster.masters() for name in names_on(cluster, node, 2)]
    for worker in [start(code, CACHES=site.CACHES, NAMES=names) for _ in range(3)]:
        worker.expect("done", 60)
    assert list_locks() == []


def test_pools_values_and_cached_values(cluster: Cluster) -> None:
    pools = [LockPool(f"cars {number}") for number in range(8)]
    for pool in pools:
        pool.extend(["a", "b"])
        with pool.acquire() as member:
            assert (pool.info().free, get_lock(member.name) is not None) == (1, True)
            with pool.acquire(), pytest.raises(LockNotAcquired):
                pool.acquire(blocking_timeout=0)
    assert [pool.name for pool in list_pools()] == sorted(pool.name for pool in pools)
    value = ConditionalValue("best")
    assert [value.setgt(3), value.setgt(2), value.get()] == [True, False, 3]
    assert [Counter("visits").incr() for _ in range(3)] == [1, 2, 3]
    assert locked_get_or_set("answer", lambda: 42) == 42


def test_a_node_that_has_the_lock_no_longer_is_not_believed(
    cluster: Cluster, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that was paused answers one request more, before it hears that it is none any more."""
    here, there = cluster.masters()[:2]
    (replica,) = cluster.replicas_of(here)
    (name,) = names_on(cluster, here)
    asked: list[int] = []

    def moved_meanwhile(port: int, commands: Any) -> None:
        asked.append(port)
        if len(asked) == 1:
            believe_at(name, there.port)

    ears = Ears(name=name)
    believe_at(name, replica.port)
    ears.start()
    eventually(lambda: ears.hears)
    assert ears.node == here.port  # R3, C3: no script at a replica counts who is subscribed there
    with monkeypatch.context() as patch:
        note_round_trips(patch, after=mine(moved_meanwhile))
        lock = Lock(name, ttl=3)
        lock.acquire()
        assert asked == [here.port, there.port, here.port]  # the other one has sent us back
    believe_at(name, there.port)
    assert [lock.name for lock in list_locks()] == [name]
    believe_at(name, there.port)
    end = monotonic() + lock.remaining()
    eventually(lambda: monotonic() + lock.remaining() > end + 0.5)  # the renewal is sent on
    assert not lock.lost


def test_a_subscription_that_is_refused_as_another_one_joins_is_made_anew(
    cluster: Cluster, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (Ears(name=name) for name in names_on(cluster, cluster.masters()[0], 2))
    one.start()
    eventually(lambda: one.hears and two.hears)
    two.end()
    refused = refuse_subscription(monkeypatch, one, lambda number, itself: not itself)
    generation = one.generation
    two.start()
    eventually(lambda: refused and two.hears and one.hears and one.generation > generation)


def test_an_answer_that_is_lost_before_replicas_have_it_is_asked_for_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: one that came twice was not written by the connection that would wait for replicas."""
    lock = Lock("order:1", replicas=1)
    with Lock("order:1"):
        pass  # the node knows the script
    confirmed, lost = list[object](), list[object]()

    def too_late(port: int, commands: Any) -> None:
        if any(RENEW in command for command in commands) and not confirmed:
            confirmed.append(commands)
            cluster.owner_of(slot_of(lock.name)).client().delete(key_of(lock.name))

    def lose_answer(port: int, commands: Any) -> None:
        if commands[-1][0] == "WAIT" and not lost:
            lost.append(commands)
            raise redis.ConnectionError("the answer is lost")

    note_round_trips(monkeypatch, too_late, lose_answer)
    assert lock.acquire()
    assert lock.owned()
    assert confirmed
