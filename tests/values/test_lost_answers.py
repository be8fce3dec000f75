"""Values and counters over a network that loses, delays and repeats: each call takes effect once, and returns that
result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import redis

from django_redislock import ConditionalValue, Counter
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import PREFIX

COUNTER = f"{PREFIX}counter:hits"


def slots(client: redis.Redis) -> list[Any]:
    return list(client.keys(f"{PREFIX}slot:*"))


@pytest.fixture
def network(server: RedisServer, own_pools: None, retry_for: Callable[[float], None]) -> Iterator[Proxy]:
    """The default alias leads through this proxy to a server that knows the scripts; answers are waited for briefly."""
    retry_for(GENEROUS)
    with proxy(server.port) as running, caches(alias(DJANGO, running.url, socket_timeout=0.1)):
        Counter("warm-up").incr()
        ConditionalValue("warm-up").setgt(1)
        yield running


@pytest.mark.parametrize("known", [True, False], ids=["known", "flushed"])
def test_a_call_whose_answers_were_lost_but_the_last_counts_once(
    me: Any, network: Proxy, client: redis.Redis, known: bool
) -> None:
    """Also where the server did not know the script: then one answer is that of EVALSHA, one that of EVAL."""
    hits = Counter("hits")
    me(hits, "incr", 7)
    for method, *args, result in (("incr", 3, 10), ("decr", 9), ("reset", 9), ("get", 0)):
        if not known:
            client.script_flush()
        lost = network.lose_answer("counter:hits", times=3)
        assert me(hits, method, *args) == result
        assert lost.over.is_set()
    high = ConditionalValue("high")
    me(high, "setgt", 1)
    for call in (("setgt", 5), ("setne", 6), ("delne", 5)):
        # the repetition alone would say: not above, not unequal, nothing there
        lost = network.lose_answer("value:high")
        assert me(high, *call) is True
        assert lost.over.is_set()


@pytest.mark.parametrize(
    ("stored", "call", "result", "others"),
    [(5, ("seteq", 5, 2), True, b"5"), (5, ("setgt", 3), False, b"1"), ("paid", ("setgt", 3), None, b"1")],
    ids=["done", "refused", "an error"],
)
def test_what_a_call_has_found_stays_so_though_its_answer_was_lost_and_others_went_on(
    me: Any, network: Proxy, client: redis.Redis, stored: Any, call: Any, result: bool | None, others: bytes
) -> None:
    high = ConditionalValue("high")
    me(high, "seteq", stored)
    held = network.hold_answer("value:high")
    calling = me.start(high, *call)
    assert held.caught.wait(GENEROUS)
    client.set(f"{PREFIX}value:high", others)  # a second run would find its condition true
    with pytest.raises(TypeError, match="with 'paid', which") if result is None else nullcontext():
        assert calling.result(GENEROUS) is result
    assert client.get(f"{PREFIX}value:high") == others


def test_a_call_that_arrives_after_its_repetition_and_later_calls_does_not_count(
    me: Any, network: Proxy, client: redis.Redis
) -> None:
    late = network.hold_request("counter:hits")
    assert [me(Counter("hits"), "incr") for _ in range(3)] == [1, 2, 3]
    assert me(ConditionalValue("high"), "setgt", 5)
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert client.get(COUNTER) == b"3"


async def test_calls_of_threads_or_coroutines_at_the_same_time_count_each(client: redis.Redis) -> None:
    def count() -> list[int]:
        with ThreadPoolExecutor(20) as pool:
            return list(pool.map(lambda _: Counter("hits").incr(), range(200)))

    counts = await asyncio.to_thread(count)
    assert len(slots(client)) <= 20
    assert all(0 < int(client.pttl(slot)) <= 60_000 for slot in slots(client))
    counts += await asyncio.gather(*(Counter("hits").aincr() for _ in range(200)))
    assert sorted(counts) == list(range(1, 401))


async def test_a_cancelled_coroutine_gives_its_slot_back_and_the_next_call_counts(
    network: Proxy, client: redis.Redis
) -> None:
    await Counter("hits").aincr()
    before = len(slots(client))
    held = network.hold_answer("counter:hits")
    task = asyncio.create_task(Counter("hits").aincr())
    assert await asyncio.to_thread(held.caught.wait, GENEROUS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await Counter("hits").aincr() == 3
    assert len(slots(client)) == before


def test_a_forked_child_has_slots_of_its_own(in_processes: Callable[[int, str], Any], client: redis.Redis) -> None:
    code = """
Counter("hits").incr()
child = os.fork()
for _ in range(50):
    Counter("hits").incr()
if not child:
    os._exit(0)
say("done", os.waitpid(child, 0)[1])
"""
    assert in_processes(1, code) == [["0"]]
    assert client.get(COUNTER) == b"101"
    assert len(slots(client)) == 2
