"""Cancelled at whichever await, a coroutine leaves nothing behind: no lock, no place in the queue, nobody who waits.

A lease of a handoff lasts 100 s here and no look comes by the clock: what goes on, goes on because it was passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import pytest
import redis
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import path
from redis.backoff import ConstantBackoff

from django_redislock import (
    FairLock,
    Lock,
    LockUnavailable,
    lock_acquired,
    lock_released,
    locked,
    locked_view,
    scripts,
)
from django_redislock.connection import get_backend
from django_redislock.listener import TaskWaiter, get_listener
from django_redislock.steps import Call, Execute, ExecuteMany, Park, Pause, Tell, Work
from django_redislock.watchdog import Farewell, watchdog
from redisserver import RedisServer

from .actors import GENEROUS, KEYS, NAME, Other, holder, queued
from .proxy import Proxy, proxy

T = TypeVar("T")
Settings = Any  # its type has another name in each pytest-django
TTL = 300
RELEASE = scripts._RELEASE.sha

ROUNDS = int(os.environ.get("REDISLOCK_TEST_ROUNDS", "2000"))
SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0")) or random.SystemRandom().getrandbits(32)


@pytest.fixture(params=[Lock, FairLock])
def kind(request: pytest.FixtureRequest) -> type[Lock]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _no_look_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redislock.listener.LOOK_EVERY", 1000.0)


@pytest.fixture(autouse=True)
def _listening(settings: Settings) -> None:
    """Whoever queues does so at once; and no test meets what another one has left over."""
    settings.CACHES = {**settings.CACHES}
    listener = get_listener(get_backend())
    listener.start()
    until(lambda: listener.ready)


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request lets other callbacks of the loop run before it begins and after it has ended."""
    for request in (Call, Execute, ExecuteMany, Park, Pause, Tell, Work):
        monkeypatch.setattr(request, "arun", gated(request.arun))


def gated(arun: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def between_gates(request: object) -> Any:
        await asyncio.sleep(0)
        answer = await arun(request)
        await asyncio.sleep(0)
        return answer

    return between_gates


def until(condition: Callable[[], Any]) -> None:
    """Wait for a state, in a thread."""
    deadline = monotonic() + GENEROUS
    while not condition():
        assert monotonic() < deadline
        threading.Event().wait(0.001)


async def auntil(condition: Callable[[], Any]) -> None:
    """Wait for a state, in a coroutine."""
    deadline = monotonic() + GENEROUS
    while not condition():
        assert monotonic() < deadline
        await asyncio.sleep(0.001)


async def auntil_done_or(task: asyncio.Task[Any], condition: Callable[[], Any]) -> None:
    await auntil(lambda: task.done() or condition())


def parked() -> bool:
    """Whether a coroutine sleeps until it is told."""
    return any(isinstance(one, TaskWaiter) and one._parked for one in get_listener(get_backend()).waiters.values())


# -- what may be left over ---------------------------------------------------------------------------------------------


def expires_by_itself(client: redis.Redis, key: Any) -> bool:
    """The last fence stays for good; a token that is gone and the trace of a handoff (``!``) hold up nobody."""
    kind = key.split(b":")[1]
    trace = kind == b"waiters" and client.hkeys(key) in ([], [b"!"])
    return kind == b"fence" or ((trace or kind == b"gone") and client.pttl(key) != -1)


def leftovers(client: redis.Redis) -> dict[str, Any]:
    """What Redis, the listener, the watchdog and the event loop keep of those who are gone."""
    listener = get_listener(get_backend())
    known = {
        "keys": [key for key in client.keys("redislock{0}:*") if not expires_by_itself(client, key)],
        "waiters": dict(listener.waiters),
        "groups": dict(listener._groups),
        "tasks that wait": listener._tasks,
        "leases": dict(watchdog._leases),
        "farewells": [task for _, _, task in list(watchdog._agenda) if isinstance(task, Farewell)],
    }
    connections = get_backend()._loops.get(asyncio.get_running_loop()) if asyncio._get_running_loop() else None
    if connections is not None:
        known["tasks"] = asyncio.all_tasks() - {asyncio.current_task()}
        known["missing permits"] = get_backend()._bound - connections._permits
        known["connections beyond the bound"] = max(0, len(connections._idle) - get_backend()._bound)
    return {what: found for what, found in known.items() if found}


async def nothing_left(client: redis.Redis) -> None:
    deadline = monotonic() + GENEROUS
    while (found := leftovers(client)) and monotonic() < deadline:
        await asyncio.sleep(0.001)
    assert found == {}


# -- at every await ----------------------------------------------------------------------------------------------------


class Interrupted(Awaitable[T]):
    """Await ``coroutine`` and cancel the task that does so the ``at``-th time that it is suspended.

    ``late``: not while it waits, but when that for which it waits has come and the task has not yet been resumed.
    ``again``: and each time that it is suspended after that.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], at: int, *, late: bool = False, again: bool = False) -> None:
        self.coroutine = coroutine
        self.at = at
        self.late = late
        self.again = again
        self.suspended = 0

    def __await__(self) -> Generator[Any, Any, T]:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        inner = self.coroutine.__await__()
        resume = partial(inner.send, None)
        while True:
            try:
                awaited = resume()
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.suspended += 1
            if self.suspended == self.at or (self.again and self.suspended > self.at):
                if self.late and awaited is not None:
                    # called before the callback that resumes the task, which the task has yet to add
                    awaited.add_done_callback(lambda _: task.cancel())
                else:
                    loop.call_soon(task.cancel)
            try:
                yield awaited
            except BaseException as error:
                resume = partial(inner.throw, error)
            else:
                resume = partial(inner.send, None)


async def nothing(lock: Lock) -> None:
    pass


async def take(lock: Lock) -> None:
    await lock.aacquire()


async def acquire(lock: Lock) -> None:
    assert await lock.aacquire()


async def try_once(lock: Lock) -> None:
    await lock.aacquire(blocking=False)


async def wait_a_little(lock: Lock) -> None:
    await lock.aacquire(blocking_timeout=0.02)


async def release(lock: Lock) -> None:
    await lock.arelease()


async def extend(lock: Lock) -> None:
    await lock.aextend(5)


async def detach(lock: Lock) -> None:
    await type(lock)(lock.name, token=await lock.adetach()).arelease()


async def section(lock: Lock) -> None:
    async with lock:
        await asyncio.sleep(0)


async def seize(lock: Lock) -> None:
    await lock.aseize()


async def nested(lock: Lock) -> None:
    async with lock, type(lock)(lock.name, reentrant=True, ttl=TTL), type(lock)("another", ttl=TTL):
        await asyncio.sleep(0)


async def failing_section(lock: Lock) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with lock:
            await asyncio.sleep(0)
            raise ZeroDivisionError


async def decorated(lock: Lock) -> None:
    @locked(lock.name, fair=isinstance(lock, FairLock), ttl=TTL)
    async def function() -> None:
        await asyncio.sleep(0)

    await function()


Operation = Callable[[Lock], Coroutine[Any, Any, None]]
ALONE: dict[str, tuple[Operation, Operation, bool]] = {  # before, what is interrupted, whether the lock is kept then
    "acquire": (nothing, acquire, False),
    "try once": (nothing, try_once, False),
    "seize": (nothing, seize, False),
    "release": (acquire, release, False),
    "extend": (acquire, extend, True),
    "section": (nothing, section, False),
    "failing section": (nothing, failing_section, False),
    "nested": (nothing, nested, False),
    "decorated": (nothing, decorated, False),
}


@pytest.fixture(params=["cold", "warm", "idle"])
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """See to it that the loop has no connection, or (warm) one, or (idle) one that is looked at before it is used."""
    if request.param == "idle":
        monkeypatch.setattr("django_redislock.connection.IDLE", -1.0)

    async def connect() -> None:
        await Lock("any").alocked()
        if request.param == "cold":
            await get_backend()._loops[asyncio.get_running_loop()].drop_idle()

    return connect


async def lives_on(
    lock: Lock, before: Operation, connect: Callable[[], Awaitable[None]], interrupted: Interrupted[None], keeps: bool
) -> bool:
    """In a task of its own, do ``before`` and then what is interrupted. Whether it came to its end."""
    still_held: list[bool] = []

    async def victim() -> None:
        await before(lock)
        await connect()
        try:
            await interrupted
        finally:
            still_held.append(lock.token is not None)
            if lock.token is not None:
                await lock.arelease()

    task = asyncio.create_task(victim())
    await asyncio.wait([task])
    if task.cancelled():
        assert interrupted.suspended >= interrupted.at
        assert still_held == [keeps]
        return False
    task.result()
    assert interrupted.suspended < interrupted.at
    return True


def got_in_turn(kind: type[Lock], name: str = NAME) -> bool:
    """In a thread: wait for the lock and give it back."""
    with kind(name, ttl=TTL, blocking_timeout=GENEROUS):
        return True


Moment = pytest.mark.parametrize("moment", ["early", "late", "again and again"])


@Moment
@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("what", ALONE)
async def test_cancelled_at_any_await_nothing_is_left_of_what_meets_nobody(
    kind: type[Lock],
    what: str,
    moment: str,
    connect: Callable[[], Awaitable[None]],
    client: redis.Redis,
    other: Callable[[], Other],
) -> None:
    before, operation, keeps = ALONE[what]
    bystander = other()
    at, over = 0, False
    while not over:
        at += 1
        lock = kind(NAME, ttl=TTL)
        interrupted = Interrupted(operation(lock), at, late=moment == "late", again=moment == "again and again")
        over = await lives_on(lock, before, connect, interrupted, keeps)
        # whatever is still under way, it is not waited for
        assert await asyncio.wrap_future(bystander.start(lambda: got_in_turn(kind)))
        await nothing_left(client)
    assert at > 3


@pytest.fixture
def signals() -> Iterator[None]:
    """Receivers that take their time."""

    async def receive(**facts: object) -> None:
        await asyncio.sleep(0)

    for signal in (lock_acquired, lock_released):
        signal.connect(receive)
    yield
    for signal in (lock_acquired, lock_released):
        signal.disconnect(receive)


@Moment
@pytest.mark.usefixtures("gates", "signals")
async def test_cancelled_while_receivers_of_signals_are_told_nothing_is_left(
    kind: type[Lock], moment: str, client: redis.Redis
) -> None:
    async def connect() -> None:
        await Lock("any").alocked()

    at, over = 0, False
    while not over:
        at += 1
        lock = kind(NAME, ttl=TTL)
        interrupted = Interrupted(section(lock), at, late=moment == "late", again=moment == "again and again")
        over = await lives_on(lock, nothing, connect, interrupted, False)
        await nothing_left(client)
    assert at > 7


async def wait_too_short(lock: Lock) -> None:
    assert not await lock.aacquire(blocking_timeout=0.005)


async def poll(lock: Lock) -> None:
    async with type(lock)(lock.name, ttl=TTL, wait="poll", backoff=ConstantBackoff(0.005)):
        await asyncio.sleep(0)


async def poll_too_short(lock: Lock) -> None:
    assert not await type(lock)(lock.name, wait="poll", attempts=2, backoff=ConstantBackoff(0.005)).aacquire()


CONTENDED: dict[str, Operation] = {
    "acquire": acquire,
    "section": section,
    "wait too short": wait_too_short,
    "poll": poll,
    "poll too short": poll_too_short,
}


@Moment
@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("waited", [False, True], ids=["just came", "waited for long"])
@pytest.mark.parametrize("what", CONTENDED)
async def test_cancelled_at_any_await_a_waiter_keeps_the_lock_from_nobody_behind_it(
    kind: type[Lock],
    what: str,
    waited: bool,
    moment: str,
    connect: Callable[[], Awaitable[None]],
    client: redis.Redis,
    other: Callable[[], Other],
) -> None:
    # the early ones are handed the lock when it is released if it is a FairLock, else woken; the late ones handed it
    operation = CONTENDED[what]
    first, behind = other(), other()
    at, over = 0, False
    while not over:
        at += 1
        held, lock = kind(NAME, ttl=TTL), kind(NAME, ttl=TTL)
        first(held.acquire)
        interrupted = Interrupted(operation(lock), at, late=moment == "late", again=moment == "again and again")
        waiting = asyncio.create_task(lives_on(lock, nothing, connect, interrupted, False))
        await auntil_done_or(waiting, lambda: parked() or (operation in (poll, poll_too_short) and queued(client)))
        bystander = behind.start(lambda: got_in_turn(kind))
        if operation in (wait_too_short, poll_too_short):
            await asyncio.wait([waiting])
        else:
            await auntil_done_or(waiting, lambda: queued(client) == 2)
        if waited:
            age_queue(client)
        first(held.release)
        over = await waiting
        assert await asyncio.wrap_future(bystander)
        await nothing_left(client)
    assert at > 5


def age_queue(client: redis.Redis) -> None:
    """As if all had waited for a second more."""
    for token in list(get_listener(get_backend()).waiters):
        if client.zscore(KEYS.queue, token) is not None:
            client.zincrby(KEYS.queue, -1e6, token)


@Moment
@pytest.mark.usefixtures("gates")
async def test_cancelled_at_any_await_the_first_waiter_of_a_process_leaves_nothing(
    kind: type[Lock], moment: str, client: redis.Redis, other: Callable[[], Other], settings: Settings
) -> None:
    async def connect() -> None:
        settings.CACHES = {**settings.CACHES}  # nothing is connected, and nothing listens

    first, behind = other(), other()
    at, over = 0, False
    while not over:
        at += 1
        held, lock = kind(NAME, ttl=TTL), kind(NAME, ttl=TTL)
        first(held.acquire)
        interrupted = Interrupted(acquire(lock), at, late=moment == "late", again=moment == "again and again")
        waiting = asyncio.create_task(lives_on(lock, nothing, connect, interrupted, False))
        await auntil_done_or(waiting, parked)
        first(held.release)
        over = await waiting
        assert await asyncio.wrap_future(behind.start(lambda: got_in_turn(kind)))
        await nothing_left(client)
    assert at > 10


@pytest.fixture
def one_connection(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """For each event loop."""
    monkeypatch.setattr("django_redislock.connection.MAX_CONNECTIONS", 1)
    settings.CACHES = {**settings.CACHES}


@Moment
@pytest.mark.usefixtures("one_connection", "gates")
@pytest.mark.parametrize(
    ("what", "in_time"), [("acquire", True), ("release", True), ("acquire", False)], ids=lambda value: str(value)
)
async def test_cancelled_while_it_waits_for_a_connection_a_coroutine_takes_none_from_the_others(
    what: str,
    moment: str,
    in_time: bool,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    retry_for: Callable[[float], None],
) -> None:
    retry_for(0.0)
    if not in_time:
        monkeypatch.setattr("django_redislock.connection.WAIT_FOR_CONNECTION", 0.005)
    before, operation, keeps = ALONE[what]
    await get_backend().aexecute(("PING",))
    connections = get_backend()._loops[asyncio.get_running_loop()]
    at, over = 0, False
    while not over:
        at += 1
        lock = Lock(NAME, ttl=TTL)
        occupied: list[asyncio.Task[Any]] = []

        async def occupy(occupied: list[asyncio.Task[Any]] = occupied) -> None:
            occupied.append(asyncio.create_task(get_backend().aexecute(("BLPOP", "gate", GENEROUS))))
            await auntil(lambda: connections._permits == 0)

        interrupted = Interrupted(operation(lock), at, late=moment == "late", again=moment == "again and again")
        waiting = asyncio.create_task(lives_on(lock, before, occupy, interrupted, keeps))
        await auntil_done_or(waiting, lambda: any(connections._queues))
        if in_time:
            client.rpush("gate", "open")
        try:
            over = await waiting
        except LockUnavailable:
            assert not in_time
            over = True
        if not in_time:
            client.rpush("gate", "open")
        await occupied[0]
        await nothing_left(client)
    assert at > 2


@pytest.fixture
def network(server: RedisServer, settings: Settings) -> Iterator[Proxy]:
    """Between the default alias and the server."""
    with proxy(server.port) as running:
        default = {**settings.CACHES["default"], "LOCATION": running.url}
        settings.CACHES = {**settings.CACHES, "default": default}
        yield running
        settings.CACHES = {**settings.CACHES}


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_request_that_arrives_after_its_sender_was_cancelled_takes_no_lock_and_no_place(
    kind: type[Lock], blocking: bool, network: Proxy, client: redis.Redis
) -> None:
    await section(kind("any", ttl=TTL))
    late = network.hold_request(NAME)
    task = asyncio.create_task(kind(NAME, ttl=TTL, blocking=blocking).aacquire())
    await auntil(late.caught.is_set)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await auntil(lambda: client.keys("*:gone:*"))  # the farewell was faster
    late.let_go()
    await auntil(late.over.is_set)
    await nothing_left(client)


async def test_an_answer_that_arrives_after_its_reader_was_cancelled_is_read_by_nobody_else(
    kind: type[Lock], network: Proxy, client: redis.Redis
) -> None:
    await section(kind("any", ttl=TTL))
    late = network.hold_answer(NAME)
    task = asyncio.create_task(kind(NAME, ttl=TTL).aacquire())
    await auntil(late.caught.is_set)
    await auntil(lambda: holder(client))
    task.cancel()
    await asyncio.wait([task])
    late.let_go()
    for _ in range(20):
        assert await Lock("any").alocked() is False
    async with kind(NAME, ttl=TTL, blocking_timeout=GENEROUS) as lock:
        assert await lock.aowned()
    await nothing_left(client)


# -- the ways in which a coroutine ends --------------------------------------------------------------------------------


@pytest.fixture
async def busy(kind: type[Lock], other: Callable[[], Other]) -> AsyncIterator[Callable[[], None]]:
    """A thread holds the lock, until this is called."""
    thread, held = other(), kind(NAME, ttl=TTL)
    thread(held.acquire)

    def let_go() -> None:
        if held_still:
            held_still.pop()
            thread(held.release)

    held_still = [True]
    yield let_go
    let_go()


async def test_a_waiter_that_wait_for_has_given_up_leaves_nothing(
    kind: type[Lock], busy: Callable[[], None], client: redis.Redis
) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(kind(NAME).aacquire(), 0.05)
    await auntil(lambda: not queued(client))
    busy()
    await nothing_left(client)


async def test_a_lock_whose_task_ended_with_wait_for_is_not_handed_to_the_dead(
    kind: type[Lock], busy: Callable[[], None], client: redis.Redis, other: Callable[[], Other]
) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(section(kind(NAME, ttl=TTL)), 0.05)
    busy()
    assert await asyncio.wrap_future(other().start(lambda: got_in_turn(kind)))
    await nothing_left(client)


if sys.version_info >= (3, 11):

    async def test_a_waiter_under_asyncio_timeout_leaves_nothing_and_its_task_goes_on(
        kind: type[Lock], busy: Callable[[], None], client: redis.Redis
    ) -> None:
        lock = kind(NAME, ttl=TTL)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await lock.aacquire()
        await auntil(lambda: not queued(client))
        busy()
        async with asyncio.timeout(GENEROUS), lock:
            assert holder(client) == lock.token
        await nothing_left(client)

    async def test_a_section_that_asyncio_timeout_ends_gives_its_lock_back(
        kind: type[Lock], client: redis.Redis
    ) -> None:
        lock = kind(NAME, ttl=TTL)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), lock:
                await asyncio.sleep(GENEROUS)
        assert holder(client) == ""
        await nothing_left(client)

    async def test_when_one_task_of_a_group_fails_the_others_leave_their_locks_and_their_places(
        kind: type[Lock], client: redis.Redis
    ) -> None:
        async def fail() -> None:
            await auntil(lambda: queued(client) == 3)
            raise ZeroDivisionError

        async def together() -> None:
            async with asyncio.TaskGroup() as group:
                holders.extend(group.create_task(hold(kind(NAME, ttl=TTL))) for _ in range(4))
                group.create_task(fail())

        holders: list[asyncio.Task[None]] = []
        with pytest.raises(Exception, match="TaskGroup"):
            await together()
        assert all(task.cancelled() for task in holders)
        await nothing_left(client)


async def hold(lock: Lock) -> None:
    async with lock:
        await asyncio.sleep(GENEROUS)


async def test_what_gather_leaves_behind_when_one_fails_can_be_cancelled_and_leaves_nothing(
    kind: type[Lock], client: redis.Redis
) -> None:
    async def fail() -> None:
        await auntil(lambda: queued(client) == 2)
        raise ZeroDivisionError

    holders = [asyncio.create_task(hold(kind(NAME, ttl=TTL))) for _ in range(3)]
    with pytest.raises(ZeroDivisionError):
        await asyncio.gather(fail(), *holders)
    for task in holders:
        task.cancel()
    await asyncio.wait(holders)
    await nothing_left(client)


# a request whose client goes away


async def plain_view(request: HttpRequest) -> HttpResponse:
    async with FairLock(NAME, ttl=TTL):
        await asyncio.sleep(GENEROUS)
        return HttpResponse()


@locked_view(NAME, fair=True, ttl=TTL, blocking_timeout=GENEROUS)
async def decorated_view(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(GENEROUS)
    return HttpResponse()


urlpatterns = [path("plain", plain_view), path("decorated", decorated_view)]


async def ask(path: str, gone: asyncio.Event) -> list[Mapping[str, Any]]:
    """Serve a request whose client disconnects as soon as ``gone`` is set; answers what was sent."""
    body = [{"type": "http.request"}]
    sent: list[Mapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await ASGIHandler()(scope, receive, send)
    return sent


@pytest.mark.parametrize("view", ["/plain", "/decorated"])
async def test_a_client_that_goes_away_while_its_request_waits_leaves_no_place_in_the_queue(
    view: str, client: redis.Redis, other: Callable[[], Other], settings: Settings
) -> None:
    settings.ROOT_URLCONF = __name__
    gone, thread, held = asyncio.Event(), other(), FairLock(NAME, ttl=TTL)
    thread(held.acquire)
    request = asyncio.create_task(ask(view, gone))
    await auntil(lambda: queued(client))
    behind = other().start(lambda: got_in_turn(FairLock))
    await auntil(lambda: queued(client) == 2)
    gone.set()
    assert await request == []
    thread(held.release)
    assert await asyncio.wrap_future(behind)
    await nothing_left(client)


@pytest.mark.parametrize("view", ["/plain", "/decorated"])
async def test_a_client_that_goes_away_in_the_section_frees_the_lock(
    view: str, client: redis.Redis, other: Callable[[], Other], settings: Settings
) -> None:
    settings.ROOT_URLCONF = __name__
    gone = asyncio.Event()
    request = asyncio.create_task(ask(view, gone))
    await auntil(lambda: holder(client))
    behind = other().start(lambda: got_in_turn(FairLock))
    await auntil(lambda: queued(client))
    gone.set()
    assert await request == []
    assert await asyncio.wrap_future(behind)
    await nothing_left(client)


# -- coroutines that are closed, forgotten, or left by their loop ------------------------------------------------------


class Closed(Exception):
    """The coroutine was closed half way."""


class Closing(Interrupted[T]):
    """Close the coroutine instead, at once: it sees a GeneratorExit and can await nothing any more."""

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self.coroutine.__await__()
        while True:
            try:
                awaited = inner.send(None)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.suspended += 1
            if self.suspended == self.at:
                if awaited is not None:
                    awaited._asyncio_future_blocking = False
                    awaited.cancel()  # else the loop would watch a socket that is closed
                self.coroutine.close()
                raise Closed
            yield awaited


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("what", ["acquire", "release", "section", "failing section", "decorated"])
async def test_closed_at_any_await_nothing_is_left_of_what_meets_nobody(
    kind: type[Lock],
    what: str,
    connect: Callable[[], Awaitable[None]],
    client: redis.Redis,
    other: Callable[[], Other],
) -> None:
    before, operation, _ = ALONE[what]
    bystander = other()
    at, over = 0, False
    while not over:
        at += 1
        lock = kind(NAME, ttl=TTL)
        await before(lock)
        await connect()
        try:
            await Closing(operation(lock), at)
        except Closed:
            assert lock.token is None
        else:
            over = True
            if lock.token is not None:
                await lock.arelease()
        assert await asyncio.wrap_future(bystander.start(lambda: got_in_turn(kind)))
        await nothing_left(client)
    assert at > 3


@pytest.mark.usefixtures("gates")
async def test_closed_at_any_await_a_waiter_keeps_the_lock_from_nobody_behind_it(
    kind: type[Lock], connect: Callable[[], Awaitable[None]], client: redis.Redis, other: Callable[[], Other]
) -> None:
    first, behind = other(), other()
    at, over = 0, False
    while not over:
        at += 1
        held, lock = kind(NAME, ttl=TTL), kind(NAME, ttl=TTL)
        first(held.acquire)
        await connect()

        async def wait(lock: Lock = lock, at: int = at) -> bool:
            try:
                await Closing(section(lock), at)
            except Closed:
                return False
            return True

        waiting = asyncio.create_task(wait())
        await auntil_done_or(waiting, parked)
        bystander = behind.start(lambda: got_in_turn(kind))
        await auntil_done_or(waiting, lambda: queued(client) == 2)
        first(held.release)
        over = await waiting
        assert await asyncio.wrap_future(bystander)
        await nothing_left(client)
    assert at > 5


@pytest.mark.usefixtures("one_connection")
async def test_a_coroutine_that_is_closed_while_it_waits_for_a_connection_takes_none(client: redis.Redis) -> None:
    await get_backend().aexecute(("PING",))
    connections = get_backend()._loops[asyncio.get_running_loop()]
    occupied = asyncio.create_task(get_backend().aexecute(("BLPOP", "gate", GENEROUS)))
    await auntil(lambda: connections._permits == 0)
    with pytest.raises(Closed):
        await Closing(Lock(NAME).aacquire(), 1)
    client.rpush("gate", "open")
    await occupied
    await nothing_left(client)


async def test_a_task_that_nobody_keeps_is_not_collected_while_it_waits(
    kind: type[Lock], busy: Callable[[], None], client: redis.Redis
) -> None:
    done = []

    async def wait() -> None:
        async with kind(NAME, ttl=TTL):
            done.append(True)

    asyncio.create_task(wait())  # noqa: RUF006
    await auntil(parked)
    gc.collect()
    busy()
    await auntil(lambda: done)
    await nothing_left(client)


async def test_an_asynchronous_generator_that_is_closed_within_a_section_leaves_the_lock_to_it(
    kind: type[Lock], client: redis.Redis
) -> None:
    async def items() -> AsyncIterator[int]:
        async with kind(NAME, ttl=TTL, reentrant=True):
            yield 1
            yield 2

    async with kind(NAME, ttl=TTL) as lock:
        generator = items()
        assert await generator.__anext__() == 1
        await generator.aclose()  # type: ignore[attr-defined]
        await auntil(lambda: not leftovers(client).get("farewells"))
        await lock.aextend(1)
        assert holder(client) == lock.token
    await nothing_left(client)


def test_a_generator_that_is_closed_within_a_section_leaves_the_lock_to_it(
    kind: type[Lock], client: redis.Redis
) -> None:
    def items() -> Generator[int, None, None]:
        with kind(NAME, ttl=TTL, reentrant=True):
            yield 1
            yield 2

    with kind(NAME, ttl=TTL) as lock:
        generator = items()
        assert next(generator) == 1
        generator.close()
        lock.extend(1)
        assert holder(client) == lock.token
    assert holder(client) == ""


async def forgotten(lock: Lock) -> None:
    async with lock:
        await asyncio.get_running_loop().create_future()


async def test_a_release_that_is_closed_within_another_task_leaves_that_one_its_lock(
    kind: type[Lock], network: Proxy, client: redis.Redis
) -> None:
    async def hold() -> None:
        async with lock:
            await gate

    lock, gate = kind(NAME, ttl=TTL), asyncio.get_running_loop().create_future()
    await section(kind("any", ttl=TTL))  # the script is known
    coroutine = hold()
    task = asyncio.create_task(coroutine)
    await auntil(lambda: holder(client))
    late = network.hold_answer(RELEASE)
    gate.set_result(None)
    await auntil(lambda: late.caught.is_set() and not holder(client))
    async with lock:  # through the same object
        coroutine.close()
        assert holder(client) == lock.token
    late.let_go()
    task.cancel()
    with contextlib.suppress(RuntimeError):  # it cannot go on with what was closed
        await task
    await nothing_left(client)


async def test_a_decorated_coroutine_that_is_closed_within_another_task_gives_its_own_lock_back(
    kind: type[Lock], client: redis.Redis
) -> None:
    @locked(NAME, fair=kind is FairLock, ttl=TTL)
    async def function() -> None:
        await asyncio.get_running_loop().create_future()

    coroutine = function()
    task = asyncio.create_task(coroutine)
    await auntil(lambda: holder(client))
    async with kind("another", ttl=TTL) as lock:
        coroutine.close()
        await auntil(lambda: not holder(client))
        assert holder(client, "another") == lock.token
    task.cancel()
    with contextlib.suppress(RuntimeError):
        await task
    await nothing_left(client)


def test_a_section_that_is_closed_after_its_loop_leaves_the_lock_of_the_thread_that_closes_it(
    kind: type[Lock], client: redis.Redis
) -> None:
    lock = kind(NAME, ttl=TTL)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *args: None)
    try:
        coroutine = forgotten(lock)
        task = loop.create_task(coroutine)
        loop.run_until_complete(auntil(lambda: holder(client)))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    client.delete(KEYS.lock)
    with lock:  # through the same object
        coroutine.close()
        assert holder(client) == lock.token
        until(lambda: not leftovers(client).get("farewells"))
        assert lock.owned()
    assert not task.done()


def test_what_waits_when_asyncio_run_ends_leaves_at_once(
    kind: type[Lock], client: redis.Redis, other: Callable[[], Other]
) -> None:
    first, held = other(), kind(NAME, ttl=TTL)
    first(held.acquire)
    tasks: list[asyncio.Task[None]] = []

    async def main() -> None:
        tasks.extend(asyncio.create_task(section(kind(NAME, ttl=TTL))) for _ in range(3))
        tasks.append(asyncio.create_task(hold(kind("another", ttl=TTL))))
        await auntil(lambda: queued(client) == 3 and holder(client, "another"))

    asyncio.run(main())
    assert all(task.cancelled() for task in tasks)
    until(lambda: not queued(client) and not holder(client, "another"))
    first(held.release)
    until(lambda: not leftovers(client))
    assert not get_backend()._loops


def test_a_loop_that_stood_still_goes_on_with_the_lock_that_it_was_handed(
    kind: type[Lock], client: redis.Redis, other: Callable[[], Other]
) -> None:
    first, held = other(), kind(NAME, ttl=TTL)
    first(held.acquire)

    async def wait() -> None:
        waiting = asyncio.create_task(section(kind(NAME, ttl=TTL)))
        await auntil(lambda: queued(client))
        loop.stop()
        await waiting

    loop = asyncio.new_event_loop()
    try:
        waiting = loop.create_task(wait())
        loop.run_forever()
        age_queue(client)
        first(held.release)
        until(lambda: holder(client) not in ("", held.token))
        loop.run_until_complete(asyncio.wait_for(waiting, GENEROUS))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    until(lambda: not leftovers(client))


Ending = pytest.mark.parametrize("shut_down", [True, False], ids=["shut down", "just closed"])


@Ending
@pytest.mark.parametrize("waited", [False, True], ids=["just came", "waited for long"])
def test_a_waiter_whose_loop_was_closed_keeps_the_lock_from_nobody_behind_it(
    kind: type[Lock], waited: bool, shut_down: bool, client: redis.Redis, other: Callable[[], Other]
) -> None:
    first, behind, held = other(), other(), kind(NAME, ttl=TTL)
    first(held.acquire)
    bystander = wait_in_a_loop_that_ends(kind, client, lambda: behind.start(lambda: got_in_turn(kind)), shut_down)
    until(lambda: queued(client) == (1 if shut_down else 2))
    if waited:
        age_queue(client)
    first(held.release)
    assert bystander.result(GENEROUS)
    gc.collect()
    until(lambda: not leftovers(client))


def test_a_waiter_whose_loop_was_shut_down_looks_for_nobody_any_more(
    kind: type[Lock], client: redis.Redis, other: Callable[[], Other]
) -> None:
    first, behind = other(), other()
    first(kind(NAME, ttl=1, auto_renew=False).acquire)
    # nobody is woken when a lease ends: one of them has to look
    bystander = wait_in_a_loop_that_ends(kind, client, lambda: behind.start(lambda: got_in_turn(kind)), shut_down=True)
    assert bystander.result(GENEROUS)
    until(lambda: not leftovers(client))


@pytest.mark.parametrize("closed", [False, True], ids=["stands still", "closed"])
def test_a_waiter_in_a_loop_that_does_not_run_looks_for_nobody_else(
    kind: type[Lock], closed: bool, client: redis.Redis, other: Callable[[], Other]
) -> None:
    first, behind = other(), other()
    first(kind(NAME, ttl=1, auto_renew=False).acquire)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *args: None)
    try:
        task = loop.create_task(section(kind(NAME, ttl=0.5)))
        loop.run_until_complete(auntil(lambda: queued(client)))
        if closed:
            loop.run_until_complete(get_backend()._loops[loop].drop_idle())
            loop.close()
        # nobody is woken when a lease ends
        assert behind(lambda: got_in_turn(kind))
        if not closed:
            loop.run_until_complete(task)
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    until(lambda: not queued(client) and not holder(client))


def test_a_release_that_is_closed_when_its_loop_is_gone_is_finished_in_the_background(
    kind: type[Lock], network: Proxy, client: redis.Redis
) -> None:
    async def hold() -> None:
        async with kind(NAME, ttl=TTL):
            await gate

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *args: None)
    try:
        loop.run_until_complete(section(kind("any", ttl=TTL)))  # the script is known
        gate = loop.create_future()
        coroutine = hold()
        task = loop.create_task(coroutine)
        loop.run_until_complete(auntil(lambda: holder(client)))
        late = network.hold_request(RELEASE)
        gate.set_result(None)
        loop.run_until_complete(auntil(late.caught.is_set))
    finally:
        loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its connection was left open
        coroutine.close()
        until(lambda: not holder(client))
        late.let_go()
        until(late.over.is_set)
        until(lambda: not leftovers(client))
        del loop, task, coroutine
        gc.collect()


def wait_in_a_loop_that_ends(
    kind: type[Lock], client: redis.Redis, queue_behind: Callable[[], Future[bool]], shut_down: bool
) -> Future[bool]:
    """Close an event loop in which a coroutine waits, before somebody else."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *args: None)  # it complains about the task, and rightly so
    try:
        task = loop.create_task(section(kind(NAME, ttl=TTL)))
        loop.run_until_complete(auntil(lambda: queued(client)))
        bystander = queue_behind()
        loop.run_until_complete(auntil(lambda: queued(client) == 2))
        if shut_down:
            loop.run_until_complete(loop.shutdown_asyncgens())
        else:
            loop.run_until_complete(get_backend()._loops[loop].drop_idle())
            assert not task.done()
    finally:
        loop.close()
    return bystander


# -- at random ---------------------------------------------------------------------------------------------------------


async def test_cancelled_at_random_again_and_again_nothing_is_left(client: redis.Redis) -> None:
    print(f"REDISLOCK_TEST_SEED={SEED} REDISLOCK_TEST_ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    inside: set[str] = set()
    ends = {"cancelled": 0, "done": 0}
    longest = 0.1  # seconds that a round is let alone; learned, so that a fifth is done on whichever machine

    async def use(kind: type[Lock], name: str, work: float) -> None:
        async with kind(name, ttl=TTL) as lock:
            assert name not in inside
            inside.add(name)
            try:
                if dice.random() < 0.3:
                    await lock.aextend(1)
                if work:
                    await asyncio.sleep(work)
            finally:
                inside.remove(name)

    async def play(rounds: int) -> None:
        nonlocal longest
        for _ in range(rounds):
            kind, name = dice.choice([Lock, FairLock]), dice.choice(["a", "b", "c"])
            task = asyncio.create_task(use(kind, name, dice.choice([0, 0.0005])))
            patience = longest * dice.choice([0.0, dice.random() * 0.03, dice.random() * 0.2, dice.random()])
            await asyncio.wait([task], timeout=patience)
            while not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=dice.choice([None, 0.0, 0.001]))
            ends["cancelled" if task.cancelled() else "done"] += 1
            longest = min(longest * 1.01 if task.cancelled() else longest / 1.04, GENEROUS)
            if not task.cancelled():
                task.result()

    players = 20
    await asyncio.gather(*(play(ROUNDS // players) for _ in range(players)))
    print(f"ends={ends} longest={longest:.4f}")
    assert min(ends.values()) > ROUNDS / 20
    await nothing_left(client)
    bound = get_backend()._bound
    assert len(get_backend()._loops[asyncio.get_running_loop()]._idle) <= bound
    # besides those of the loop: this one, the listener's, that of the couriers and one of threads
    await auntil(lambda: len(client.client_list()) <= bound + 4)
