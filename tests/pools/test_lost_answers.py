"""A network that loses, delays and repeats: what takes effect once, and what is released again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockPool, LockUnavailable
from django_redislock.store import calls
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS
from tests.helpers.pools import POOL, audit, leftovers
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import PREFIX

Eventually = Callable[..., Any]

CHECKOUT, RELEASE = calls._CHECKOUT.sha, calls._RELEASE["member"].sha


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


def test_a_checkout_whose_answer_was_lost_gets_the_same_member(
    me: Any, network: Proxy, pool: LockPool, client: redis.Redis
) -> None:
    lost = network.lose_answer(CHECKOUT)
    member = me(pool, "acquire")
    assert lost.over.is_set()
    assert audit(client).held == {member.key} == {"alice"}
    me(member, "release")
    assert audit(client).held == set()
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


def test_a_release_whose_answer_was_lost_has_succeeded(
    me: Any, network: Proxy, pool: LockPool, client: redis.Redis
) -> None:
    member = me(pool, "acquire")
    lost = network.lose_answer(RELEASE)
    me(member, "release")
    assert lost.over.is_set()
    assert audit(client).free == {"alice", "bob"}


def test_a_late_release_does_not_touch_the_present_holder(
    me: Any, network: Proxy, pool: LockPool, client: redis.Redis
) -> None:
    pool.assign(["alice"])
    late = network.hold_request(RELEASE)
    me(me(pool, "acquire"), "release")
    member = me(pool, "acquire")
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert me(member, "owned")
    assert audit(client).held == {"alice"}


# -- members ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["extend", "assign"])
def test_members_are_put_in_once_even_if_the_answer_was_lost(
    me: Any, network: Proxy, pool: LockPool, client: redis.Redis, how: str
) -> None:
    lost = network.lose_answer("stage" if how == "assign" else "add")
    me(pool, how, ["alice", "carol"])
    assert lost.over.is_set()
    assert audit(client).free == {"alice", "carol"} | ({"bob"} if how == "extend" else set())


def test_an_assign_whose_last_answer_was_lost_has_succeeded(me: Any, network: Proxy, pool: LockPool) -> None:
    lost = network.lose_answer("switch")
    assert me(pool, "assign", ["bob", "carol"]) == 1
    assert lost.over.is_set()
    assert pool.keys() == ["bob", "carol"]


@pytest.mark.parametrize(
    ("how", "word", "keys", "changed"), [("extend", "add", ["carol"], 1), ("shrink", "remove", ["bob"], 1)]
)
def test_a_change_whose_answer_was_lost_returns_what_it_has_done(
    me: Any, network: Proxy, pool: LockPool, how: str, word: str, keys: list[str], changed: int
) -> None:
    lost = network.lose_answer(word)
    assert me(pool, how, keys) == changed
    assert lost.over.is_set()


@pytest.mark.parametrize(
    ("word", "first", "then"),
    [
        ("switch", lambda pool: pool.clear(), lambda pool: pool.extend(["alice", "bob"])),
        ("remove", lambda pool: pool.shrink(["bob"]), lambda pool: pool.extend(["bob"])),
        ("add", lambda pool: pool.extend(["carol"]), lambda pool: pool.shrink(["carol"])),
    ],
    ids=["clear", "shrink", "extend"],
)
def test_a_change_that_arrives_after_its_repetition_does_not_undo_what_came_after_it(
    network: Proxy, pool: LockPool, word: str, first: Callable[[LockPool], object], then: Callable[[LockPool], object]
) -> None:
    late = network.hold_request(word)
    first(pool)
    then(pool)
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert pool.keys() == ["alice", "bob"]


def test_an_assign_that_arrives_after_its_repetition_does_not_undo_what_came_after_it(
    network: Proxy, pool: LockPool
) -> None:
    late = network.hold_request("switch")
    pool.assign(["carol"])
    pool.extend(["dave"])
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert pool.keys() == ["carol", "dave"]


# -- scripts that Redis has forgotten --------------------------------------------------------------------------------


def test_scripts_may_be_flushed_at_any_time(me: Any, accounts: LockPool, client: redis.Redis) -> None:
    for method, *args in (
        ("extend", ["carol"]),
        ("assign", ["alice", "bob"]),
        ("shrink", ["alice"]),
        ("health_check",),
    ):
        client.script_flush()
        me(accounts, method, *args)
    client.script_flush()
    member = me(accounts, "acquire")
    client.script_flush()
    assert me(member, "extend", 5)
    client.script_flush()
    me(member, "release")
    assert me(accounts, "health_check") == (0, 1)


def test_a_lock_on_a_member_survives_a_flush_of_the_scripts(me: Any, accounts: LockPool, client: redis.Redis) -> None:
    lock = Lock("pool:accounts:alice")
    client.script_flush()
    assert me(lock, "acquire")
    client.script_flush()
    me(lock, "release")
    assert audit(client).free == {"alice", "bob"}
    assert LockPool(POOL).acquire(blocking_timeout=0).key
