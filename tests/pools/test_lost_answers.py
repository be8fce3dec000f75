"""A network that loses, delays and repeats: what takes effect once, and what is released again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_redislock import LockPool, LockUnavailable
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS
from tests.helpers.pools import audit, leftovers
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import CHECKOUT, PREFIX, RELEASE_MEMBER

Eventually = Callable[..., Any]


@pytest.fixture
def network(server: RedisServer, own_pools: None) -> Iterator[Proxy]:
    """The default alias leads through a network that loses and delays; the server already has the scripts."""
    with proxy(server.port) as running, caches(alias(DJANGO, running.url, socket_timeout=0.3)):
        pool = LockPool("another")
        pool.assign(["warm-up"])
        pool.acquire().release()
        yield running


@pytest.fixture
def pool(network: Proxy, accounts: LockPool) -> LockPool:
    """A pool with two members, behind that network."""
    return accounts


# -- checkouts -------------------------------------------------------------------------------------------------------


def test_a_checkout_and_a_release_whose_answers_were_lost_happened_once(
    me: Any, network: Proxy, pool: LockPool, client: redis.Redis
) -> None:
    lost = network.lose_answer(CHECKOUT)
    member = me(pool, "acquire")
    assert lost.over.is_set()
    assert audit(client).held == {member.key} == {"alice"}
    lost = network.lose_answer(RELEASE_MEMBER)
    me(member, "release")
    assert lost.over.is_set()
    assert audit(client).free == {"alice", "bob"}
    assert leftovers(client) == []


def test_a_checkout_that_arrives_when_its_sender_has_given_up_takes_nothing(
    me: Any,
    network: Proxy,
    pool: LockPool,
    client: redis.Redis,
    eventually: Eventually,
    retry_for: Callable[[float], None],
) -> None:
    retry_for(0.5)
    late = [network.hold_request(CHECKOUT) for _ in range(30)]
    with pytest.raises(LockUnavailable):
        me(pool, "acquire")
    eventually(lambda: client.keys(f"{PREFIX}gone:*"))
    for trouble in late:
        trouble.let_go()
    eventually(lambda: all(trouble.over.is_set() for trouble in late if trouble.caught.is_set()))
    assert audit(client).held == set()
    assert leftovers(client) == []


def test_a_member_whose_grant_was_never_received_is_released(
    me: Any,
    network: Proxy,
    pool: LockPool,
    client: redis.Redis,
    eventually: Eventually,
    retry_for: Callable[[float], None],
) -> None:
    retry_for(0.5)
    network.lose_answer(CHECKOUT, times=1000)
    with pytest.raises(LockUnavailable):
        me(pool, "acquire")
    eventually(lambda: audit(client).held == set())
    eventually(lambda: leftovers(client) == [])


def test_a_late_release_does_not_touch_the_present_holder(
    me: Any, network: Proxy, pool: LockPool, client: redis.Redis
) -> None:
    pool.assign(["alice"])
    late = network.hold_request(RELEASE_MEMBER)
    me(me(pool, "acquire"), "release")
    member = me(pool, "acquire")
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert me(member, "owned")
    assert audit(client).held == {"alice"}


# -- members: each change is a word that its request contains ---------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "how", "keys", "changed", "members"),
    [
        ("add", "extend", ["alice", "carol"], 1, {"alice", "bob", "carol"}),
        ("remove", "shrink", ["bob"], 1, {"alice"}),
        ("stage", "assign", ["alice", "carol"], 1, {"alice", "carol"}),
        ("switch", "assign", ["alice", "carol"], 1, {"alice", "carol"}),
    ],
)
def test_a_change_whose_answer_was_lost_happens_once_and_returns_what_it_has_done(
    me: Any,
    network: Proxy,
    pool: LockPool,
    client: redis.Redis,
    word: str,
    how: str,
    keys: list[str],
    changed: int,
    members: set[str],
) -> None:
    lost = network.lose_answer(word)
    assert me(pool, how, keys) == changed
    assert lost.over.is_set()
    assert audit(client).free == audit(client).members == members


@pytest.mark.parametrize(
    ("word", "first", "then", "members"),
    [
        ("switch", lambda pool: pool.clear(), lambda pool: pool.extend(["alice", "bob"]), ["alice", "bob"]),
        ("remove", lambda pool: pool.shrink(["bob"]), lambda pool: pool.extend(["bob"]), ["alice", "bob"]),
        ("add", lambda pool: pool.extend(["carol"]), lambda pool: pool.shrink(["carol"]), ["alice", "bob"]),
        ("switch", lambda pool: pool.assign(["carol"]), lambda pool: pool.extend(["dave"]), ["carol", "dave"]),
    ],
    ids=["clear", "shrink", "extend", "assign"],
)
def test_a_change_that_arrives_after_its_repetition_does_not_undo_what_came_after_it(
    network: Proxy,
    pool: LockPool,
    word: str,
    first: Callable[[LockPool], object],
    then: Callable[[LockPool], object],
    members: list[str],
) -> None:
    late = network.hold_request(word)
    first(pool)
    then(pool)
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert pool.keys() == members


def test_members_that_do_not_all_arrive_change_nothing(network: Proxy, pool: LockPool, client: redis.Redis) -> None:
    """Redis may have evicted those that were sent first."""
    held = network.hold_request("switch", times=1000)
    with ThreadPoolExecutor(1) as threads:
        assigning = threads.submit(pool.assign, ["carol", "dave"])
        assert held.caught.wait(GENEROUS)
        assert client.delete(*client.keys(f"{PREFIX}next_members:*"))
        held.let_go()
        with pytest.raises(LockUnavailable, match="not all members have arrived"):
            assigning.result(GENEROUS)
    assert audit(client).free == audit(client).members == {"alice", "bob"}
