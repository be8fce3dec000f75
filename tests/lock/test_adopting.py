"""``adopt=True`` adopts only the very acquisition that was left to whoever has its token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockNotAcquired, LockUnavailable, force_release, get_lock, locked
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, fence_of, flag, queued

Eventually = Callable[..., Any]


def adopter(token: str, **options: Any) -> Lock:
    return Lock(NAME, token=token, adopt=True, **options)


def left(me: Any, using: str | None = None, ttl: float | None = None) -> str:
    """The token of a lock that somebody has acquired and detached."""
    lock = Lock(NAME, using=using)
    me(lock, "acquire")
    return str(me(lock, "detach", ttl))


@pytest.mark.parametrize("how", ["acquire", "enter"])
def test_it_adopts_a_detached_lock(crowd: Crowd, using: str, how: str) -> None:
    me, you, first = crowd(), crowd(), Lock(NAME, using=using)
    me(first, "acquire")
    fence = me.read(lambda: first.fence)
    lock = adopter(me(first, "detach"), using=using)
    assert you(lock, how)
    assert you.read(lambda: (lock.fence, lock.remaining() > 0)) == (fence, True)
    you(lock, "release") if how == "acquire" else you(lock, "exit", None, None, None)
    assert get_lock(NAME, using=using) is None


@pytest.mark.parametrize("since", ["released", "ended", "force-released", "taken", "adopted"])
def test_a_lock_that_is_gone_is_lost(since: str, crowd: Crowd, using: str, eventually: Eventually) -> None:
    """Others may have held the lock in between, so this would not be a hand-over."""
    me, you = crowd(), crowd()
    token = left(me, using, ttl=0.003 if since == "ended" else None)
    if since == "released":
        me(Lock(NAME, token=token, using=using), "release")
    elif since == "force-released":
        assert force_release(NAME, using=using)
    elif since == "taken":
        me(Lock(NAME, using=using), "seize")
    elif since == "adopted":
        second = adopter(token, using=using)
        me(second, "acquire")
        me(second, "release")
    eventually(lambda: since == "taken" or get_lock(NAME, using=using) is None)
    lock = adopter(token, using=using)
    with pytest.raises(LockLost, match=rf"Could not adopt the lock '{NAME}': it was released, has ended, or somebody"):
        you(lock, "acquire")
    assert you.read(lambda: (fence_of(lock), lock.lost)) == (None, False)
    assert (get_lock(NAME, using=using) is not None) == (since == "taken")


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_gone_is_lost_for_one_who_holds_the_lock_by_another_acquisition(crowd: Crowd, reentrant: bool) -> None:
    me = crowd()
    token = left(me)
    me(Lock(NAME), "seize")
    lock = adopter(token, reentrant=reentrant)
    with pytest.raises(LockLost, match="Could not adopt"):
        me(lock, "acquire")
    assert me.read(lambda: fence_of(lock)) is None


def test_it_does_not_acquire_a_free_lock_that_others_wait_for(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, you, third = crowd(), crowd(), crowd()
    token = left(me)
    waiting = you.start(Lock(NAME), "acquire")
    eventually(lambda: queued(client))
    me(Lock(NAME, token=token), "release")
    assert waiting.result(GENEROUS)
    with pytest.raises(LockLost):
        third(adopter(token), "acquire", blocking_timeout=GENEROUS)
    assert not queued(client)


def test_a_lock_that_is_still_in_use_is_busy(crowd: Crowd, using: str) -> None:
    """It was not detached, and its holder is alive."""
    me, you = crowd(), crowd()
    held = Lock(NAME, token=TOKEN, using=using)
    me(held, "acquire")
    assert you(adopter(TOKEN, using=using), "acquire", blocking_timeout=GENEROUS) is False
    with pytest.raises(LockNotAcquired, match=r"still uses it. Call detach\(\) there first") as caught:
        you(adopter(TOKEN, using=using), "enter")
    assert caught.value.outcome == "busy"
    assert caught.value.holder
    assert me(held, "owned")
    assert me.read(lambda: held.lost) is False


@pytest.mark.usefixtures("nowhere")
def test_without_a_token_nothing_is_sent(crowd: Crowd) -> None:
    @locked(NAME, adopt=True)
    def without() -> None: ...

    with pytest.raises(ValueError, match=r"Cannot adopt the lock .* without its token: pass the one that detach"):
        crowd()(Lock(NAME, adopt=True), "acquire")
    with pytest.raises(ValueError, match=r"Cannot adopt the lock .* without its token"):
        without()


def test_a_lost_answer_is_not_mistaken_for_an_adoption(
    crowd: Crowd, network: Proxy, retry_for: Callable[[float], None], client: redis.Redis
) -> None:
    """The request is repeated because the first answer was lost: the lock is still gone, and nothing was acquired."""
    retry_for(20)
    me, you = crowd(), crowd()
    token = left(me)
    me(Lock(NAME, token=token), "release")
    lost = network.lose_answer(token)
    with pytest.raises(LockLost):
        you(adopter(token, using="far"), "acquire")
    assert lost.caught.is_set()
    assert not client.exists(LOCK)


def test_an_adoption_whose_caller_never_learned_of_it_is_left_to_the_next_one_with_the_token(
    crowd: Crowd, network: Proxy, retry_for: Callable[[float], None], eventually: Eventually, client: redis.Redis
) -> None:
    me, you = crowd(), crowd()
    retry_for(0.1)
    token = left(me, ttl=600)
    lost = network.lose_answer(token, times=1000)
    with pytest.raises(LockUnavailable):
        me(adopter(token, using="far"), "acquire")
    assert lost.caught.is_set()
    eventually(lambda: flag(client) == "d")
    assert you(adopter(token), "acquire")
