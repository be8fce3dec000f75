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
from tests.inside import (
    RENEW,
    Subscription,
    before_it_subscribes,
    believe_at,
    cut_as_it_replaces,
    limit,
    note_round_trips,
    refuse_subscription,
)

from .conftest import Eventually, Queue, key_of, names_on, slot_of, waiters

MANY = [f"order:{number}" for number in range(200)]

Look = Callable[[int, Any], object]


def mine(look: Look) -> Look:
    """Only in this thread: the process has others that send."""
    me = threading.current_thread()
    return lambda port, commands: look(port, commands) if threading.current_thread() is me else None


@pytest.mark.complete
def test_all_keys_of_a_name_are_in_its_slot_and_names_are_spread_over_many_slots(cluster: Cluster) -> None:
    for name in MANY:
        with Lock(name):
            assert cluster.owner_of(slot_of(name)).client().keys(f"*lock:{name}") == [key_of(name).encode()]
    assert len({slot_of(name) for name in MANY}) > 50


def test_an_uncontended_section_is_two_round_trips(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for round_trips in [], []:  # at first, the nodes do not know the scripts
        with monkeypatch.context() as patch:
            note_round_trips(patch, mine(lambda port, commands: round_trips.append(port)))  # noqa: B023
            for name in MANY:
                with Lock(name):
                    pass
    assert len(round_trips) == 2 * len(MANY)


def test_whoever_waits_at_a_node_first_subscribes_to_all_its_tags_and_is_woken_by_one_message(
    cluster: Cluster, queue: Queue, eventually: Eventually
) -> None:
    """So whoever waits there next is not overtaken while its process subscribes, and each node has one connection."""
    for node in cluster.masters():
        names = names_on(cluster, node, 5)
        held = Lock(names[0])
        held.acquire()
        waiting = queue(Lock(names[0]))
        ears = [Subscription(name) for name in names]
        eventually(lambda ears=ears: all(each.hears for each in ears))
        channels = [each.channel for each in ears]
        assert node.client().execute_command("PUBSUB", "SHARDNUMSUB", *channels)[1::2] == [1] * 5
        heard = ears[0].heard
        held.release()
        assert waiting.result(30)
        assert ears[0].heard == heard + 1
    eventually(lambda: all(pubsub_connections(node) == 1 for node in cluster.masters()))


def pubsub_connections(node: Any) -> int:
    return len(node.client().client_list(_type="pubsub"))


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
    assert value.setgt(3)
    assert not value.setgt(2)
    assert value.get() == 3
    assert [Counter("visits").incr() for _ in range(3)] == [1, 2, 3]
    assert locked_get_or_set("answer", lambda: 42) == 42


def test_listing_all_locks_asks_each_node_twice(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MANY:
        Lock(name).acquire()
    asked: list[int] = []
    note_round_trips(monkeypatch, mine(lambda port, commands: asked.append(port)))
    assert [lock.name for lock in list_locks("order:1?")] == [f"order:{number}" for number in range(10, 20)]
    assert max(asked.count(node.port) for node in cluster.masters()) == 2
    assert len(asyncio.run(alist_locks())) == len(MANY)
    call_command("redislocks", "clear", "--all", "--noinput")
    assert list_locks() == []


@pytest.fixture
def elsewhere(cluster: Cluster) -> tuple[str, int, int]:
    """A name, the port of its node, and that of another master."""
    here, there = cluster.masters()[:2]
    (name,) = names_on(cluster, here)
    return name, here.port, there.port


def test_what_a_node_says_that_has_the_lock_no_longer_is_asked_again(
    elsewhere: tuple[str, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that was paused answers one request more, before it hears that it is none any more."""
    name, here, there = elsewhere
    asked: list[int] = []

    def moved_meanwhile(port: int, commands: Any) -> None:
        asked.append(port)
        if len(asked) == 1:
            believe_at(name, there)

    note_round_trips(monkeypatch, after=mine(moved_meanwhile))
    with Lock(name) as lock:
        assert asked == [here, there, here]  # the other one has sent us back
        assert lock.owned()


def test_readings_of_a_slot_that_has_moved_are_read_again(elsewhere: tuple[str, int, int]) -> None:
    name, _, there = elsewhere
    with Lock(name):
        believe_at(name, there)
        assert [lock.name for lock in list_locks()] == [name]


def test_a_renewal_that_goes_where_the_lock_is_no_longer_is_sent_on(
    elsewhere: tuple[str, int, int], eventually: Eventually
) -> None:
    name, _, there = elsewhere
    ears = Subscription(name)
    ears.start()
    eventually(lambda: ears.hears)  # else this may be what finds it
    with Lock(name, ttl=3) as lock:
        believe_at(name, there)
        end = monotonic() + lock.remaining()
        eventually(lambda: monotonic() + lock.remaining() > end + 0.5)
        assert not lock.lost


def test_a_subscription_at_a_replica_does_not_count(
    cluster: Cluster, elsewhere: tuple[str, int, int], eventually: Eventually
) -> None:
    """R3, C3: it takes subscriptions, and delivers what its master publishes; but no script there counts it."""
    name, here, _ = elsewhere
    (replica,) = cluster.replicas_of(cluster.masters()[0])
    believe_at(name, replica.port)
    ears = Subscription(name)
    ears.start()
    eventually(lambda: ears.hears)
    assert ears.node == here


# -- many subscriptions over one connection ----------------------------------------------------------------------------


@pytest.fixture
def neighbours(cluster: Cluster, eventually: Eventually) -> list[Subscription]:
    """Two subscriptions at one node. The first one stands, and the second one comes back to it when it is started."""
    one, two = map(Subscription, names_on(cluster, cluster.masters()[0], 2))
    one.start()
    eventually(lambda: one.hears and two.hears)
    two.end()
    return [one, two]


def test_a_subscription_that_is_refused_as_another_one_joins_is_made_anew(
    neighbours: list[Subscription], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = neighbours
    refused = refuse_subscription(monkeypatch, one, lambda number, itself: not itself)
    generation = one.generation
    two.start()
    eventually(lambda: refused and two.hears and one.hears and one.generation > generation)


@pytest.mark.parametrize("interrupted", [False, True])
def test_waiters_look_again_as_another_subscription_joins(
    interrupted: bool,
    cluster: Cluster,
    neighbours: list[Subscription],
    queue: Queue,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message for one of them may be unread in the old connection. Whoever reads that one cannot be told later."""
    limit(monkeypatch, look_every=600)
    settings.REDISLOCK = {**settings.REDISLOCK, "SLOW_WAIT": 600}
    one, two = neighbours
    node = cluster.masters()[0]
    (name,) = names_on(cluster, node)
    Lock(name, ttl=600).acquire()
    waiting = queue(Lock(name, ttl=600))
    node.client().delete(key_of(name))  # nobody is told
    if interrupted:
        before_it_subscribes(monkeypatch, one.interrupt)
    two.start()
    assert waiting.result(30)


def test_a_connection_that_ends_as_soon_as_it_has_begun_leaves_nobody_deaf(
    neighbours: list[Subscription], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread does not know of those who come to it from the old one at that moment."""
    one, two = neighbours
    cut = cut_as_it_replaces(monkeypatch)
    two.start()
    eventually(lambda: cut and one.hears and two.hears)


def test_a_connection_whose_thread_cannot_be_started_leaves_nobody_deaf(
    cluster: Cluster, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, *others = map(Subscription, names_on(cluster, cluster.masters()[0], 5))
    start, refused = threading.Thread.start, list[object]()

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name == "redislock-listener" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    one.start()
    eventually(lambda: refused and one.hears and all(each.hears or not each.ready for each in others))


def test_nobody_stays_on_a_connection_whose_reader_was_interrupted(
    cluster: Cluster, neighbours: list[Subscription], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the one that is sent elsewhere when all of them subscribe anew."""
    one, two = neighbours
    two.start()
    eventually(lambda: two.hears and two.shares_connection(one))
    generations = one.generation, two.generation
    refused = refuse_subscription(monkeypatch, one, lambda number, itself: itself)
    one.interrupt()
    one.subscribe_anew(two)
    eventually(lambda: refused and one.hears and two.hears)
    assert one.generation > generations[0]
    assert two.generation > generations[1]
    eventually(lambda: pubsub_connections(cluster.masters()[0]) == 1)


@pytest.mark.parametrize("lost", ["the answer", "the wake"])
def test_what_is_lost_before_replicas_have_it_is_asked_for_again(
    lost: str, cluster: Cluster, other: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: neither an answer that came twice nor a wake was written by the connection that would wait for replicas."""
    name, thread = "order:1", other()
    waiter, held = Lock(name, replicas=1), Lock(name)
    with held:
        pass  # the node knows the script
    confirmed, lost_answers = list[object](), list[object]()

    def too_late(port: int, commands: Any) -> None:
        if any(RENEW in command for command in commands) and not confirmed:
            confirmed.append(commands)
            cluster.owner_of(slot_of(name)).client().delete(key_of(name))

    def lose_answer(port: int, commands: Any) -> None:
        if commands[-1][0] == "WAIT" and lost == "the answer" and not lost_answers:
            lost_answers.append(commands)
            raise redis.ConnectionError("the answer is lost")

    def begin() -> None:
        note_round_trips(monkeypatch, too_late, lose_answer)

    if lost == "the answer":
        begin()
        waiting = thread.start(waiter.acquire)
    else:
        held.acquire()
        waiting = thread.start(waiter.acquire)
        eventually(lambda: waiters(name) == 1)
        begin()
        held.release()
    assert waiting.result(30)
    assert thread(waiter.owned)
    assert confirmed
