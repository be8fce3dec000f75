"""Callers that wait until a cluster has said where the slots are: how long, and for which question."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic
from typing import Any

import pytest

from django_redislock import Lock, LockUnavailable
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.cluster import Cluster, redis_cluster
from tests.helpers.cluster_node import find_cluster_server
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.requirements import require
from tests.helpers.state import count
from tests.helpers.ways import DJANGO, alias
from tests.inside import limit, suspect

from .conftest import Eventually, names_on


def use_once(me: Any, name: str = "a") -> None:
    lock = Lock(name)
    me(lock, "acquire")
    me(lock, "release")


def questions(cluster: Cluster) -> int:
    """How often the nodes were asked where the slots are."""
    return sum(count(node.client(), "cluster|slots") for node in cluster.nodes)


async def test_coroutines_need_no_thread_of_their_loop(cluster: Cluster, aeventually: Callable[..., Any]) -> None:
    """All of these may wait for a lock that only a task of this loop can release."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    lock = Lock("a", ttl=60)
    await lock.aacquire()
    waiting = asyncio.create_task(asyncio.to_thread(Lock("a").acquire))

    async def waits() -> bool:
        info = await lock.ainfo()
        return info is not None and info.waiters == 1

    await aeventually(waits)
    suspect(None)
    await asyncio.wait_for(lock.arelease(), GENEROUS)
    assert await waiting


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


@pytest.fixture
def proxies(cluster: Cluster, settings: Any) -> Iterator[list[Proxy]]:
    """One before each node, and this process sees no node but through them."""
    with ExitStack() as stack:
        by_port = {node.port: stack.enter_context(proxy(node.port)) for node in cluster.nodes}

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            host, port = address
            return host, by_port[port].port if port in by_port else port

        first = by_port[cluster.masters()[0].port]
        settings.CACHES = {**settings.CACHES, "locks": alias(DJANGO, first.url, address_remap=remap)}
        yield list(by_port.values())


def test_what_was_asked_before_trouble_is_no_answer_to_it(
    cluster: Cluster, proxies: list[Proxy], crowd: Crowd, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, asking_takes=GENEROUS, no_failover_within=GENEROUS)
    people = [crowd() for _ in range(4)]
    for number, person in enumerate(people):
        use_once(person, f"a:{number}")
    before = questions(cluster)
    suspect(None)
    held = [each.hold_answer("SLOTS") for each in proxies]
    asking = [people[0].start(Lock("a:0"), "acquire")]
    eventually(lambda: any(trouble.caught.is_set() for trouble in held))
    suspect(None)
    asking += [person.start(Lock(f"a:{number}"), "acquire") for number, person in enumerate(people) if number]
    for trouble in held:
        trouble.end()
    assert all(one.result(GENEROUS) for one in asking)
    assert questions(cluster) - before == 2, "the others share one"


@pytest.mark.parametrize("trouble", ["a lost connection", "a late answer", "late answers"])
def test_a_node_that_was_in_trouble_is_asked_about_until_another_one_has_named_it(
    trouble: str, cluster: Cluster, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C7: and no longer than that."""
    limit(monkeypatch, no_failover_within=GENEROUS)
    me, (name,) = crowd(), names_on(cluster, cluster.masters()[0])
    use_once(me, name)
    before = questions(cluster)
    with monkeypatch.context() as patch:
        if trouble == "a lost connection":
            suspect(name)
        else:
            limit(patch, no_failover_within=-1.0)
        for _ in range(2 if trouble == "late answers" else 1):
            use_once(me, name)
    use_once(me, name)
    asked = questions(cluster)
    assert asked > before
    for _ in range(3):
        use_once(me, name)
    assert questions(cluster) == asked


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
