"""What works on one server works on a cluster: locks, waiting, pools, values, looking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.management import call_command
from redis.exceptions import MovedError

from django_redislock import (
    ConditionalValue,
    Counter,
    Lock,
    LockNotAcquired,
    LockPool,
    alist_locks,
    force_release,
    get_lock,
    list_locks,
    list_pools,
    locked_get_or_set,
)
from django_redislock.engine.messages.listener import Listener
from django_redislock.engine.messages.reader import Interrupted, Reader
from django_redislock.engine.messages.receiver import Receiver
from django_redislock.engine.messages.subscriber import Subscriber
from django_redislock.engine.runtime import runtime
from django_redislock.inspection.listing import read_page
from django_redislock.store import calls
from django_redislock.store.node import Node
from django_redislock.store.stores import get_partition, get_store
from tests.helpers.actors import GENEROUS
from tests.helpers.cluster import Cluster
from tests.helpers.processes import Worker
from tests.inside import reader_of

from .conftest import Eventually, names_on, port_of, slot_of

MANY = [f"order:{number}" for number in range(200)]


def round_trips(cluster: Cluster, act: Callable[[], Any]) -> int:
    """Requests that the masters have read meanwhile."""
    for node in cluster.masters():
        node.client().config_resetstat()
    act()
    clients = [node.client() for node in cluster.masters()]
    scripts = [client.info("commandstats") for client in clients]
    return sum(stats.get("cmdstat_evalsha", {}).get("calls", 0) for stats in scripts)


@pytest.mark.complete
def test_a_name_has_a_tag_of_its_own_and_all_its_keys_are_in_one_slot(cluster: Cluster) -> None:
    for name in MANY:
        with Lock(name):
            node = cluster.owner_of(slot_of(name))
            assert node.client().keys(f"*lock:{name}") == [f"{get_partition(None, name).prefix}lock:{name}".encode()]
    assert len({slot_of(name) for name in MANY}) > 50


def test_an_uncontended_section_is_two_round_trips(cluster: Cluster) -> None:
    def act() -> None:
        for name in MANY:
            with Lock(name):
                pass

    act()
    assert round_trips(cluster, act) == 2 * len(MANY)


def test_a_waiter_is_woken_and_does_not_poll(cluster: Cluster, other: Any, eventually: Eventually) -> None:
    for node in cluster.masters():
        (name,) = names_on(cluster, node)
        held, thread = Lock(name), other()
        held.acquire()
        waiting = thread.start(Lock(name).acquire)
        listener = runtime().listener(get_partition(None, name))
        eventually(lambda listener=listener: listener.hears)
        eventually(lambda name=name: (info := get_lock(name)) is not None and info.waiters == 1)
        assert node.client().execute_command("PUBSUB", "SHARDNUMSUB", listener.partition.channel)[1] == 1
        heard = listener.heard
        held.release()
        assert waiting.result(30)
        assert listener.heard == heard + 1
        force_release(name)


def test_the_first_wait_at_a_node_subscribes_to_all_its_tags(
    cluster: Cluster, other: Any, eventually: Eventually
) -> None:
    """So whoever waits there next is not overtaken while its process subscribes, and each node has one connection."""
    for node in cluster.masters():
        first, *more = names_on(cluster, node, 5)
        held = Lock(first)
        held.acquire()
        waiting = other().start(Lock(first).acquire)
        listeners = [runtime().listener(get_partition(None, name)) for name in (first, *more)]
        eventually(lambda listeners=listeners: listeners[0].hears and listeners[0].receiver is not None)
        assert {listener.receiver for listener in listeners} == {listeners[0].receiver}
        assert all(listener.hears for listener in listeners)
        channels = [listener.partition.channel for listener in listeners]
        assert node.client().execute_command("PUBSUB", "SHARDNUMSUB", *channels)[1::2] == [1] * 5
        held.release()
        assert waiting.result(30)
        force_release(first)
    eventually(lambda: sum(len(node.client().client_list(_type="pubsub")) for node in cluster.masters()) == 3)


def test_coroutines_wait_on_all_nodes(cluster: Cluster) -> None:
    order: list[int] = []

    async def section(name: str, number: int) -> None:
        async with Lock(name):
            order.append(number)
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(section(name, number) for number in range(20) for name in MANY[:12]))

    asyncio.run(main())
    assert len(order) == 240
    assert list_locks() == []


def test_processes_exclude_each_other(cluster: Cluster, start: Callable[..., Worker]) -> None:
    code = """
from django.test.utils import override_settings
override_settings(CACHES=CACHES, REDISLOCK={"CACHE": "locks", "CLUSTER": True}).enable()
total = Counter("entered")
for i in range(60):
    with Lock(NAMES[i % len(NAMES)]) as lock:
        number = ConditionalValue("inside")
        assert total.incr() >= 0
say("done")
"""
    from django.conf import settings

    workers = [start(code, CACHES=settings.CACHES, NAMES=MANY[:4]) for _ in range(3)]
    for worker in workers:
        worker.expect("done", 60)
    assert Counter("entered").get() == 180


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
    locks = [Lock(name) for name in MANY]
    for lock in locks:
        lock.acquire()
    store = get_store()
    asked: list[Node] = []
    exchange = store.exchange

    def noted(node: Node, *rest: Any) -> Any:
        asked.append(node)
        return exchange(node, *rest)

    monkeypatch.setattr(store, "exchange", noted)
    assert [lock.name for lock in list_locks("order:1?")] == [f"order:{number}" for number in range(10, 20)]
    assert max(asked.count(node) for node in store.nodes) == 2
    page = read_page(order=("-name",), words=["order:19"], cut=lambda matching: slice(0, 3))
    assert [lock.name for lock in page.locks] == ["order:199", "order:198", "order:197"]
    assert (page.matching, page.total) == (11, 200)
    call_command("redislocks", "clear", "--all", "--noinput")
    assert list_locks() == []
    for lock in locks:
        assert lock.locked() is False


def test_connections_are_counted_for_the_process_and_not_for_each_node(cluster: Cluster, other: Any) -> None:
    threads = [other() for _ in range(30)]

    def work(number: int) -> None:
        for i in range(20):
            with Lock(MANY[(number * 7 + i) % len(MANY)]):
                pass

    for future in [thread.start(lambda number=number: work(number)) for number, thread in enumerate(threads)]:
        future.result(60)
    store = get_store()
    assert sum(len(node.idle) for node in store.nodes) <= store.bound == 16


def test_an_alias_without_the_setting_is_told_to_set_it(cluster: Cluster, settings: Any) -> None:
    settings.REDISLOCK = {}
    failed = []
    for node in cluster.masters():
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": node.url}}
        try:
            Lock("a").acquire(blocking_timeout=0)
        except Exception as error:
            failed.append(str(error))
    assert len(failed) == 2  # one node has the slot of the tag 0
    for text in failed:
        assert "MOVED" in text
        assert text.endswith("This is a node of a Redis Cluster: set REDISLOCK['CLUSTER'] = True.")


def test_a_client_of_a_cluster_is_recognised(cluster: Cluster, settings: Any) -> None:
    from redis.cluster import RedisCluster

    url = cluster.masters()[0].url

    def get_client(self: Any, write: bool = True) -> Any:
        return RedisCluster.from_url(url)

    settings.REDISLOCK = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_redis.client.DefaultClient.get_client", get_client)
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}}
        assert get_store().clustered
        for name in MANY[:10]:
            with Lock(name):
                pass


def test_coroutines_look_at_all_locks(cluster: Cluster) -> None:
    async def main() -> None:
        async with Lock("order:1"), Lock("order:2"):
            assert [lock.name for lock in await alist_locks()] == ["order:1", "order:2"]
        assert await alist_locks() == []

    asyncio.run(main())


def test_what_a_node_says_that_has_the_lock_no_longer_is_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that was paused answers one request more, before it hears that it is none any more."""
    name = "order:1"
    partition = get_partition(None, name)
    store, own = partition.store, partition.node
    other = next(node for node in map(store.node_of, range(64)) if node is not own)
    exchange = store.exchange
    asked: list[Node] = []

    def moved_meanwhile(node: Node, *rest: Any) -> Any:
        asked.append(node)
        answers = exchange(node, *rest)
        if len(asked) == 1:
            store._node_by_tag[partition.tag] = other  # type: ignore[attr-defined]
        return answers

    monkeypatch.setattr(store, "exchange", moved_meanwhile)
    with Lock(name) as lock:
        assert asked == [own, other, own]  # the other one has sent us back
        assert lock.owned()


def test_readings_of_a_slot_that_has_moved_are_read_again(cluster: Cluster) -> None:
    with Lock("order:1"):
        partition = get_partition(None, "order:1")
        store = partition.store
        other = next(node for node in map(store.node_of, range(64)) if node is not partition.node)
        store._node_by_tag[partition.tag] = other  # type: ignore[attr-defined]
        assert [lock.name for lock in list_locks()] == ["order:1"]


@pytest.fixture
def neighbours(cluster: Cluster, eventually: Eventually) -> list[Listener]:
    """Two listeners at one node; the first one is subscribed, and the second one comes back to it."""
    one, two = (runtime().listener(get_partition(None, name)) for name in names_on(cluster, cluster.masters()[0], 2))
    one.start()
    eventually(lambda: one.hears and one.receiver is two.receiver is not None)
    two.unsubscribed()
    return [one, two]


def test_a_listener_that_no_longer_belongs_where_another_one_joins_is_subscribed_anew(
    neighbours: list[Listener], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = neighbours
    subscribe, generation = Receiver.subscribe, one.generation

    def refused(self: Receiver[Any], new: Any) -> Any:
        found = subscribe(self, new)
        return found if one in new else {**found, one: MovedError("1 127.0.0.1:1")}

    monkeypatch.setattr(Receiver, "subscribe", refused)
    two.start()
    eventually(lambda: two.hears and two.receiver is not None)
    eventually(lambda: one.hears and one.generation > generation)


@pytest.mark.parametrize("interrupts", [False, True])
def test_waiters_look_again_as_another_listener_joins(
    interrupts: bool, neighbours: list[Listener], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message for one of them may be unread in the old connection. Whoever reads that one cannot be told later."""
    one, two = neighbours
    told: list[object] = []
    subscribe, reader, receiver = Receiver.subscribe, reader_of(one), one.receiver

    def interrupted(self: Receiver[Any], new: Any) -> Any:
        reader._trouble = Interrupted()
        return subscribe(self, new)

    if interrupts:
        monkeypatch.setattr(Receiver, "subscribe", interrupted)
    monkeypatch.setattr(one, "tell_all", lambda: told.append(one.receiver))
    two.start()
    eventually(lambda: two.hears and one.receiver is two.receiver and told)
    assert told[0] is receiver


def test_a_receiver_that_ends_as_soon_as_it_has_begun_leaves_nobody_deaf(
    neighbours: list[Listener], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own thread does not know those who become its listeners while it ends."""
    one, two = neighbours
    start, end, replace = Receiver.start, Reader.end, Subscriber._replace
    cut: list[Reader] = []
    ends, replaced = threading.Event(), threading.Event()

    def start_and_cut(self: Receiver[Any]) -> None:
        start(self)
        if not cut:
            cut.append(self.reader)
            end(self.reader)
            assert ends.wait(GENEROUS)

    def end_late(self: Reader) -> None:
        if self in cut and not replaced.is_set():
            ends.set()
            assert replaced.wait(GENEROUS)
        end(self)

    def replace_and_tell(*args: Any) -> None:
        replace(*args)
        replaced.set()

    monkeypatch.setattr(Receiver, "start", start_and_cut)
    monkeypatch.setattr(Reader, "end", end_late)
    monkeypatch.setattr(Subscriber, "_replace", staticmethod(replace_and_tell))
    two.start()
    eventually(lambda: replaced.is_set() and hears(one) and hears(two))


def test_a_receiver_whose_thread_cannot_be_started_leaves_nobody_deaf(
    cluster: Cluster, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = Receiver.start, list[object]()

    def refuse_once(self: Receiver[Any]) -> None:
        if not refused:
            refused.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(Receiver, "start", refuse_once)
    one, *others = [runtime().listener(each) for each in get_store().everywhere()]
    one.start()
    eventually(lambda: refused and hears(one))
    assert all(hears(each) or not each.ready for each in others)


def hears(listener: Listener) -> bool:
    return listener.hears and listener.receiver is not None and listener.receiver.thread.is_alive()


def test_nobody_stays_with_an_interrupted_reader(
    neighbours: list[Listener], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the one that is sent elsewhere when all of its listeners subscribe anew."""
    one, two = neighbours
    two.start()
    eventually(lambda: two.hears and one.receiver is two.receiver is not None)
    receiver, subscribe = one.receiver, Receiver.subscribe
    refused: list[Listener] = []
    assert receiver is not None

    def sent_elsewhere(self: Receiver[Any], new: Any) -> Any:
        found = subscribe(self, new)
        if {one, two} <= set(new) and not refused:
            refused.append(one)
            return {**found, one: MovedError(f"1 127.0.0.1:{port_of(one)}")}
        return found

    monkeypatch.setattr(Receiver, "subscribe", sent_elsewhere)
    receiver.reader._trouble = Interrupted()
    one._want.__self__._retry([one, two], 0.0)  # type: ignore[attr-defined]
    eventually(lambda: refused and one.receiver not in (None, receiver) and two.receiver not in (None, receiver))
    eventually(lambda: not receiver.thread.is_alive())


def test_a_subscription_at_a_replica_does_not_count(cluster: Cluster, eventually: Eventually) -> None:
    """R3, C3: it takes subscriptions, and delivers what its master publishes; but no script there counts it."""
    (name,) = names_on(cluster, cluster.masters()[0])
    partition = get_partition(None, name)
    store, own = partition.store, partition.node
    (replica,) = cluster.replicas_of(cluster.masters()[0])
    store._node_by_tag[partition.tag] = store._node_at("127.0.0.1", replica.port)  # type: ignore[attr-defined]
    listener = runtime().listener(partition)
    listener.start()
    eventually(lambda: listener.hears and listener.receiver is not None)
    assert listener.receiver is not None
    assert listener.receiver.node is own


@pytest.mark.parametrize("lost", ["the answer", "the wake"])
def test_what_is_lost_before_replicas_have_it_is_asked_for_again(
    lost: str, cluster: Cluster, other: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: neither an answer that came twice nor a wake was written by the connection that would wait for replicas."""
    name, thread = "order:1", other()
    waiter, held = Lock(name, replicas=1), Lock(name)
    with held:
        pass  # the node knows the script
    partition = get_partition(None, name)
    renew, exchange, asked, confirmed = calls.renew, partition.store.exchange, 0, 0

    def too_late(request: Any, *rest: Any, **more: Any) -> Any:
        nonlocal confirmed
        confirmed += 1
        if confirmed == 1:
            partition.execute(("DEL", request.keys.lock))
        return renew(request, *rest, **more)

    def once_in_vain(node: Node, commands: Any, *rest: Any) -> Any:
        nonlocal asked
        answers = exchange(node, commands, *rest)
        asked += any(command[0] == "WAIT" for command in commands)
        if asked == 1:
            asked += 1
            raise redis.ConnectionError("the answer is lost")
        return answers

    monkeypatch.setattr(calls, "renew", too_late)
    if lost == "the wake":
        held.acquire()
    else:
        monkeypatch.setattr(partition.store, "exchange", once_in_vain)
    waiting = thread.start(waiter.acquire)
    if lost == "the wake":
        eventually(lambda: (info := get_lock(name)) is not None and info.waiters == 1)
        held.release()
    assert waiting.result(30)
    assert confirmed
    assert thread(waiter.owned)
