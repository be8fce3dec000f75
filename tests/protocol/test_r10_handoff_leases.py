"""R10: a handoff begins with a short lease, and a holder that keeps the lock has the full TTL from the grant on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from django_redislock import Lock, LockPool, get_lock
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time
from tests.helpers.state import LOCK, NAME, TOKEN, WAITERS, count, flag
from tests.inside import PREFIX, lease_of, limit
from tests.protocol.scene import MEMBER, Eventually, Line

LINE_WAITERS = f"{PREFIX}waiters:pool:accounts:"


@pytest.mark.parametrize(("ttl", "lease"), [(0.5, 500), (2, 2000), (6, 3000), (30, 10_000)])
@pytest.mark.parametrize("kind", ["key", "line"])
def test_a_handoffs_lease_is_a_third_of_the_ttl_but_at_least_three_seconds_and_at_most_the_ttl(
    kind: str, ttl: float, lease: int, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    waiter, pool = ghost(), LockPool("accounts")
    pool.extend(["alice"])
    held = Lock(NAME) if kind == "key" else Lock(MEMBER)
    held.acquire()
    waiter.queue(TOKEN, name=NAME if kind == "key" else "pool:accounts:", ttl=ttl)
    before = server_time(client)
    held.release()
    word, id, fence, granted, told, name = waiter.hear()
    assert (word, id, int(told), name) == ("g", TOKEN, lease, held.name)
    info = get_lock(held.name)
    if info is None:  # 0.5 s have gone by
        assert server_time(client) - before > lease * 1000
    else:
        assert info.fence == int(fence)
        assert abs(info.held_for + info.lease_left - lease / 1000) < 0.05
        assert before <= int(granted) <= server_time(client)


def test_the_trace_of_a_handoff_to_the_only_waiter_expires(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    """The trace expires by itself, whatever happens to its process."""
    lock = Lock(NAME)
    lock.acquire()
    ghost().queue(TOKEN, name=NAME)
    lock.release()
    assert client.hkeys(WAITERS) == [b"!"]
    assert 0 < int(client.pttl(WAITERS)) <= 60_000


@pytest.mark.parametrize("auto_renew", [True, False], ids=["renewed", "not renewed"])
def test_a_handed_over_lock_that_is_kept_gets_its_full_ttl(
    auto_renew: bool, line: Line, client: redis.Redis, eventually: Eventually
) -> None:
    """It is confirmed in the background."""
    lock = Lock(NAME)
    lock.acquire()
    waiting = line.join(Lock(NAME, ttl=300, auto_renew=auto_renew))
    lock.release()
    assert waiting.result()
    eventually(lambda: int(client.pttl(LOCK)) > 200_000)
    assert int(client.pttl(LOCK)) <= 300_000
    assert flag(client) == "c"
    assert not client.hexists(WAITERS, "!")
    eventually(lambda: waiting.person.read(waiting.lock.remaining) > 200)
    assert waiting.person.read(waiting.lock.remaining) <= 300


def test_a_member_handed_over_in_the_queue_of_a_pool_gets_its_full_ttl(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    pool, me = LockPool("accounts"), crowd()
    pool.extend(["alice"])
    member = pool.acquire()
    future = me.start(pool, "acquire", ttl=300, auto_renew=False)
    eventually(lambda: pool.info().waiters == 1)
    member.release()
    taken = future.result(GENEROUS)
    eventually(lambda: (get_lock(MEMBER).lease_left) > 200)  # type: ignore[union-attr]
    eventually(lambda: me.read(taken.remaining) > 200)
    assert not client.hexists(LINE_WAITERS, "!alice")


def test_a_handed_over_lock_of_a_short_ttl_lives_no_longer_than_that(
    line: Line, client: redis.Redis, eventually: Eventually
) -> None:
    """Without renewal it ends at grant + TTL, not after 3 s."""
    lock = Lock(NAME)
    lock.acquire()
    waiting = line.join(Lock(NAME, ttl=1, auto_renew=False))
    lock.release()
    assert waiting.result()
    assert waiting.person.read(waiting.lock.remaining) <= 1
    assert int(client.pttl(LOCK)) <= 1000
    eventually(lambda: int(client.pttl(LOCK)) < 0 and waiting.person.read(lambda: waiting.lock.lost))


def test_extend_of_a_handed_over_lock_adds_to_the_full_ttl(
    line: Line, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It confirms first."""
    limit(monkeypatch, confirm_after=10.0 * GENEROUS)  # not by the watchdog
    lock = Lock(NAME)
    lock.acquire()
    waiting = line.join(Lock(NAME, ttl=60, auto_renew=False))
    lock.release()
    assert waiting.result()
    assert flag(client) == "h"
    assert waiting.person(waiting.lock, "extend", 50)
    assert 80_000 < int(client.pttl(LOCK)) <= 110_000


def test_renewal_never_shortens_a_lease_that_was_extended(
    client: redis.Redis, eventually: Eventually, renew_all: Callable[..., None]
) -> None:
    lock = Lock(NAME, ttl=3)
    lock.acquire()
    lease = lease_of(lock)
    eventually(lambda: lease.seen)
    lock.extend(300)
    before = count(client, "pexpire")
    renew_all()
    eventually(lambda: count(client, "pexpire") > before and not lease.urgent)
    assert int(client.pttl(LOCK)) > 200_000
    assert lock.remaining() > 200
