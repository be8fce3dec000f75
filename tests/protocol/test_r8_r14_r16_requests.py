"""Requests that come late (R16) or are sent again (R8, R14) have done their work once, and touch nothing newer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import django_redislock
from django_redislock import Counter, Lock, LockLost, LockNotOwned, LockPool, LockUnavailable
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, holder, leftovers, queued, value
from tests.inside import PREFIX, Ears, keys_of
from tests.protocol.scene import ACQUIRE, LONG, RELEASE, Eventually, Join

# -- R8 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True], ids=["released", "left"])
def test_a_request_that_arrives_after_its_repetition_when_its_attempt_is_over_does_nothing(
    busy: bool, impatient: Proxy, crowd: Crowd, client: redis.Redis, listening: Callable[..., Ears]
) -> None:
    """What releases an attempt of which a request may still arrive leaves a mark, which that one honours."""
    if busy:
        Lock(NAME, ttl=LONG).acquire()
        listening("other")
    me, lock, before = crowd(), Lock(NAME, using="other", blocking_timeout=1), holder(client)
    late = impatient.hold_request(LOCK)
    assert me(lock, "acquire") is not busy
    assert late.caught.is_set()
    if not busy:
        me(lock, "release")
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert (holder(client), queued(client)) == (before, 0)


def test_an_acquire_that_arrives_after_its_caller_gave_up_leaves_no_orphan(
    impatient: Proxy, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    late = [impatient.hold_request(ACQUIRE) for _ in range(30)]
    with pytest.raises(LockUnavailable):
        crowd()(Lock(NAME, using="other"), "acquire", blocking=False)
    eventually(lambda: client.keys(f"{PREFIX}gone:*"))
    for trouble in late:
        trouble.let_go()
    met = [trouble for trouble in late if trouble.caught.is_set()]
    assert met
    assert all(trouble.over.wait(GENEROUS) for trouble in met)
    assert holder(client) == ""


def test_a_grant_and_a_release_whose_answers_were_lost_have_succeeded(
    network: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    """The lock is not busy because of itself, nor lost because it was released."""
    me, lock = crowd(), Lock(NAME, blocking=False, using="other")
    network.lose_answer(ACQUIRE)
    assert me(lock, "acquire")
    granted = value(client)
    assert (granted[0], int(granted[3])) == me.read(lambda: (lock.token, lock.fence))
    lost = network.lose_answer(LOCK)
    me(lock, "release")
    assert lost.over.is_set()
    assert holder(client) == ""
    with pytest.raises(LockNotOwned):
        me(lock, "release")


def test_a_release_that_failed_may_have_succeeded_and_can_be_tried_again(
    network: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    """Nothing renews that lock, so it is neither entered again, nor waiting for it waiting for oneself."""
    me, you, lock, yours = crowd(), crowd(), Lock(NAME, using="other", reentrant=True), Lock(NAME, token=TOKEN)
    me(lock, "acquire")
    lost = network.lose_answer(LOCK, times=1000)
    with pytest.raises(LockUnavailable) as caught:
        me(lock, "release")
    assert 0 < caught.value.lease_left <= 30
    lost.end()
    assert you(yours, "acquire")
    assert not me(lock, "acquire", blocking=False)
    you(yours, "release")
    again = Lock(NAME, using="other")
    assert me(again, "acquire", blocking_timeout=None)
    me(again, "release")
    me(lock, "release")
    assert holder(client) == ""


class CountingRetry(Retry):
    """The retries of an alias, and how often they were asked."""

    asked = 0

    def call_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        CountingRetry.asked += 1
        return super().call_with_retry(*args, **kwargs)


def test_the_retries_configured_for_an_alias_repeat_none_of_our_commands(
    network: Proxy, add_alias: Callable[..., str], crowd: Crowd, client: redis.Redis
) -> None:
    """redis-py's own, which do not know what they repeat."""
    retries = {
        "retry": CountingRetry(NoBackoff(), 10),
        "retry_on_error": [redis.ConnectionError],
        "retry_on_timeout": True,
    }
    me, lock = crowd(), Lock(NAME, using=add_alias(network.url, CONNECTION_POOL_KWARGS=retries))
    me(lock, "acquire")
    network.lose_answer(RELEASE)
    others = network.delay_answer(RELEASE, 0, times=1000)
    me(lock, "release")
    assert others.met == 1, "sent twice in all"
    network.cut()
    with pytest.raises(LockUnavailable):
        me(lock, "acquire")
    assert CountingRetry.asked == 0


# -- R14 --------------------------------------------------------------------------------------------------------------


class Forgetful:
    """A user before whose every call Redis forgets the scripts."""

    def __init__(self, person: Any, client: redis.Redis) -> None:
        self.person = person
        self.client = client

    def __call__(self, thing: Any, method: str, *args: Any, **options: Any) -> Any:
        self.client.script_flush()
        return self.person(thing, method, *args, **options)


def test_a_script_flush_before_every_call_does_no_harm(crowd: Crowd, client: redis.Redis) -> None:
    me, you = Forgetful(crowd(), client), Forgetful(crowd(), client)
    lock, other = Lock(NAME, ttl=LONG), Lock(NAME)
    assert me(lock, "acquire")
    assert me(lock, "info")
    assert me(lock, "status").value == "locked"
    assert me(lock, "extend", 1)
    assert me(lock, "reacquire")
    assert not you(other, "acquire", blocking=False)
    assert not you(other, "acquire", blocking_timeout=0.1)  # and withdraws
    assert not you(Lock(NAME, poll=True), "acquire", blocking_timeout=0.1)
    assert [info.waiters for info in me(django_redislock, "list_locks")] == [0]
    adopted = Lock(NAME, token=me(lock, "detach"))
    assert you(adopted, "acquire")
    assert me(django_redislock, "force_release", NAME)
    you(other, "seize")
    you(other, "release")
    counter, pool = Counter("hits"), LockPool("accounts")
    assert (me(counter, "incr"), me(counter, "reset")) == (1, 1)
    assert (me(pool, "assign", ["alice", "bob"]), me(pool, "shrink", ["bob"])) == (2, 1)
    member = me(pool, "acquire")
    assert me(member, "extend", 1)
    assert me(pool, "info").free == 0
    me(member, "release")
    me(pool, "clear")
    assert leftovers(client) == []


def test_a_script_flush_does_no_harm_to_waiters(join: Join, client: redis.Redis) -> None:
    """Neither when it queues, looks or gives up, nor when it is handed the lock."""
    lock = Lock(NAME)
    lock.acquire()
    client.script_flush()
    waiting, leaving = join(Lock(NAME)), join(Lock(NAME, blocking_timeout=0.3))
    client.script_flush()
    assert not leaving.result()
    assert queued(client) == 1
    client.script_flush()
    lock.release()
    assert waiting.result()


def test_a_script_flush_does_no_harm_to_renewals_of_many_locks_at_once(
    client: redis.Redis, eventually: Eventually, renew_all: Callable[..., None]
) -> None:
    """Each command is checked by itself."""
    losses: list[LockLost] = []
    locks = [Lock(f"{NAME}:{number}", ttl=LONG, on_lost=losses.append) for number in range(5)]
    keys = [keys_of(lock.name).lock for lock in locks]
    for lock, key in zip(locks, keys, strict=True):
        lock.acquire()
        client.pexpire(key, 100_000)
    client.script_flush()
    renew_all()
    eventually(lambda: all(int(client.pttl(key)) > 200_000 for key in keys))
    assert losses == []


def test_a_script_flush_does_no_harm_to_the_release_of_a_block_in_the_background(
    network: Proxy, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=LONG, using="other")
    me(lock, "enter")
    network.cut()
    with pytest.raises(LockUnavailable):
        me(lock, "exit", None, None, None)
    client.script_flush()
    network.mend()
    eventually(lambda: holder(client) == "")


# -- R16 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["holder", "bearer"])
def test_a_release_that_comes_late_leaves_a_new_holder_with_the_same_token_alone(
    by: str, impatient: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    me, you = crowd(), crowd()
    first, second = Lock(NAME, token=TOKEN, using="other"), Lock(NAME, token=TOKEN)
    me(first, "acquire")
    if by == "bearer":
        me(first, "detach")
    late = impatient.hold_request(RELEASE)
    me(first, "release")  # at the second try
    assert late.caught.is_set()
    assert you(second, "acquire")
    id = holder(client)
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert holder(client) == id
    assert not you.read(lambda: second.lost)
    you(second, "release")


def test_a_withdrawal_that_comes_late_leaves_a_new_waiter_with_the_same_token_in_the_queue(
    impatient: Proxy, join: Join, client: redis.Redis, eventually: Eventually
) -> None:
    lock = Lock(NAME)
    lock.acquire()
    leaving = join(Lock(NAME, token=TOKEN, blocking_timeout=0.3, using="other"))
    late = impatient.hold_request(RELEASE)
    assert not leaving.result()
    assert late.caught.wait(GENEROUS)
    eventually(lambda: queued(client) == 0)  # the second try, in the background
    waiting = join(Lock(NAME, token=TOKEN))
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert queued(client) == 1
    lock.release()
    assert waiting.result()
