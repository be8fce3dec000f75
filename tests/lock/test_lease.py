"""The lease: how it is renewed, extended and shown, and when renewal ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockUnavailable, get_lock
from tests.helpers.actors import GENEROUS, Crowd, server_time
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, put, value
from tests.inside import end_is_seen

Eventually = Callable[..., Any]

SHORT = 3.0  # TTL in seconds: renewed every second, with two to spare


def end(client: redis.Redis) -> float:
    """The end of the lease, in seconds by the server's clock."""
    return server_time(client) / 1e6 + int(client.pttl(LOCK)) / 1000


# -- extend, reacquire, detach ----------------------------------------------------------------------------------------


def test_extend_adds_to_the_lease_and_reacquire_resets_it(crowd: Crowd, using: str) -> None:
    me, lock = crowd(), Lock(NAME, ttl=100, using=using)

    def assert_left(least: float, most: float) -> None:
        assert least < me.read(lock.remaining) <= most
        assert least < me(lock, "info").lease_left <= most

    me(lock, "acquire")
    assert me(lock, "extend", 50) is True
    assert_left(130, 150)
    assert me(lock, "extend", timedelta(seconds=20), replace_ttl=True) is True
    assert_left(10, 20)
    assert me(lock, "reacquire") is True
    assert_left(80, 100)


@pytest.mark.parametrize(("method", "args"), [("extend", (1,)), ("reacquire", ()), ("detach", ())])
@pytest.mark.parametrize("taken", [False, True])
def test_extending_a_lost_lease_raises_lock_lost(
    crowd: Crowd, method: str, args: tuple[Any, ...], taken: bool, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    if taken:
        put(client, NAME)
    else:
        client.delete(LOCK)
    found = value(client)
    for _ in range(2):
        with pytest.raises(LockLost, match="somebody else holds it now" if taken else "gone from Redis"):
            me(lock, method, *args)
    assert value(client) == found


@pytest.mark.parametrize(
    ("method", "options", "auto_renew"),
    [("extend", {"replace_ttl": True}, False), ("detach", {}, False), ("detach", {}, True)],
)
def test_a_lease_that_redis_may_have_shortened_without_an_answer_is_lost_before_anybody_else_gets_the_lock(
    method: str, options: dict[str, Any], auto_renew: bool,
    crowd: Crowd, network: Proxy, retry_for: Callable[[float], None], eventually: Eventually,
) -> None:  # fmt: skip
    retry_for(0.1)
    losses: list[LockLost] = []
    me, you = crowd(), crowd()
    lock = Lock(NAME, ttl=600, auto_renew=auto_renew, using="far", on_lost=losses.append)
    me(lock, "acquire")
    lost = network.lose_answer("detach" if method == "detach" else "\r\nset\r\n", times=1000)
    with pytest.raises(LockUnavailable):
        me(lock, method, 1, **options)
    assert lost.caught.is_set()
    assert you(Lock(NAME), "acquire", blocking_timeout=GENEROUS)
    assert me.read(lambda: (lock.lost, lock.remaining())) == (True, 0.0)
    eventually(lambda: losses)


def test_a_lock_that_redis_has_detached_is_not_lost_though_the_answer_comes_after_its_end(
    crowd: Crowd, network: Proxy, eventually: Eventually
) -> None:
    """A command with a minimum time may detach its lock in the last millisecond."""
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=600, using="far", on_lost=losses.append)
    me(lock, "acquire")
    token, is_seen = me.read(lambda: (lock.token, end_is_seen(lock)))
    held = network.hold_answer("detach")
    detaching = me.start(lock, "detach", 0.003)
    eventually(is_seen)
    held.let_go()
    assert detaching.result(GENEROUS) == token
    assert not me.read(lambda: lock.lost)
    assert losses == []


# -- by the local clock -----------------------------------------------------------------------------------------------


def test_remaining_lost_and_check_follow_the_local_clock(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=1, auto_renew=False)
    assert me.read(lambda: (lock.remaining(), lock.lost)) == (0.0, False)
    me(lock, "acquire")
    assert 0 < me.read(lock.remaining) <= 1
    me.read(lock.check)
    eventually(lambda: me.read(lambda: lock.lost))
    assert me.read(lock.remaining) == 0.0
    with pytest.raises(LockLost, match="its lease ended"):
        me.read(lock.check)
    eventually(lambda: not client.exists(LOCK))  # in Redis it ends a little later
    with pytest.raises(LockLost):
        me(lock, "release")


def test_the_lease_by_the_local_clock_is_never_longer_than_in_redis(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME, ttl=50)
    me(lock, "acquire")
    for _ in range(20):
        local = me.read(lock.remaining)
        left_in_redis = int(client.pttl(LOCK))
        went_by = local - me.read(lock.remaining)
        assert local * 1000 <= left_in_redis + 1000 * went_by + 1


# -- renewal ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["default", "the option", "after it was set near"])
def test_a_lock_is_renewed_as_long_as_it_is_held(
    crowd: Crowd, by: str, settings: Any, client: redis.Redis, eventually: Eventually
) -> None:
    settings.REDISLOCK = {"AUTO_RENEW": by != "the option"}
    losses: list[LockLost] = []
    renew = True if by == "the option" else None
    me, lock = crowd(), Lock(NAME, ttl=SHORT, auto_renew=renew, on_lost=losses.append)
    me(lock, "acquire")
    if by == "after it was set near":
        me(lock, "extend", SHORT / 2, replace_ttl=True)
    first, before = end(client), value(client)
    eventually(lambda: end(client) > first + SHORT / 4)
    assert me(lock, "owned")
    assert 0 < me.read(lock.remaining) <= SHORT
    assert value(client) == before
    me(lock, "release")
    assert losses == []


@pytest.mark.complete
@pytest.mark.parametrize("where", ["settings", "option"])
def test_renewal_ends_at_max_hold(
    where: str, settings: Any, client: redis.Redis, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDISLOCK = {"MAX_HOLD": SHORT / 4 if where == "settings" else 3600}
    losses: list[LockLost] = []
    limit = None if where == "settings" else SHORT / 4
    lock = Lock(NAME, ttl=SHORT / 2, on_lost=losses.append, max_hold=limit)
    lock.acquire()
    first = end(client)
    eventually(lambda: end(client) > first + 0.2)  # it was renewed at first
    eventually(lambda: losses)
    assert "event=max-hold" in caplog.text
    eventually(lambda: not lock.locked())


def test_the_lock_of_a_thread_or_task_that_ended_is_not_renewed_and_a_warning_says_so(
    crowd: Crowd, using: str, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=SHORT / 2, using=using)
    me(lock, "acquire")
    me.end()
    eventually(lambda: "event=owner-ended" in caplog.text)
    eventually(lambda: get_lock(NAME, using=using) is None)


def test_redis_takes_the_longest_ttl_that_is_allowed_and_as_much_again() -> None:
    longest = 10 * 365 * 86400
    with Lock(NAME, ttl=longest) as lock:
        lock.extend(longest)
        assert lock.remaining() > longest
