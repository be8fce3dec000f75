"""Callers that wait until a cluster has said where the slots are: how long, and for which question."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from django_redislock import Lock, LockUnavailable
from django_redislock.store.stores import get_store
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.cluster import Cluster, redis_cluster
from tests.helpers.cluster_node import find_cluster_server
from tests.helpers.proxy import proxy
from tests.helpers.requirements import require
from tests.helpers.ways import DJANGO, alias

AEventually = Callable[..., Awaitable[Any]]


async def test_coroutines_need_no_thread_of_their_loop(cluster: Cluster, aeventually: AEventually) -> None:
    """All of these may wait for a lock that only a task of this loop can release."""
    executor = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(executor)
    lock = Lock("a", ttl=60)
    await lock.aacquire()

    def wait() -> None:
        with Lock("a"):
            pass

    waiting = asyncio.create_task(asyncio.to_thread(wait))

    async def waits() -> bool:
        info = await lock.ainfo()
        return info is not None and info.waiters == 1

    await aeventually(waits)
    get_store().doubt(None)
    await asyncio.wait_for(lock.arelease(), GENEROUS)
    await waiting


@pytest.mark.complete
def test_the_address_in_the_settings_is_asked_even_when_all_others_are_gone(
    cluster: Cluster, settings: Any, crowd: Crowd
) -> None:
    """For example the address of a service, while all nodes get new addresses."""
    servers = redis_cluster(masters=3, replicas=0, executable=require(find_cluster_server))
    with servers as old, proxy(old.masters()[0].port) as service:
        settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO, service.url)}
        use_once(crowd())
        service.target = cluster.masters()[0].port
        old.close()
        use_once(crowd())


def use_once(me: Any) -> None:
    lock = Lock("a")
    me(lock, "acquire")
    me(lock, "release")


def test_what_was_asked_before_a_doubt_is_no_answer_to_it(
    cluster: Cluster, eventually: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = get_store()
    asked: list[float] = []
    answer = threading.Event()
    store.node_of(0)
    ask = store._ask_manager

    def ask_when_told(now: float) -> None:
        asked.append(monotonic())
        assert answer.wait(GENEROUS)
        ask(now)

    monkeypatch.setattr(store, "_ask_manager", ask_when_told)
    with ThreadPoolExecutor() as threads:
        store.doubt(None)
        first = threads.submit(store.node_of, 0)
        eventually(lambda: asked)
        store.doubt(None)
        others = [threads.submit(store.node_of, 0) for _ in range(3)]
        answer.set()
        for one in [first, *others]:
            one.result(GENEROUS)
    assert len(asked) == 2  # the others share one


def test_a_doubt_ends_when_the_node_has_answered_and_another_one_names_it_after_that(cluster: Cluster) -> None:
    """C7: the first caller asks for all."""
    store: Any = get_store()
    node = store.node_of(0)
    store.doubt(node)
    store.node_of(0)
    assert node.doubted_at, "it has not answered"
    assert store.doubts(node, monotonic())
    answered = node.answered_at
    assert store.doubts(node, monotonic())
    assert node.answered_at == answered, "the first answer is enough"
    store.node_of(0, since=answered)
    assert not store.doubts(node, monotonic())


def test_a_late_answer_is_confirmed_though_one_that_was_sent_later_was_confirmed_before(cluster: Cluster) -> None:
    """C7: else it would be in doubt from then on, and no answer confirmed any more."""
    store: Any = get_store()
    node = store.node_of(0)
    for late in (1.0, 2.0):
        assert store.doubts(node, monotonic() - late)
        store.node_of(0, since=node.answered_at)
        assert not node.doubted_at


@pytest.fixture
def silent(settings: Any) -> Iterator[None]:
    """A cluster of ten nodes, none of which answers."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(10)]
    urls = [f"redis://127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO, urls)}
    settings.REDISLOCK = {"CACHE": "locks", "CLUSTER": True, "RETRY_FOR": 0.1}
    yield
    for each in sockets:
        each.close()


def test_a_caller_with_a_short_timeout_waits_no_longer_for_a_silent_cluster(silent: None, crowd: Crowd) -> None:
    begin, me = monotonic(), crowd()
    with pytest.raises(LockUnavailable, match="the cluster did not say in time where its slots are"):
        me(Lock("a"), "acquire", blocking_timeout=0.1)
    assert monotonic() - begin < 5  # all nodes together have ten seconds to answer


async def test_many_callers_wait_no_longer_for_a_silent_cluster_than_one(silent: None) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    async def fail(number: int) -> None:
        with pytest.raises(LockUnavailable):
            await Lock(f"a:{number}").aacquire(blocking_timeout=0.1)

    begin = monotonic()
    await asyncio.gather(*map(fail, range(100)))
    assert monotonic() - begin < 5
