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
from tests.helpers.ways import DJANGO, DJANGO_REDIS, alias, caches
from tests.inside import CHECKOUT, PREFIX, RELEASE_MEMBER, limit

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
    ("word", "change", "members"),
    [
        ("add", ("extend", ["alice", "carol"]), {"alice", "bob", "carol"}),
        ("remove", ("shrink", ["bob"]), {"alice"}),
        ("stage", ("assign", ["alice", "carol"]), {"alice", "carol"}),
        ("switch", ("assign", ["alice", "carol"]), {"alice", "carol"}),
    ],
)
def test_a_change_whose_answer_was_lost_happens_once_and_returns_what_it_has_done(
    me: Any, network: Proxy, pool: LockPool, client: redis.Redis, word: str, change: Any, members: set[str]
) -> None:
    lost = network.lose_answer(word)
    assert me(pool, *change) == 1
    assert lost.over.is_set()
    assert audit(client).free == audit(client).members == members


@pytest.mark.parametrize(
    ("word", "first", "then", "members"),
    [
        ("switch", ("assign", []), ("extend", ["alice", "bob"]), ["alice", "bob"]),
        ("switch", ("assign", ["carol"]), ("extend", ["dave"]), ["carol", "dave"]),
        ("remove", ("shrink", ["bob"]), ("extend", ["bob"]), ["alice", "bob"]),
        ("add", ("extend", ["carol"]), ("shrink", ["carol"]), ["alice", "bob"]),
    ],
)
def test_a_change_that_arrives_after_its_repetition_does_not_undo_what_came_after_it(
    me: Any, network: Proxy, pool: LockPool, word: str, first: Any, then: Any, members: list[str]
) -> None:
    late = network.hold_request(word)
    me(pool, *first)
    me(pool, *then)
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


# -- servers that are flushed, full, restricted, shared or gone -------------------------------------------------------


def test_after_a_flush_a_release_brings_nothing_back_and_the_pool_can_be_filled_anew(
    me: Any, accounts: LockPool, client: redis.Redis
) -> None:
    first, second = me(accounts, "acquire"), me(accounts, "acquire")
    client.flushall()
    with pytest.raises(LockLost):
        me(first, "release")
    assert accounts.keys() == []
    assert [key for key in client.keys("*") if b"fence" not in key] == []
    accounts.extend(["bob"])
    again = accounts.acquire()
    assert again.key == "bob"
    assert (again.fence or 0) > me.read(lambda: second.fence) > 0
    with pytest.raises(LockLost):
        me(second, "release")
    assert again.owned()
    assert audit(client).held == {"bob"}


@pytest.mark.usefixtures("listening", "held")
def test_after_a_flush_waiters_get_members_of_the_new_set(
    wait: Wait, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.1)
    waiter = wait()
    client.flushall()
    LockPool(POOL).extend(["zoe"])
    assert got(waiter) == "zoe"


def test_a_user_without_the_rights_for_pools_is_told_the_name_of_the_pool(
    client: redis.Redis, server: RedisServer
) -> None:
    client.acl_setuser("limited", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-hexists"])
    limited = alias(DJANGO_REDIS, server.url.replace("//", "//limited:any@"))
    with caches(limited), pytest.raises(LockUnavailable, match="refuses to serve the pool 'accounts'"):
        LockPool(POOL).info()
    client.acl_deluser("limited")


def take_and_return(pool: LockPool) -> None:
    """Many times, because only one call in eight looks for ended leases, and begins with a deletion."""
    for _ in range(100):
        pool.acquire(blocking_timeout=0).release()


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
        for call in (take_and_return, lambda pool: pool.assign(["carol"])):
            with pytest.raises(LockUnavailable, match=r"to serve the pool 'accounts' .* used memory > 'maxmemory'"):
                call(accounts)
    finally:
        client.config_set("maxmemory", 0)
    assert audit(client).members == {"alice", "bob"}
    assert audit(client).free == {"bob"}
    assert accounts.acquire(blocking_timeout=0).key == "bob"


def test_without_redis_it_says_so(own: RedisServer, retry_for: Callable[[float], None]) -> None:
    retry_for(0.2)
    pool = LockPool(POOL)
    own.stop()
    for call in (lambda: pool.extend(["x"]), pool.keys, pool.acquire, pool.info):
        with pytest.raises(LockUnavailable, match=r"cannot be reached for the pool 'accounts' .*'default'") as caught:
            call()
        assert caught.value.name == POOL
