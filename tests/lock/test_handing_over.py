"""Handing a lock over with ``detach()`` here and ``Lock(name, token=...)`` or ``adopt=True`` elsewhere."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync

from django_redislock import (
    Lock,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockUnavailable,
    get_lock,
    locked,
)
from tests.helpers.actors import GENEROUS, Crowd, until
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, count, fence_of, flag, leftovers
from tests.inside import RELEASE, hears, limit


def adopter(token: str, **options: Any) -> Lock:
    return Lock(NAME, token=token, adopt=True, **options)


def left(me: Any, using: str | None = None, ttl: float | None = None) -> str:
    """The token of a lock that somebody has acquired and detached."""
    lock = Lock(NAME, using=using)
    me(lock, "acquire")
    return str(me(lock, "detach", ttl))


@pytest.mark.complete
def test_after_detach_the_lock_is_no_longer_owned_or_renewed_here_and_busy_for_everybody(
    crowd: Crowd, using: str
) -> None:
    losses: list[LockLost] = []
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=4, on_lost=losses.append, using=using)
    me(lock, "acquire")
    token = me.read(lambda: lock.token)
    assert me(lock, "detach") == token
    for who, other in ((me, lock), (you, Lock(NAME, using=using)), (you, Lock(NAME, using=using, token=TOKEN))):
        assert who(other, "acquire", blocking=False) is False
    assert me.read(lambda: (lock.token, fence_of(lock), lock.lost, lock.remaining())) == (None, None, False, 0.0)
    assert (me(lock, "locked"), me(lock, "owned")) == (True, False)
    for method in ("release", "detach"):
        with pytest.raises(LockNotOwned):
            me(lock, method)
    until(lambda: not me(lock, "locked"))
    assert losses == []


@pytest.mark.parametrize("how", ["held", "detached", "adopted"])
def test_the_bearer_of_a_token_may_release_the_lock_and_adopts_it_before_extending_it(
    crowd: Crowd, using: str, how: str
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=600, using=using)
    me(lock, "acquire")
    token = me.read(lambda: lock.token) if how == "held" else me(lock, "detach")
    bearer = Lock(NAME, token=token, using=using)
    assert you(bearer, "owned")
    adopt = r"this thread or task does not hold it\. Acquire it first: with its token, that adopts it\.$"
    for method, *arguments in (("extend", 60), ("reacquire",), ("detach",)):
        with pytest.raises(LockNotOwned, match=adopt):
            you(bearer, method, *arguments)
    for look in (bearer.check, lambda: bearer.fence):
        with pytest.raises(LockNotOwned, match=adopt):
            you.read(look)
    if how == "adopted":
        assert you(bearer, "acquire", blocking=False)
        assert you(bearer, "extend", 60)
    you(bearer, "release")
    assert not you(bearer, "locked")
    with pytest.raises(LockNotOwned, match=r"Cannot release the lock .* does not hold it\.$"):
        you(bearer, "release")


def test_a_lock_that_was_entered_several_times_is_detached_for_all_of_them_and_their_blocks_leave_it(
    me: Any, you: Any, using: str
) -> None:
    outer, inner = (Lock(NAME, ttl=600, reentrant=True, using=using) for _ in range(2))
    for lock in (outer, inner):
        me(lock, "enter")
    token = me(inner, "detach", 60)
    for lock, error in ((inner, (ZeroDivisionError, ZeroDivisionError(), None)), (outer, (None, None, None))):
        for method in ("release", "detach"):
            with pytest.raises(LockNotOwned):
                me(lock, method)
        assert me.read(lambda lock=lock: (lock.token, lock.remaining())) == (None, 0.0)
        assert not me(lock, "exit", *error)
    you(Lock(NAME, token=token, using=using), "release")
    assert get_lock(NAME, using=using) is None


def test_a_block_releases_what_was_acquired_in_it_after_a_detach(me: Any, you: Any, using: str) -> None:
    lock = Lock(NAME, ttl=600, using=using)
    me(lock, "enter")
    token = me(lock, "detach")
    you(Lock(NAME, token=token, using=using), "release")
    me(lock, "acquire")
    assert not me(lock, "exit", None, None, None)
    assert get_lock(NAME, using=using) is None


def test_a_lock_that_may_have_been_detached_is_not_entered_again(
    crowd: Crowd, network: Proxy, retry_for: Callable[[float], None], client: redis.Redis
) -> None:
    """Its detach() has raised LockUnavailable, and the bearer of the token may adopt it at any time."""
    retry_for(0.1)
    me, lock = crowd(), Lock(NAME, ttl=600, using="far")
    me(lock, "acquire")
    me(lock, "extend", 1)  # the script is known
    lost = network.lose_answer("detach", times=1000)
    with pytest.raises(LockUnavailable):
        me(lock, "detach")
    lost.end()
    assert flag(client) == "d"
    assert me(Lock(NAME, reentrant=True, using="far"), "acquire", blocking=False) is False


@pytest.mark.parametrize("awaits", [False, True])
def test_the_end_of_a_function_leaves_a_lock_that_was_detached_inside(awaits: bool, client: redis.Redis) -> None:
    @locked(NAME, ttl=600, reentrant=True)
    def section() -> str:
        with Lock(NAME, reentrant=True) as lock:
            return lock.detach(60)

    @locked(NAME, ttl=600, reentrant=True)
    async def asection() -> str:
        async with Lock(NAME, reentrant=True) as lock:
            return str(await lock.adetach(60))

    token = async_to_sync(asection)() if awaits else section()
    assert flag(client) == "d"
    Lock(NAME, token=token).release()
    assert leftovers(client) == []


@pytest.mark.parametrize(("ttl", "least", "most"), [(None, 90, 100), (20, 10, 20), (500, 490, 500)])
def test_a_detached_lock_stays_held_for_its_ttl_or_the_given_one(
    crowd: Crowd, ttl: float | None, least: float, most: float, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=100)
    me(lock, "acquire")
    before = count(client, "evalsha")
    me(lock, "detach", ttl)
    assert count(client, "evalsha") == before + 1
    assert least < int(client.pttl(LOCK)) / 1000 <= most
    assert flag(client) == "d"


@pytest.mark.parametrize(("note", "adopt"), [("", False), ("another", False), ("", True)])
def test_whoever_adopts_a_detached_lock_has_its_fence_and_note_and_renews_it(
    crowd: Crowd, using: str, note: str, adopt: bool
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=4, using=using, note="two\nlines ")
    me(lock, "acquire")
    fence, token = me.read(lambda: lock.fence), me(lock, "detach")
    second = Lock(NAME, token=token, adopt=adopt, ttl=4.5, using=using, note=note)
    assert you(second, "enter")
    assert you.read(lambda: (second.fence, second.token)) == (fence, token)
    first = get_lock(NAME, using=using)
    assert first is not None
    assert first.note == (note or "two\nlines ")
    until(lambda: get_lock(NAME, using=using).expires > first.expires)  # type: ignore[union-attr]
    assert you(second, "owned")
    you(second, "exit", None, None, None)
    assert not me(lock, "locked")


def test_whoever_waits_with_the_token_adopts_a_detached_lock_though_another_one_waits_before_it_in_its_process(
    crowd: Crowd, using: str, queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.2)
    me, you, before = crowd(), crowd(), crowd()
    held, second, third = (Lock(NAME, ttl=600, token=token, using=using) for token in (TOKEN, TOKEN, None))
    me(held, "acquire")
    waiting, adopting = queue(third, before), queue(second, you)
    me(held, "detach")
    assert adopting.result(GENEROUS)
    assert not waiting.done()
    you(second, "release")
    assert waiting.result(GENEROUS)


@pytest.mark.parametrize("since", ["released", "ended", "taken", "waited for"])
def test_a_lock_that_is_gone_is_lost_for_one_who_only_adopts(since: str, crowd: Crowd, using: str, queue: Any) -> None:
    """Others may have held the lock in between, so this would not be a hand-over."""
    me, you, third, busy = crowd(), crowd(), crowd(), since in ("taken", "waited for")
    token = left(me, using, ttl=0.003 if since == "ended" else None)
    if since != "ended":
        if since == "waited for":
            queue(Lock(NAME, using=using), third)
        me(Lock(NAME, token=token, using=using), "release")
    if since == "taken":
        me(Lock(NAME, using=using), "acquire")
    until(lambda: busy or get_lock(NAME, using=using) is None)
    for who, reentrant in ((you, False), (me, True)):  # who may hold it by another acquisition
        lock = adopter(token, using=using, reentrant=reentrant)
        with pytest.raises(LockLost, match=rf"Could not adopt the lock '{NAME}': it was released, has ended, or some"):
            who(lock, "acquire", blocking_timeout=GENEROUS)
        assert who.read(lambda lock=lock: (fence_of(lock), lock.lost)) == (None, False)
    assert (get_lock(NAME, using=using) is not None) == busy


def test_a_lock_that_is_still_in_use_is_busy(me: Any, you: Any, using: str) -> None:
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
def test_without_a_token_nothing_is_adopted_or_sent(crowd: Crowd) -> None:
    with pytest.raises(ValueError, match=r"Cannot adopt the lock .* without its token: pass the one that detach"):
        crowd()(Lock(NAME, adopt=True), "acquire")
    with pytest.raises(ValueError, match=r"Cannot adopt the lock .* without its token"):
        locked(NAME, adopt=True)(lambda: None)()


def test_an_adoption_whose_caller_never_learned_of_it_is_left_to_the_next_one_with_the_token(
    me: Any, you: Any, network: Proxy, retry_for: Callable[[float], None], client: redis.Redis
) -> None:
    retry_for(0.1)
    token = left(me, ttl=600)
    lost = network.lose_answer(token, times=1000)
    with pytest.raises(LockUnavailable):
        me(adopter(token, using="far"), "acquire")
    assert lost.caught.is_set()
    until(lambda: flag(client) == "d")
    assert you(adopter(token), "acquire")


def test_a_token_that_is_in_use_in_this_process_adopts_nothing_there(crowd: Crowd, using: str) -> None:
    """Not even if neither holds the lock yet when the other asks."""
    losses: list[LockLost] = []
    locks = [Lock(NAME, token=TOKEN, on_lost=losses.append, using=using) for _ in range(2)]
    people = [crowd(), crowd()]
    for _ in range(20):
        asked = [me.start(lock, "acquire", blocking=False) for me, lock in zip(people, locks, strict=True)]
        got = [future.result(GENEROUS) for future in asked]
        assert got.count(True) == 1
        me, lock = people[got.index(True)], locks[got.index(True)]
        assert me(lock, "owned")
        again = Lock(NAME, token=TOKEN, using=using)  # which its holder enters once more
        assert me(again, "acquire")
        me(again, "release")
        me(lock, "release")
    assert losses == []


def test_a_process_that_is_not_subscribed_does_not_take_itself_for_dead(
    crowd: Crowd, network: Proxy, client: redis.Redis
) -> None:
    me, you, held = crowd(), crowd(), Lock(NAME, token=TOKEN, ttl=600, using="far")
    me(held, "acquire")
    until(lambda: hears("far"))
    network.lose_answer("SUBSCRIBE", times=1000)
    client.client_kill_filter(_type="pubsub")
    until(lambda: not hears("far"))
    assert not you(Lock(NAME, token=TOKEN, using="far"), "acquire", blocking=False)
    assert me(held, "owned")


def test_a_lock_that_is_being_released_is_not_adopted_and_a_release_by_token_finds_it_gone(
    crowd: Crowd, network: Proxy, client: redis.Redis
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, token=TOKEN, using="far")
    me(lock, "acquire")
    held = network.hold_request(RELEASE)
    releasing = me.start(lock, "release")
    until(held.caught.is_set)
    assert not you(Lock(NAME, token=TOKEN, using="far"), "acquire", blocking=False)
    held.let_go()
    releasing.result(GENEROUS)
    me(lock, "acquire")
    held = network.hold_request(RELEASE)
    releasing = you.start(Lock(NAME, token=TOKEN, using="far"), "release")  # not by the holder
    until(held.caught.is_set)
    client.delete(LOCK)
    held.let_go()
    with pytest.raises(LockNotOwned):
        releasing.result(GENEROUS)
