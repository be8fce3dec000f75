"""Handing a lock over with ``detach()`` here and ``Lock(name, token=...)`` or ``adopt=True`` elsewhere."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_redislock import (
    Lock,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockUnavailable,
    force_release,
    get_lock,
    locked,
    locked_view,
)
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, count, fence_of, flag, holder, leftovers, queued, value
from tests.inside import ACQUIRE, RELEASE, WAS_ADOPTED, hears, limit, own_channel, pending_releases

from .blocks import Block

Eventually = Callable[..., Any]


def adopter(token: str, **options: Any) -> Lock:
    return Lock(NAME, token=token, adopt=True, **options)


def left(me: Any, using: str | None = None, ttl: float | None = None) -> str:
    """The token of a lock that somebody has acquired and detached."""
    lock = Lock(NAME, using=using)
    me(lock, "acquire")
    return str(me(lock, "detach", ttl))


# -- detach -----------------------------------------------------------------------------------------------------------


def test_after_detach_the_lock_is_no_longer_owned_or_renewed_here_and_busy_for_everybody(
    crowd: Crowd, using: str, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=0.6, on_lost=losses.append, using=using)
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
    eventually(lambda: not me(lock, "locked"))
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


@pytest.mark.parametrize("error", [None, ZeroDivisionError()], ids=["ends", "raises"])
def test_a_lock_that_was_entered_several_times_is_detached_for_all_of_them_and_their_blocks_leave_it(
    crowd: Crowd, using: str, error: Exception | None
) -> None:
    me, you = crowd(), crowd()
    outer, inner = (Lock(NAME, ttl=600, reentrant=True, using=using) for _ in range(2))
    for lock in (outer, inner):
        me(lock, "enter")
    token = me(inner, "detach", 60)
    for lock in (outer, inner):
        with pytest.raises(LockNotOwned):
            me.read(lock.check)
        for method in ("release", "detach"):
            with pytest.raises(LockNotOwned):
                me(lock, method)
        assert me.read(lambda lock=lock: (lock.token, lock.remaining())) == (None, 0.0)
    for lock in (inner, outer):
        assert not me(lock, "exit", error and type(error), error, None)
    lock = adopter(token, using=using)
    assert you(lock, "acquire")
    you(lock, "release")
    assert get_lock(NAME, using=using) is None


def section(*request: HttpRequest) -> HttpResponse:
    with Lock(NAME, reentrant=True) as lock:
        return HttpResponse(lock.detach(60))


async def asection(*request: HttpRequest) -> HttpResponse:
    async with Lock(NAME, reentrant=True) as lock:
        return HttpResponse(await lock.adetach(60))


@pytest.mark.parametrize("kind", [locked, locked_view])
@pytest.mark.parametrize("body", [section, asection])
def test_the_end_of_a_function_or_view_leaves_a_lock_that_was_detached_inside(
    kind: Any, body: Any, client: redis.Redis
) -> None:
    function = kind(NAME, ttl=600, reentrant=True)(body)
    response = (async_to_sync(function) if body is asection else function)(RequestFactory().get("/"))
    assert flag(client) == "d"
    Lock(NAME, token=response.content.decode()).release()
    assert leftovers(client) == []


@pytest.mark.parametrize("handed", [False, True])
@pytest.mark.parametrize(("ttl", "least", "most"), [(None, 90, 100), (20, 10, 20), (500, 490, 500)])
def test_a_detached_lock_stays_held_for_its_ttl_or_the_given_one(
    crowd: Crowd, handed: bool, ttl: float | None, least: float, most: float, client: redis.Redis,
    eventually: Eventually,
) -> None:  # fmt: skip
    """In one round trip, and even if it was handed over, with a third of it at first."""
    me, lock, you, first = crowd(), Lock(NAME, ttl=100), crowd(), Lock(NAME)
    if handed:
        you(first, "acquire")
    acquiring = me.start(lock, "acquire")
    if handed:
        eventually(lambda: queued(client))
        detaching = me.start(lock, "detach", ttl)
        you(first, "release")
        assert detaching.result(GENEROUS)
    assert acquiring.result(GENEROUS)
    if not handed:
        before = count(client, "evalsha")
        me(lock, "detach", ttl)
        assert count(client, "evalsha") == before + 1
    assert least < int(client.pttl(LOCK)) / 1000 <= most
    assert flag(client) == "d"


# -- adopting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("note", "adopt"), [("", False), ("another", False), ("", True)])
def test_whoever_adopts_a_detached_lock_has_its_fence_and_note_and_renews_it(
    crowd: Crowd, using: str, note: str, adopt: bool, eventually: Eventually
) -> None:
    """A note of its own replaces the old one."""
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=0.9, using=using, note="two\nlines ")
    me(lock, "acquire")
    fence, token = me.read(lambda: lock.fence), me(lock, "detach")
    second = Lock(NAME, token=token, adopt=adopt, ttl=1.5, using=using, note=note)
    assert you(second, "enter")
    assert you.read(lambda: (second.fence, second.token)) == (fence, token)
    first = get_lock(NAME, using=using)
    assert first is not None
    assert first.note == (note or "two\nlines ")
    eventually(lambda: get_lock(NAME, using=using).expires > first.expires)  # type: ignore[union-attr]
    assert you(second, "owned")
    you(second, "exit", None, None, None)
    assert not me(lock, "locked")


@pytest.mark.parametrize("since", ["released", "ended", "force-released", "taken", "adopted", "waited for"])
def test_a_lock_that_is_gone_is_lost_for_one_who_only_adopts(
    since: str, crowd: Crowd, using: str, eventually: Eventually
) -> None:
    """Others may have held the lock in between, so this would not be a hand-over."""
    me, you, third = crowd(), crowd(), crowd()
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
    elif since == "waited for":
        waiting = third.start(Lock(NAME, using=using), "acquire")
        eventually(lambda: get_lock(NAME, using=using).waiters)  # type: ignore[union-attr]
        me(Lock(NAME, token=token, using=using), "release")
        assert waiting.result(GENEROUS)
    busy = since in ("taken", "waited for")
    eventually(lambda: busy or get_lock(NAME, using=using) is None)
    for who, reentrant in ((you, False), (me, True)):  # who may hold it by another acquisition
        lock = adopter(token, using=using, reentrant=reentrant)
        with pytest.raises(LockLost, match=rf"Could not adopt the lock '{NAME}': it was released, has ended, or some"):
            who(lock, "acquire", blocking_timeout=GENEROUS)
        assert who.read(lambda lock=lock: (fence_of(lock), lock.lost)) == (None, False)
    assert (get_lock(NAME, using=using) is not None) == busy


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
def test_without_a_token_nothing_is_adopted_or_sent(crowd: Crowd) -> None:
    with pytest.raises(ValueError, match=r"Cannot adopt the lock .* without its token: pass the one that detach"):
        crowd()(Lock(NAME, adopt=True), "acquire")
    with pytest.raises(ValueError, match=r"Cannot adopt the lock .* without its token"):
        locked(NAME, adopt=True)(lambda: None)()


@pytest.mark.parametrize("gone", [True, False])
def test_a_lost_answer_is_not_mistaken_for_an_adoption_and_what_was_adopted_is_left_to_the_next_one(
    gone: bool, crowd: Crowd, network: Proxy, retry_for: Callable[[float], None], eventually: Eventually,
    client: redis.Redis,
) -> None:  # fmt: skip
    retry_for(20 if gone else 0.1)
    me, you = crowd(), crowd()
    token = left(me, ttl=600)
    if gone:
        me(Lock(NAME, token=token), "release")
    lost = network.lose_answer(token, times=1 if gone else 1000)
    with pytest.raises(LockLost if gone else LockUnavailable):
        you(adopter(token, using="far"), "acquire")
    assert lost.caught.is_set()
    if gone:
        assert not client.exists(LOCK)
    else:
        eventually(lambda: flag(client) == "d")
        assert me(adopter(token), "acquire")


# -- a token that others have too -------------------------------------------------------------------------------------


def test_a_token_that_is_in_use_in_this_process_adopts_nothing_there(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if neither holds the lock yet when the other asks: one of two waits for the other."""
    limit(monkeypatch, look_every=0.1)
    losses: list[LockLost] = []
    before = Lock(NAME, ttl=300)
    before.acquire()
    people = [(crowd(), Lock(NAME, ttl=300, token=TOKEN, on_lost=losses.append)) for _ in range(2)]
    asked = [me.start(lock, "acquire", blocking_timeout=GENEROUS) for me, lock in people]
    eventually(lambda: queued(client) == 2)
    before.release()
    eventually(lambda: any(future.done() for future in asked))
    first = [future.done() for future in asked].index(True)
    looks = count(client, "evalsha")
    eventually(lambda: count(client, "evalsha") >= looks + 5)
    assert not asked[1 - first].done()
    me, lock = people[first]
    assert me(lock, "owned")
    me(lock, "release")
    assert asked[1 - first].result(GENEROUS)
    assert losses == []


def test_a_lock_that_is_being_released_is_not_adopted(crowd: Crowd, network: Proxy, eventually: Eventually) -> None:
    me, you = crowd(), crowd()
    lock, second = Lock(NAME, token=TOKEN, using="far"), Lock(NAME, token=TOKEN, using="far")
    me(lock, "acquire")
    held = network.hold_request(RELEASE)
    releasing = me.start(lock, "release")
    eventually(held.caught.is_set)
    assert not you(second, "acquire", blocking=False)
    held.let_go()
    releasing.result(GENEROUS)
    assert you(second, "acquire", blocking=False)


def test_a_holder_that_acquires_its_lock_again_with_the_same_token_enters_once_more(
    crowd: Crowd, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    again = Lock(NAME, token=me.read(lambda: lock.token))
    assert me(again, "acquire")
    assert me.read(lambda: again.fence == lock.fence)
    me(again, "release")
    assert me(lock, "owned")
    me(lock, "release")
    assert holder(client) == ""


def test_a_token_that_is_no_longer_in_use_in_this_process_adopts_its_lock_whenever_the_subscription_is_made(
    crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request sent before the subscription, which Redis runs after it, seems to come from another process."""
    limit(monkeypatch, listening_within=0.0)
    with Lock("warm-up"):
        pass  # Redis knows the scripts
    client.set(LOCK, f"{'i' * 22} {own_channel('far')} c 1 1 {TOKEN} me", px=30_000)
    you, again = crowd(), Lock(NAME, token=TOKEN, using="far")
    held = network.hold_request(ACQUIRE)
    acquiring = you.start(again, "acquire", blocking=False)
    eventually(held.caught.is_set)
    eventually(lambda: hears("far"))
    held.let_go()
    assert acquiring.result(GENEROUS)
    you(again, "release")
    assert holder(client) == ""


def test_a_release_by_token_that_finds_the_lock_gone_says_so(
    crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    """It vanished between reading its holder and releasing it."""
    me, you = crowd(), crowd()
    me(Lock(NAME, token=TOKEN), "acquire")
    you(Block(Lock("warm-up", using="far")), "run")
    held = network.hold_request(RELEASE)
    releasing = you.start(Lock(NAME, token=TOKEN, using="far"), "release")
    eventually(held.caught.is_set)
    client.delete(LOCK)
    held.let_go()
    with pytest.raises(LockNotOwned):
        releasing.result(GENEROUS)


# -- whose holder seems dead ------------------------------------------------------------------------------------------

HOLDS = """
from tests.inside import hears
lock = Lock(name, ttl=60, token=token, poll=polls, on_lost=lambda error: say("lost", error.reason))
say("acquired", lock.acquire(blocking=False))
while not (polls or hears()):
    time.sleep(0.01)
say("listens")
hear()
try:
    lock.release()
    say("released")
except LockLost as error:
    say("refused")
hear()
"""


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("polls", [False, True])
def test_a_holder_that_polls_is_not_considered_dead(polls: bool, crowd: Crowd, start: Callable[..., Any]) -> None:
    """It is not subscribed, so nobody can tell: only locks that it has detached are adopted."""
    worker = start(HOLDS, name=NAME, token=TOKEN, polls=True)
    worker.expect("listens")
    assert crowd()(Lock(NAME, token=TOKEN, poll=polls), "acquire", blocking=False) is False
    worker.tell()
    worker.expect("released")


def test_a_holder_whose_lock_was_adopted_while_it_seemed_dead_has_lost_it(
    start: Callable[..., Any], client: redis.Redis, eventually: Eventually
) -> None:
    worker = start(HOLDS, name=NAME, token=TOKEN, polls=False)
    worker.expect("listens")
    lock = Lock(NAME, token=TOKEN)
    assert not lock.acquire(blocking=False)
    worker.signal(signal.SIGSTOP)
    client.client_kill_filter(_type="pubsub", skipme=True)  # as if it were cut off
    eventually(lambda: lock.acquire(blocking=False))
    worker.signal(signal.SIGCONT)
    assert " ".join(worker.expect("lost")) == WAS_ADOPTED
    worker.tell()
    worker.expect("refused")
    assert lock.owned()
    lock.release()
    assert holder(client) == ""


def test_a_release_in_the_background_leaves_the_lock_to_its_adopter(
    crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    def section() -> None:
        network.cut()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        crowd()(Block(Lock(NAME, using="far"), section), "run")
    # as another process with the token would
    id, _, flag, fence, since, _, *owner = value(client)
    client.set(LOCK, " ".join(["id-of-another-attempt", "-", flag, fence, since, id, *owner]), px=30_000)
    network.mend()
    eventually(lambda: not pending_releases())
    assert holder(client) == "id-of-another-attempt"
