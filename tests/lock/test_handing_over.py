"""Handing a lock over with ``detach()`` here and ``Lock(name, token=...)`` elsewhere, and who may use a token."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, nullcontext
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_redislock import Lock, LockLost, LockNotOwned, LockUnavailable, get_lock, locked, locked_view
from django_redislock.base.steps import Pause
from django_redislock.engine.acquiring import attempt
from django_redislock.engine.leases.lease import ADOPTED, RELEASED
from django_redislock.store import calls
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Other, server_time
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, count, fence_of, flag, holder, leftovers, queued, value
from tests.inside import lease_of, limit, listener, own_channel, pending_releases

from .blocks import Block

Eventually = Callable[..., Any]
Hears = Callable[[Any, Lock], None]
Start = Callable[..., Worker]

# A process that runs the orders it reads on the lock, and prints the results.
WORKS = """
from tests.helpers.state import fence_of
lock = Lock(name, **options, on_lost=lambda error: say("lost", error.reason))
say("ready")
while order := hear().split():
    if order[0] == "token":
        lock = Lock(name, token=order[1], **options)
    elif order[0] == "acquire":
        say("acquired", lock.acquire(blocking=False), fence_of(lock), lock.token)
    elif order[0] == "release":
        try:
            lock.release()
            say("released")
        except LockNotOwned as error:
            say("refused", type(error).__name__, error)
    elif order[0] == "listens":
        from tests.inside import listener
        while not listener().ready:
            time.sleep(0.01)
        say("listens")
    else:
        say("state", lock.owned(), lock.lost)
"""


def ask(worker: Worker, *words: str) -> list[str]:
    """Send an order, and return the answer without its first word."""
    worker.tell(" ".join(words))
    answers = {"acquire": "acquired", "release": "released", "listens": "listens", "state": "state"}
    return worker.expect(answers[words[0]])


def seconds_left(client: redis.Redis) -> float:
    return int(client.pttl(LOCK)) / 1000


def is_renewed(client: redis.Redis, eventually: Eventually) -> None:
    end = server_time(client) / 1e6 + seconds_left(client)
    eventually(lambda: server_time(client) / 1e6 + seconds_left(client) > end + 0.5)


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
    eventually(lambda: not me(lock, "locked"))  # not renewed here
    assert losses == []


@pytest.mark.parametrize("detached", [True, False])
def test_the_bearer_of_a_token_adopts_the_lock_before_extending_it(crowd: Crowd, using: str, detached: bool) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=600, using=using)
    me(lock, "acquire")
    token = me(lock, "detach") if detached else me.read(lambda: lock.token)
    bearer = Lock(NAME, token=token, using=using)
    assert you(bearer, "owned")
    adopt = r"this thread or task does not hold it\. Acquire it first: with its token, that adopts it\.$"
    for method, *arguments in (("extend", 60), ("reacquire",), ("detach",)):
        with pytest.raises(LockNotOwned, match=adopt):
            you(bearer, method, *arguments)
    for look in (bearer.check, lambda: bearer.fence):
        with pytest.raises(LockNotOwned, match=adopt):
            you.read(look)
    if detached:
        assert you(bearer, "acquire", blocking=False)
        assert you(bearer, "extend", 60)
    you(bearer, "release")
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


class Outside:
    """A block around a ``detach()`` in another one."""

    def __init__(self, way: str, error: Exception | None) -> None:
        self.lock = Lock(NAME, ttl=600, reentrant=True)
        self.error = error
        self.token = ""
        self.ways: dict[str, tuple[Callable[[], None], Callable[[], Awaitable[None]]]] = {
            "block": (self.enter, self.aenter),
            "stack": (self.stack, self.astack),
            "function": (locked(NAME, ttl=600, reentrant=True)(self.detach), self.alocked),
        }
        self.run, self.arun = self.ways[way]

    def detach(self) -> None:
        with self.lock:
            self.token = self.lock.detach(60)
        if self.error is not None:
            raise self.error

    async def adetach(self) -> None:
        async with self.lock:
            self.token = await self.lock.adetach(60)
        if self.error is not None:
            raise self.error

    def enter(self) -> None:
        with Lock(NAME, ttl=600, reentrant=True):
            self.detach()

    async def aenter(self) -> None:
        async with Lock(NAME, ttl=600, reentrant=True):
            await self.adetach()

    def stack(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(Lock(NAME, ttl=600, reentrant=True))
            self.detach()

    async def astack(self) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Lock(NAME, ttl=600, reentrant=True))
            await self.adetach()

    async def alocked(self) -> None:
        await locked(NAME, ttl=600, reentrant=True)(self.adetach)()


@pytest.mark.parametrize("error", [None, ZeroDivisionError()], ids=["ends", "raises"])
@pytest.mark.parametrize("way", ["block", "stack", "function"])
def test_the_end_of_a_block_or_function_leaves_a_lock_that_was_detached_inside(
    crowd: Crowd, client: redis.Redis, way: str, error: Exception | None
) -> None:
    me, you, outside = crowd(), crowd(), Outside(way, error)
    with nullcontext() if error is None else pytest.raises(ZeroDivisionError):
        me(outside, "run")
    assert flag(client) == "d"
    adopter = Lock(NAME, token=outside.token, adopt=True)
    assert you(adopter, "acquire")
    you(adopter, "release")
    assert leftovers(client) == []


def test_the_end_of_a_view_leaves_a_lock_that_was_detached_inside(client: redis.Redis) -> None:
    @locked_view(NAME, ttl=600, reentrant=True)
    def export(request: HttpRequest) -> HttpResponse:
        with Lock(NAME, reentrant=True) as lock:
            return HttpResponse(lock.detach(60))

    token = export(RequestFactory().get("/")).content.decode()
    assert flag(client) == "d"
    Lock(NAME, token=token).release()
    assert leftovers(client) == []


@pytest.mark.parametrize(("ttl", "least", "most"), [(None, 90, 100), (20, 10, 20), (500, 490, 500)])
def test_a_detached_lock_stays_held_for_its_ttl_or_the_given_one(
    crowd: Crowd, ttl: float | None, least: float, most: float, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=100)
    me(lock, "acquire")
    client.config_resetstat()
    me(lock, "detach", ttl)
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
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


def test_the_bearer_of_the_token_releases_a_detached_lock(crowd: Crowd, using: str) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, using=using)
    me(lock, "acquire")
    bearer = Lock(NAME, token=me(lock, "detach"), using=using)
    assert you(bearer, "owned")
    you(bearer, "release")
    assert not me(lock, "locked")
    with pytest.raises(LockNotOwned):
        you(bearer, "release")


def test_the_bearer_of_the_token_adopts_a_detached_lock_with_its_fence_and_renews_it(
    crowd: Crowd, using: str, eventually: Eventually
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=1.5, using=using)
    me(lock, "acquire")
    fence, token = me.read(lambda: lock.fence), me(lock, "detach")
    adopter = Lock(NAME, token=token, ttl=3, using=using)
    assert you(adopter, "acquire", blocking=False) is True
    assert you.read(lambda: (adopter.fence, adopter.token)) == (fence, token)
    first = get_lock(NAME, using=using)
    assert first is not None
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
    assert me(lock, "acquire", blocking=False) is False
    for options in ({}, {"token": TOKEN}):
        assert you(Lock(NAME, using=using, **options), "acquire", blocking=False) is False  # type: ignore[arg-type]


@pytest.mark.complete
@pytest.mark.parametrize("note", ["", "another"])
def test_a_detached_lock_is_adopted_in_another_process_whose_note_replaces_the_old_one(
    note: str, start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    worker = start(WORKS, name=NAME, options={"ttl": 3, "note": note})
    worker.expect("ready")
    lock = Lock(NAME, ttl=3, note="two\nlines ", on_lost=losses.append)
    lock.acquire()
    fence, token = lock.fence, lock.detach()
    worker.tell(f"token {token}")
    assert ask(worker, "acquire") == ["True", str(fence), token]
    is_renewed(client, eventually)
    info = get_lock(NAME)
    assert info is not None
    assert (info.note, info.fence) == (note or "two\nlines ", fence)
    assert f":{worker.pid}:" in info.owner
    assert ask(worker, "state") == ["True", "False"]
    ask(worker, "release")
    assert leftovers(client) == []
    assert losses == []


# -- a token that others have too -------------------------------------------------------------------------------------


def test_a_token_that_is_in_use_in_this_process_adopts_nothing_there(
    crowd: Crowd, using: str, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    me, you = crowd(), crowd()
    lock, second = (Lock(NAME, token=TOKEN, on_lost=losses.append, using=using) for _ in range(2))
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    assert you(second, "acquire", blocking=False) is False
    assert me(lock, "owned")
    me(lock, "release")
    assert you(second, "acquire", blocking=False) is True
    assert you.read(lambda: second.fence) > fence
    assert losses == []


def test_of_two_callers_with_one_token_in_one_process_one_waits_for_the_other(crowd: Crowd, using: str) -> None:
    """Neither holds the lock yet when the other asks."""
    losses: list[LockLost] = []
    locks = [Lock(NAME, token=TOKEN, on_lost=losses.append, using=using) for _ in range(2)]
    people = [crowd(), crowd()]
    for _ in range(20):
        asked = [me.start(lock, "acquire", blocking=False) for me, lock in zip(people, locks, strict=True)]
        got = [future.result(GENEROUS) for future in asked]
        assert got.count(True) == 1
        first = got.index(True)
        assert people[first](locks[first], "owned")
        people[first](locks[first], "release")
    assert losses == []


def test_a_waiter_does_not_adopt_a_lock_that_its_own_process_has_acquired_with_the_same_token(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.1)
    losses: list[LockLost] = []
    before = Lock(NAME, ttl=300)
    before.acquire()
    people = [crowd(), crowd()]
    locks = [Lock(NAME, ttl=300, token=TOKEN, on_lost=losses.append) for _ in range(2)]
    asked = [me.start(lock, "acquire", blocking_timeout=GENEROUS) for me, lock in zip(people, locks, strict=True)]
    eventually(lambda: queued(client) == 2)
    before.release()
    eventually(lambda: any(future.done() for future in asked))
    first = [future.done() for future in asked].index(True)
    looks = count(client, "evalsha")
    eventually(lambda: count(client, "evalsha") >= looks + 5)
    assert not asked[1 - first].done()
    assert people[first](locks[first], "owned")
    people[first](locks[first], "release")
    assert asked[1 - first].result(GENEROUS)
    assert losses == []


def test_a_lock_that_is_being_released_is_not_adopted(
    crowd: Crowd, other: Callable[[], Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    me, you = crowd(), other()
    lock, second = Lock(NAME, token=TOKEN), Lock(NAME, token=TOKEN)
    me(lock, "acquire")
    release, adopted = calls.release, []

    def slow(*args: Any, **options: Any) -> Any:
        adopted.append(you(lambda: second.acquire(blocking=False)))
        return (yield from release(*args, **options))

    with monkeypatch.context() as patch:
        patch.setattr(calls, "release", slow)
        me(lock, "release")
    assert adopted == [False]
    assert you(lambda: second.acquire(blocking=False))


def test_a_process_without_messages_does_not_adopt_the_lock_of_another_such_process(start: Start) -> None:
    """Nobody can find out whether the holder is alive."""
    first, second = (start(WORKS, name=NAME, options={"ttl": 60, "token": TOKEN, "poll": True}) for _ in range(2))
    assert ask(first, "acquire")[0] == "True"
    assert ask(second, "acquire")[0] == "False"
    assert ask(first, "state") == ["True", "False"]


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
    own.stop()
    with pytest.raises(LockUnavailable):
        me(lock, "release")
    own.start()
    with own.client() as client:  # as a server with persistence would still have it
        client.set(LOCK, f"{me.read(lambda: lease_of(lock).id)} {own_channel()} c 1 1 {TOKEN} me", px=30_000)
        again = Lock(NAME, token=TOKEN)
        assert you(again, "acquire", blocking=False) is True
        you(again, "release")
        assert holder(client) == ""


def test_the_lock_is_adopted_even_if_the_subscription_is_made_during_the_request(
    crowd: Crowd, own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request sent before the subscription, which Redis runs after it, seems to come from another process."""
    you, again = crowd(), Lock(NAME, token=TOKEN)
    acquire, listened = calls.acquire, []

    def late(request: inside.Request, *args: Any, **options: Any) -> Any:
        while not listener().ready:
            yield Pause(0.01)
        listened.append(request.listens)
        return (yield from acquire(request, *args, **options))

    with own.client() as client:
        client.set(LOCK, f"{'i' * 22} {own_channel()} c 1 1 {TOKEN} me", px=30_000)
        monkeypatch.setattr(attempt, "LISTENING_WITHIN", 0.0)
        monkeypatch.setattr(calls, "acquire", late)
        assert you(again, "acquire", blocking=False)
        assert listened[0] is False
        you(again, "release")
        assert holder(client) == ""


@pytest.mark.complete
def test_a_restarted_process_adopts_its_own_lock(start: Start, client: redis.Redis, eventually: Eventually) -> None:
    first, again = (start(WORKS, name=NAME, options={"ttl": 3, "token": TOKEN}) for _ in range(2))
    again.expect("ready")
    _, fence, _ = ask(first, "acquire")
    ask(first, "listens")
    assert ask(again, "acquire")[0] == "False"  # the first process is alive
    first.kill()
    eventually(lambda: len(client.pubsub_channels("*wake:*")) <= 1)
    acquired, new_fence, token = ask(again, "acquire")
    assert (acquired, token) == ("True", TOKEN)
    assert int(new_fence) > int(fence)  # if the first process is alive after all, its writes can be told apart
    is_renewed(client, eventually)
    assert ask(again, "state") == ["True", "False"]
    ask(again, "release")
    assert holder(client) == ""


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
    assert " ".join(worker.expect("lost")) == ADOPTED
    worker.tell("release")
    assert worker.expect("refused")[0] == "LockLost"
    assert lock.owned()
    lock.release()
    assert holder(client) == ""


def test_a_holder_that_polls_is_not_considered_dead(crowd: Crowd, start: Start) -> None:
    """It is not subscribed, so nobody can tell: only locks that it has detached are adopted."""
    worker = start(WORKS, name=NAME, options={"ttl": 60, "token": TOKEN, "poll": True})
    ask(worker, "acquire")
    assert crowd()(Lock(NAME, token=TOKEN), "acquire", blocking=False) is False
    assert ask(worker, "state") == ["True", "False"]


@pytest.mark.complete
def test_a_lock_that_is_held_elsewhere_can_be_released_with_its_token_and_its_holder_is_told(
    crowd: Crowd, start: Start, client: redis.Redis
) -> None:
    worker = start(WORKS, name=NAME, options={"token": TOKEN})
    ask(worker, "acquire")
    ask(worker, "listens")
    crowd()(Lock(NAME, token=TOKEN), "release")
    assert holder(client) == ""
    assert " ".join(worker.expect("lost")) == RELEASED
    worker.tell("release")
    assert worker.expect("refused")[0] == "LockLost"


# -- what a former holder has still on its way ------------------------------------------------------------------------


def adopt_elsewhere(client: redis.Redis) -> str:
    """Adopt the lock as another process with the token would; return the id of that attempt."""
    id, _, flag, fence, since, token, *owner = value(client)
    token = id if token == "-" else token
    client.set(LOCK, " ".join(["an-id-of-another-attempt", "-", flag, fence, since, token, *owner]), px=30_000)
    return holder(client)


def test_the_release_of_a_former_holder_leaves_the_lock_to_its_adopter(crowd: Crowd, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    adopter = adopt_elsewhere(client)
    with pytest.raises(LockLost):
        me(lock, "release")
    assert me.read(lambda: lock.token) is None
    assert holder(client) == adopter


def test_a_renewal_reports_that_the_lock_was_adopted_elsewhere(
    crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=3, on_lost=losses.append)
    me(lock, "acquire")
    adopter = adopt_elsewhere(client)
    eventually(lambda: losses)
    assert losses[0].reason == ADOPTED
    with pytest.raises(LockLost, match="adopted it elsewhere"):
        me(lock, "extend", 1)
    assert holder(client) == adopter


def test_a_release_in_the_background_leaves_the_lock_to_its_adopter(
    crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    def section() -> None:
        network.cut()
        raise ZeroDivisionError

    me = crowd()
    with pytest.raises(ZeroDivisionError):
        me(Block(Lock(NAME, using="far"), section), "run")
    adopter = adopt_elsewhere(client)
    network.mend()
    eventually(lambda: not pending_releases())
    assert holder(client) == adopter


def test_a_release_by_token_that_finds_the_lock_gone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It vanished between reading its holder and releasing it."""

    def too_late(*args: Any, **options: Any) -> Any:
        yield from ()
        return calls.Released(inside.NOT_HELD, False)

    holder = Lock(NAME)
    holder.acquire()
    token = holder.token
    monkeypatch.setattr(calls, "release", too_late)
    with ThreadPoolExecutor(1) as thread, pytest.raises(LockNotOwned):
        thread.submit(Lock(NAME, token=token).release).result()
