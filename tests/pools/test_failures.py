"""Networks and servers that fail: what takes effect once, what is released again, and what an error says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_redislock import LockLost, LockPool, LockUnavailable
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS
from tests.helpers.pools import POOL, Held, Wait, audit, got, leftovers
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import CHECKOUT, PREFIX, RELEASE_MEMBER, limit

Eventually = Callable[..., Any]
RetryFor = Callable[[float], None]


@pytest.fixture
def network(server: RedisServer, own_pools: None, accounts: LockPool) -> Iterator[Proxy]:
    """The default alias leads through a network that loses and delays; the server already has the scripts."""
    with proxy(server.port) as running, caches(alias(DJANGO, running.url, socket_timeout=0.3)):
        pool = LockPool("another")
        pool.assign(["warm-up"])
        pool.acquire().release()
        yield running


@pytest.mark.parametrize("trouble", ["answers are lost", "requests come late"])
def test_a_checkout_whose_sender_has_given_up_takes_nothing(
    trouble: str, me: Any, network: Proxy, client: redis.Redis, eventually: Eventually, retry_for: RetryFor
) -> None:
    retry_for(0.5)
    if trouble == "answers are lost":
        network.lose_answer(CHECKOUT, times=1000)
    late = [network.hold_request(CHECKOUT) for _ in range(30)] if trouble == "requests come late" else []
    with pytest.raises(LockUnavailable):
        me(LockPool(POOL), "acquire")
    eventually(lambda: not late or client.keys(f"{PREFIX}gone:*"))
    for request in late:
        request.let_go()
    eventually(lambda: all(request.over.is_set() for request in late if request.caught.is_set()))
    eventually(lambda: audit(client).held == set())
    eventually(lambda: leftovers(client) == [])


def test_a_checkout_and_a_release_whose_answers_were_lost_or_that_are_repeated_late_happen_once(
    me: Any, network: Proxy, accounts: LockPool, client: redis.Redis
) -> None:
    lost = network.lose_answer(CHECKOUT)
    member = me(accounts, "acquire")
    assert lost.over.is_set()
    assert audit(client).held == {member.key} == {"alice"}
    lost = network.lose_answer(RELEASE_MEMBER)
    me(member, "release")
    assert lost.over.is_set()
    assert audit(client).free == {"alice", "bob"}
    assert leftovers(client) == []
    accounts.assign(["alice"])
    late = network.hold_request(RELEASE_MEMBER)
    me(me(accounts, "acquire"), "release")
    member = me(accounts, "acquire")
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert me(member, "owned")  # a release that comes late does not touch the present holder


# each change is a word that its request contains
@pytest.mark.parametrize(
    ("word", "change", "members"),
    [
        ("add", ("extend", ["alice", "carol"]), {"alice", "bob", "carol"}),
        ("remove", ("shrink", ["bob"]), {"alice"}),
        ("switch", ("assign", ["alice", "carol"]), {"alice", "carol"}),
    ],
)
def test_a_change_whose_answer_was_lost_happens_once_and_returns_what_it_has_done(
    me: Any, network: Proxy, accounts: LockPool, client: redis.Redis, word: str, change: Any, members: set[str]
) -> None:
    lost = network.lose_answer(word)
    assert me(accounts, *change) == 1
    assert lost.over.is_set()
    assert audit(client).free == audit(client).members == members


@pytest.mark.parametrize(
    ("word", "first", "then", "members"),
    [
        ("switch", ("assign", ["carol"]), ("extend", ["dave"]), ["carol", "dave"]),
        ("remove", ("shrink", ["bob"]), ("extend", ["bob"]), ["alice", "bob"]),
        ("add", ("extend", ["carol"]), ("shrink", ["carol"]), ["alice", "bob"]),
    ],
)
def test_a_change_that_arrives_after_its_repetition_does_not_undo_what_came_after_it(
    me: Any, network: Proxy, accounts: LockPool, word: str, first: Any, then: Any, members: list[str]
) -> None:
    late = network.hold_request(word)
    me(accounts, *first)
    me(accounts, *then)
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert accounts.keys() == members


def test_members_that_do_not_all_arrive_change_nothing(network: Proxy, accounts: LockPool, client: redis.Redis) -> None:
    """Redis may have evicted those that were sent first."""
    held = network.hold_request("switch", times=1000)
    with ThreadPoolExecutor(1) as threads:
        assigning = threads.submit(accounts.assign, ["carol", "dave"])
        assert held.caught.wait(GENEROUS)
        assert client.delete(*client.keys(f"{PREFIX}next_members:*"))
        held.let_go()
        with pytest.raises(LockUnavailable, match="not all members have arrived"):
            assigning.result(GENEROUS)
    assert audit(client).free == audit(client).members == {"alice", "bob"}


# -- servers that are flushed, full, restricted or gone ---------------------------------------------------------------


@pytest.mark.usefixtures("listening")
def test_after_a_flush_a_release_brings_nothing_back_and_waiters_get_members_of_the_new_set(
    me: Any, accounts: LockPool, wait: Wait, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.1)
    first, second = me(accounts, "acquire"), me(accounts, "acquire", auto_renew=False)
    waiter = wait()
    client.flushall()
    with pytest.raises(LockLost):
        me(first, "release")
    assert accounts.keys() == []
    accounts.extend(["bob"])
    assert got(waiter) == "bob"
    with pytest.raises(LockLost):
        me(second, "release")
    assert audit(client).held == {"bob"}


@pytest.mark.usefixtures("no_look_by_the_clock", "listening")
def test_without_memory_a_release_serves_a_waiter_and_a_refused_call_changes_nothing(
    held: Held, wait: Wait, client: redis.Redis, accounts: LockPool
) -> None:
    """R2: the first write of a script is allowed at the limit of memory, and so all later ones are."""
    waiter = wait()
    client.config_set("maxmemory", 1)
    try:
        held("alice")
        assert got(waiter) == "alice"
        held("bob")
        with pytest.raises(LockUnavailable, match=r"to serve the pool 'accounts' .* used memory > 'maxmemory'"):
            accounts.assign(["carol"])
    finally:
        client.config_set("maxmemory", 0)
    assert audit(client).members == {"alice", "bob"}
    assert accounts.acquire(blocking_timeout=0).key == "bob"


def test_without_redis_it_says_so(own: RedisServer, retry_for: RetryFor) -> None:
    retry_for(0.2)
    pool = LockPool(POOL)
    own.stop()
    for call in (lambda: pool.extend(["x"]), pool.keys, pool.acquire, pool.info):
        with pytest.raises(LockUnavailable, match=r"cannot be reached for the pool 'accounts' .*'default'") as caught:
            call()
        assert caught.value.name == POOL
