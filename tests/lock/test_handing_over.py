"""Handing a lock over with ``detach()`` here and ``Lock(name, token=...)`` elsewhere, and who may use a token."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_redislock import Lock, LockLost, LockNotOwned, LockUnavailable, get_lock, locked, locked_view
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, count, fence_of, flag, holder, leftovers, queued, value
from tests.inside import ACQUIRE, RELEASE, WAS_ADOPTED, hears, limit, own_channel, pending_releases

from .blocks import Block

Eventually = Callable[..., Any]
Start = Callable[..., Worker]

# A process that runs the orders it reads on the lock, and prints the results.
WORKS = """
from tests.inside import hears
lock = Lock(name, **options, on_lost=lambda error: say("lost", error.reason))
say("ready")
while order := hear().split():
    if order[0] == "acquire":
        say("acquire", lock.acquire(blocking=False))
    elif order[0] == "release":
        try:
            lock.release()
            say("release")
        except LockNotOwned as error:
            say("refused", type(error).__name__)
    elif order[0] == "listens":
        while not hears():
            time.sleep(0.01)
        say("listens")
    else:
        say("state", lock.owned(), lock.lost)
"""


def ask(worker: Worker, order: str) -> list[str]:
    """Send an order, and return the answer without its first word."""
    worker.tell(order)
    return worker.expect(order)


def seconds_left(client: redis.Redis) -> float:
    return int(client.pttl(LOCK)) / 1000


# -- detach -----------------------------------------------------------------------------------------------------------


def test_after_detach_the_lock_is_no_longer_owned_or_renewed_here(
    crowd: Crowd, using: str, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=0.6, on_lost=losses.append, using=using)
    me(lock, "acquire")
    token = me.read(lambda: lock.token)
    assert me(lock, "detach") == token
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


def test_a_lock_that_was_entered_several_times_is_detached_for_all_of_them(crowd: Crowd, using: str) -> None:
    me, you = crowd(), crowd()
    lock, another = (Lock(NAME, reentrant=True, using=using) for _ in range(2))
    for through in (lock, another, lock):
        me(through, "acquire")
    token = me(lock, "detach")
    for through in (lock, another):
        with pytest.raises(LockNotOwned):
            me.read(through.check)
        for method in ("release", "detach"):
            with pytest.raises(LockNotOwned):
                me(through, method)
        assert me.read(lambda through=through: (through.token, through.remaining())) == (None, 0.0)
    assert me(lock, "locked")
    adopter = Lock(NAME, token=token, adopt=True, using=using)
    assert you(adopter, "acquire")
    you(adopter, "release")


@pytest.mark.parametrize("error", [None, ZeroDivisionError()], ids=["ends", "raises"])
def test_the_end_of_a_block_leaves_a_lock_that_was_detached_inside(
    crowd: Crowd, client: redis.Redis, error: Exception | None
) -> None:
    me, you = crowd(), crowd()
    outer, inner = (Lock(NAME, ttl=600, reentrant=True) for _ in range(2))
    me(outer, "enter")
    me(inner, "enter")
    token = me(inner, "detach", 60)
    for lock in (inner, outer):
        assert not me(lock, "exit", error and type(error), error, None)
    assert flag(client) == "d"
    adopter = Lock(NAME, token=token, adopt=True)
    assert you(adopter, "acquire")
    you(adopter, "release")
    assert leftovers(client) == []


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


@pytest.mark.parametrize(("ttl", "least", "most"), [(None, 90, 100), (20, 10, 20), (500, 490, 500)])
def test_a_detached_lock_stays_held_for_its_ttl_or_the_given_one(
    crowd: Crowd, ttl: float | None, least: float, most: float, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=100)
    me(lock, "acquire")
    before = count(client, "evalsha")
    me(lock, "detach", ttl)
    assert count(client, "evalsha") == before + 1
    assert least < seconds_left(client) <= most
    assert flag(client) == "d"


def test_a_lock_that_a_waiter_was_handed_and_detaches_has_its_full_ttl(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, you, lock, second = crowd(), crowd(), Lock(NAME), Lock(NAME, ttl=100)
    me(lock, "acquire")
    waiting = you.start(second, "acquire")
    detaching = you.start(second, "detach")
    eventually(lambda: queued(client))
    me(lock, "release")
    assert waiting.result(GENEROUS)
    assert detaching.result(GENEROUS)
    assert seconds_left(client) > 60  # the lease of a handoff is a third of it


@pytest.mark.parametrize("note", ["", "another"])
def test_whoever_adopts_a_detached_lock_has_its_fence_and_note_and_renews_it(
    crowd: Crowd, using: str, note: str, eventually: Eventually
) -> None:
    """A note of its own replaces the old one."""
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=1.5, using=using, note="two\nlines ")
    me(lock, "acquire")
    fence, token = me.read(lambda: lock.fence), me(lock, "detach")
    adopter = Lock(NAME, token=token, ttl=3, using=using, note=note)
    assert you(adopter, "acquire", blocking=False) is True
    assert you.read(lambda: (adopter.fence, adopter.token)) == (fence, token)
    first = get_lock(NAME, using=using)
    assert first is not None
    assert first.note == (note or "two\nlines ")
    assert first.lease_left > 2
    eventually(lambda: get_lock(NAME, using=using).expires > first.expires)  # type: ignore[union-attr]
    assert you(adopter, "owned")
    assert not you.read(lambda: adopter.lost)
    you(adopter, "release")
    assert not me(lock, "locked")


def test_a_detached_lock_is_busy_for_everybody_else(crowd: Crowd, using: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using=using)
    me(lock, "acquire")
    me(lock, "detach")
    for who, other in ((me, lock), (you, Lock(NAME, using=using)), (you, Lock(NAME, using=using, token=TOKEN))):
        assert who(other, "acquire", blocking=False) is False


# -- a token that others have too -------------------------------------------------------------------------------------


def test_a_token_that_is_in_use_in_this_process_adopts_nothing_there(crowd: Crowd, using: str) -> None:
    """Not even if neither holds the lock yet when the other asks: one of two waits for the other."""
    losses: list[LockLost] = []
    locks = [Lock(NAME, token=TOKEN, on_lost=losses.append, using=using) for _ in range(2)]
    people, fences = [crowd(), crowd()], []
    for _ in range(20):
        asked = [me.start(lock, "acquire", blocking=False) for me, lock in zip(people, locks, strict=True)]
        got = [future.result(GENEROUS) for future in asked]
        assert got.count(True) == 1
        (me, lock), (you, other) = sorted(zip(people, locks, strict=True), key=lambda _: not got.pop(0))
        assert you(other, "acquire", blocking=False) is False
        assert me(lock, "owned")
        fences.append(me.read(lambda lock=lock: lock.fence))
        me(lock, "release")
    assert fences == sorted(set(fences))
    assert losses == []


def test_a_waiter_does_not_adopt_a_lock_that_its_own_process_has_acquired_with_the_same_token(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_token_that_is_no_longer_in_use_in_this_process_adopts_its_lock(
    crowd: Crowd, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    """A caller whose release found Redis down can start again."""
    retry_for(0.1)
    me, you, lock = crowd(), crowd(), Lock(NAME, token=TOKEN)
    me(lock, "acquire")
    with own.client() as client:
        was = " ".join([holder(client), own_channel(), "c 1 1", TOKEN, "me"])
    own.stop()
    with pytest.raises(LockUnavailable):
        me(lock, "release")
    own.start()
    with own.client() as client:
        client.set(LOCK, was, px=30_000)  # as a server with persistence would still have it
        again = Lock(NAME, token=TOKEN)
        assert you(again, "acquire", blocking=False) is True
        you(again, "release")
        assert holder(client) == ""


def test_the_lock_is_adopted_even_if_the_subscription_is_made_during_the_request(
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


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("polls", [False, True])
def test_a_holder_that_polls_is_not_considered_dead(polls: bool, crowd: Crowd, start: Start) -> None:
    """It is not subscribed, so nobody can tell: only locks that it has detached are adopted."""
    worker = start(WORKS, name=NAME, options={"ttl": 60, "token": TOKEN, "poll": True})
    assert ask(worker, "acquire")[0] == "True"
    assert crowd()(Lock(NAME, token=TOKEN, poll=polls), "acquire", blocking=False) is False
    assert ask(worker, "state") == ["True", "False"]


def test_a_holder_whose_lock_was_adopted_while_it_seemed_dead_has_lost_it(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    worker = start(WORKS, name=NAME, options={"ttl": 60, "token": TOKEN})
    ask(worker, "acquire")
    ask(worker, "listens")
    lock = Lock(NAME, token=TOKEN)
    assert not lock.acquire(blocking=False)
    worker.signal(signal.SIGSTOP)
    client.client_kill_filter(_type="pubsub", skipme=True)  # as if it were cut off
    eventually(lambda: lock.acquire(blocking=False))
    worker.signal(signal.SIGCONT)
    assert " ".join(worker.expect("lost")) == WAS_ADOPTED
    worker.tell("release")
    assert worker.expect("refused")[0] == "LockLost"
    assert lock.owned()
    lock.release()
    assert holder(client) == ""


def test_a_release_in_the_background_leaves_the_lock_to_its_adopter(
    crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    def section() -> None:
        network.cut()
        raise ZeroDivisionError

    me = crowd()
    with pytest.raises(ZeroDivisionError):
        me(Block(Lock(NAME, using="far"), section), "run")
    # as another process with the token would
    id, _, flag, fence, since, _, *owner = value(client)
    client.set(LOCK, " ".join(["id-of-another-attempt", "-", flag, fence, since, id, *owner]), px=30_000)
    network.mend()
    eventually(lambda: not pending_releases())
    assert holder(client) == "id-of-another-attempt"
