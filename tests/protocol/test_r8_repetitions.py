"""R8: whatever is sent twice, or comes late, has done its work once: no orphan, no loss that is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redislock import Lock, LockLost, LockNotOwned, LockUnavailable
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.state import LOCK, NAME, TOKEN, holder, queued, value
from tests.inside import PREFIX, Ears
from tests.protocol.scene import ACQUIRE, LONG, RELEASE, Eventually, Line, vanish


@pytest.fixture
def impatient(network: Proxy, add_alias: Callable[..., str]) -> Proxy:
    """The same network, for an alias that soon gives up on an answer."""
    add_alias(network.url, SOCKET_TIMEOUT=0.2)
    return network


# -- requests that come late ------------------------------------------------------------------------------------------


def test_an_acquire_that_arrives_after_its_repetition_and_the_release_leaves_no_orphan(
    impatient: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    """Releasing what an acquire of unknown outcome may still ask for leaves a mark, which that one honours."""
    me, lock = crowd(), Lock(NAME, using="other")
    late = impatient.hold_request(LOCK)
    assert me(lock, "acquire")
    assert late.caught.is_set()
    me(lock, "release")
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert (holder(client), queued(client)) == ("", 0)


def test_an_acquire_that_arrives_after_its_caller_gave_up_leaves_no_orphan(
    impatient: Proxy, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    """The same where Redis did not answer at all."""
    me, lock = crowd(), Lock(NAME, using="other")
    late = [impatient.hold_request(ACQUIRE) for _ in range(30)]
    with pytest.raises(LockUnavailable):
        me(lock, "acquire", blocking=False)
    eventually(lambda: client.keys(f"{PREFIX}gone:*"))
    for trouble in late:
        trouble.let_go()
    met = [trouble for trouble in late if trouble.caught.is_set()]
    assert met
    assert all(trouble.over.wait(GENEROUS) for trouble in met)
    assert holder(client) == ""


def test_a_request_that_arrives_after_its_waiter_left_does_not_queue(
    impatient: Proxy, crowd: Crowd, client: redis.Redis, listening: Callable[..., Ears]
) -> None:
    """The mark keeps a late request out of the queue, too."""
    Lock(NAME, ttl=LONG).acquire()
    listening("other")
    me = crowd()
    late = impatient.hold_request(LOCK)
    assert not me(Lock(NAME, using="other", blocking_timeout=1), "acquire")
    late.let_go()
    assert late.over.wait(GENEROUS)
    assert queued(client) == 0


# -- answers that are lost --------------------------------------------------------------------------------------------


def test_a_grant_whose_answer_was_lost_is_returned_to_the_repeated_request(
    network: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    """The lock is not busy because of itself."""
    me, lock = crowd(), Lock(NAME, blocking=False, using="other")
    lost = network.lose_answer(ACQUIRE)
    assert me(lock, "acquire")
    assert lost.over.is_set()
    granted = value(client)
    assert (granted[0], int(granted[3])) == me.read(lambda: (lock.token, lock.fence))
    me(lock, "release")
    assert holder(client) == ""


def test_a_release_whose_answer_was_lost_has_succeeded(network: Proxy, crowd: Crowd, client: redis.Redis) -> None:
    """A repeated release that finds nothing, within the lease, did its work the first time."""
    me, lock = crowd(), Lock(NAME, using="other")
    me(lock, "acquire")
    lost = network.lose_answer(LOCK)
    me(lock, "release")
    assert lost.over.is_set()
    assert holder(client) == ""
    with pytest.raises(LockNotOwned):
        me(lock, "release")


def test_a_first_release_that_finds_nothing_reports_a_lost_lock(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    vanish(client, NAME)
    with pytest.raises(LockLost):
        me(lock, "release")


@pytest.fixture
def unreleased(network: Proxy, crowd: Crowd) -> tuple[Any, Lock]:
    """Somebody whose release has reached Redis, but has seen no answer; and the lock, which may be entered again."""
    me, lock = crowd(), Lock(NAME, using="other", reentrant=True)
    me(lock, "acquire")
    lost = network.lose_answer(LOCK, times=1000)
    with pytest.raises(LockUnavailable) as caught:
        me(lock, "release")
    assert 0 < caught.value.lease_left <= 30
    lost.end()
    return me, lock


def test_a_failed_release_can_be_tried_again_and_then_succeeds(
    unreleased: tuple[Any, Lock], client: redis.Redis
) -> None:
    me, lock = unreleased
    assert not me(lock, "locked")  # over a connection that works: the release below is sent once
    me(lock, "release")
    assert holder(client) == ""


def test_a_lock_whose_release_failed_is_not_entered_again_without_asking_redis(
    unreleased: tuple[Any, Lock], crowd: Crowd
) -> None:
    """The release may have run, and somebody else hold the lock."""
    me, lock = unreleased
    other = crowd()
    assert other(Lock(NAME, token=TOKEN), "acquire")
    assert not me(lock, "acquire", blocking=False)


def test_a_caller_whose_release_failed_may_wait_for_the_lock_like_anybody(unreleased: tuple[Any, Lock]) -> None:
    """Nothing renews it any more, so this is no waiting for oneself without end."""
    me, _ = unreleased
    assert me(Lock(NAME, using="other"), "acquire", blocking_timeout=None)


def test_a_block_that_could_not_release_frees_its_lock_when_redis_is_back(
    network: Proxy, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    """Nobody can try that release again, and the others should not have to wait for the TTL."""
    me, lock = crowd(), Lock(NAME, ttl=LONG, using="other")
    me(lock, "enter")
    network.cut()
    with pytest.raises(LockUnavailable):
        me(lock, "exit", None, None, None)
    assert holder(client)
    network.mend()
    eventually(lambda: not holder(client))


# -- nobody else repeats anything -------------------------------------------------------------------------------------


class CountingRetry(Retry):
    """The retries of an alias, and how often they were asked."""

    asked = 0

    def call_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        CountingRetry.asked += 1
        return super().call_with_retry(*args, **kwargs)


def test_the_retries_configured_for_an_alias_repeat_none_of_our_commands(
    server: RedisServer, add_alias: Callable[..., str], line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our connections have redis-py's retries off, whatever the alias says; ours know that they repeat."""
    monkeypatch.setattr(CountingRetry, "asked", 0)
    with proxy(server.port) as network:
        retries = {
            "retry": CountingRetry(NoBackoff(), 10),
            "retry_on_error": [redis.ConnectionError],
            "retry_on_timeout": True,
        }
        using = add_alias(network.url, CONNECTION_POOL_KWARGS=retries)
        me, lock = line.crowd(), Lock(NAME, using=using)
        me(lock, "acquire")
        waiting = line.join(Lock(NAME, using=using))
        lost = network.lose_answer(RELEASE)
        others = network.delay_answer(RELEASE, 0, times=1000)
        me(lock, "release")
        assert lost.over.is_set()
        assert others.met == 1, "sent twice in all"
        assert waiting.result()
        waiting.release()
        network.cut()
        with pytest.raises(LockUnavailable):
            me(lock, "acquire")
        assert CountingRetry.asked == 0
