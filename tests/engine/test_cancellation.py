"""A coroutine cancelled or closed at any await leaves no lock, no place in the queue and no blocked waiter behind."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import path
from redis.backoff import ConstantBackoff

from django_redislock import Lock, LockSet, locked_view
from tests import inside
from tests.helpers import cancelling
from tests.helpers.actors import GENEROUS, Other, auntil
from tests.helpers.cancelling import TTL, Operation, auntil_done_or, interrupted, lives_on, moments, nothing_left
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, holder, queued

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock", "listening")

Connect = Callable[[], Awaitable[None]]


@pytest.fixture
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Connect:
    """Give the loop a connection ("warm"), one that is checked before it is used ("idle"), none ("cold"), or no
    listener either ("new")."""
    if request.param == "idle":
        inside.limit(monkeypatch, check_idle_loops=-1.0)

    async def connect() -> None:
        if request.param == "new":
            settings.CACHES = {**settings.CACHES}
            return
        await Lock("any").alocked()
        if request.param == "cold":
            inside.drop_idle_here()

    return connect


async def try_once(lock: Lock) -> None:
    assert await lock.aacquire(blocking=False)


async def extend(lock: Lock) -> None:
    await lock.aextend(5)


DETACHED: list[str] = []


async def detach(lock: Lock) -> None:
    DETACHED.append(await lock.adetach())


async def acquire_a_set(lock: Lock) -> None:
    locks = LockSet("before", lock.name, ttl=TTL)
    assert await locks.aacquire()
    await locks.arelease()


async def section_of_a_set(lock: Lock) -> None:
    await cancelling.section(LockSet("before", lock.name, ttl=TTL))


ALONE: dict[str, tuple[Operation, Any, bool]] = {  # before, what is interrupted, whether the lock is kept then
    "acquire": (cancelling.nothing, cancelling.acquire, False),
    "try once": (cancelling.nothing, try_once, False),
    "release": (cancelling.acquire, cancelling.release, False),
    "extend": (cancelling.acquire, extend, True),
    "detach": (cancelling.acquire, detach, True),
    "section": (cancelling.nothing, cancelling.section, False),
    "decorated": (cancelling.nothing, cancelling.decorated, False),
    "acquire a set": (cancelling.nothing, acquire_a_set, False),
    "section of a set": (cancelling.nothing, section_of_a_set, False),
}


@moments
@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize(
    ("connect", "what"),
    [*(("warm", what) for what in ALONE), ("cold", "acquire"), ("idle", "acquire")],
    indirect=["connect"],
)
async def test_an_uncontended_call_interrupted_at_any_await_leaves_nothing_behind(
    what: str, moment: str, connect: Connect, client: redis.Redis, other: Callable[[], Other]
) -> None:
    before, operation, keeps = ALONE[what]
    bystander = other()
    at, over = 0, False
    while not over:
        at += 1
        lock = Lock(NAME, ttl=TTL)
        over = await lives_on(lock, before, connect, interrupted(operation(lock), at, moment), keeps)
        while DETACHED:
            await Lock(NAME, token=DETACHED.pop()).arelease()
        # whatever is still under way, it is not waited for
        assert await asyncio.wrap_future(bystander.start(cancelling.got_in_turn))
        await nothing_left(client)
    assert at > 2


@moments
@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("what", ["acquire", "release"])
async def test_a_coroutine_interrupted_while_it_waits_for_a_connection_takes_none(
    what: str, moment: str, network: Proxy, client: redis.Redis, settings: Any
) -> None:
    async def occupy() -> None:
        occupied.append(asyncio.create_task(Lock("occupied").alocked()))
        await auntil(late.caught.is_set)

    one = {"OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 1}}}
    settings.CACHES = {**settings.CACHES, "default": settings.CACHES["default"] | one}
    before, operation, keeps = ALONE[what]
    at, over, occupied = 0, False, list[Any]()
    while not over:
        at += 1
        lock, late = Lock(NAME, ttl=TTL), network.hold_answer("occupied")
        waiting = asyncio.create_task(lives_on(lock, before, occupy, interrupted(operation(lock), at, moment), keeps))
        await auntil_done_or(waiting, lambda: inside.watch_connections()()[1])
        late.let_go()
        over = await waiting
        await occupied.pop()
        await nothing_left(client)
    assert at > 2


async def poll(lock: Lock) -> None:
    async with Lock(lock.name, ttl=TTL, poll=True, backoff=ConstantBackoff(0.005)):
        await asyncio.sleep(0)


async def poll_too_short(lock: Lock) -> None:
    assert not await Lock(lock.name, poll=True, attempts=2, backoff=ConstantBackoff(0.005)).aacquire()


@moments
@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize(
    ("connect", "operation"),
    [
        ("warm", cancelling.acquire),
        ("cold", cancelling.acquire),
        ("new", cancelling.acquire),
        ("warm", cancelling.section),
        ("warm", poll),
        ("warm", poll_too_short),
        ("warm", acquire_a_set),
        ("warm", section_of_a_set),
    ],
    indirect=["connect"],
)
async def test_a_waiter_interrupted_at_any_await_blocks_nobody_behind_it(
    operation: Operation, moment: str, connect: Connect, client: redis.Redis, other: Callable[[], Other]
) -> None:
    first, behind = other(), other()
    at, over = 0, False
    while not over:
        at += 1
        held, lock = Lock(NAME, ttl=TTL), Lock(NAME, ttl=TTL)
        first(held.acquire)
        waiting = asyncio.create_task(
            lives_on(lock, cancelling.nothing, connect, interrupted(operation(lock), at, moment), False)
        )
        polls = operation in (poll, poll_too_short)
        await auntil_done_or(waiting, lambda: inside.parked() or (polls and queued(client)))  # noqa: B023
        bystander = behind.start(cancelling.got_in_turn)
        if operation is poll_too_short:
            await asyncio.wait([waiting])
        else:
            await auntil_done_or(waiting, lambda: queued(client) == 2)
        first(held.release)
        over = await waiting
        assert await asyncio.wrap_future(bystander)
        await nothing_left(client)
    assert at > 5


async def hold() -> None:
    async with Lock(NAME, ttl=TTL):
        await asyncio.sleep(GENEROUS)


async def by_wait_for(gone: asyncio.Event) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(hold(), 0.3)


async def by_a_client_that_goes_away(gone: asyncio.Event) -> None:
    body = [{"type": "http.request"}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    await ASGIHandler()(scope, receive, send)
    assert sent == []


@locked_view(NAME, ttl=TTL, blocking_timeout=GENEROUS)
async def view(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(GENEROUS)
    return HttpResponse()


urlpatterns = [path("", view)]


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "holds"])
@pytest.mark.parametrize("way", [by_wait_for, by_a_client_that_goes_away])
async def test_whoever_is_made_to_give_up_leaves_neither_lock_nor_place(
    way: Any, waits: bool, client: redis.Redis, other: Any, settings: Any
) -> None:
    settings.ROOT_URLCONF = __name__
    thread, held, behind, gone = other(), Lock(NAME, ttl=TTL), other(), asyncio.Event()
    if waits:
        thread(held.acquire)
    ending = asyncio.ensure_future(way(gone))
    await auntil_done_or(ending, lambda: queued(client) if waits else holder(client))
    bystander = behind.start(cancelling.got_in_turn)
    await auntil(lambda: bystander.done() or queued(client))
    gone.set()
    await ending
    if waits:
        assert not bystander.done()
        thread(held.release)
    assert await asyncio.wrap_future(bystander)
    await cancelling.section(Lock(NAME, ttl=TTL))  # and the task goes on
    await nothing_left(client)


async def test_who_is_cancelled_while_entering_a_block_that_another_one_leaves_gives_the_lock_back(
    network: Proxy, client: redis.Redis
) -> None:
    """The other one did not release it, as it was not the last to use it."""

    async def enter() -> None:
        async with Lock(NAME, reentrant=True):
            pass

    async with Lock(NAME, ttl=TTL, reentrant=True) as lock:
        await auntil(lambda: inside.will_hear_of(lock))  # the renewer has nothing to ask
        late = network.hold_answer(inside.RENEW)
        entering = asyncio.create_task(enter())
        await auntil(late.caught.is_set)
    assert holder(client)
    entering.cancel()
    await asyncio.wait([entering])
    late.let_go()
    assert entering.cancelled()
    await nothing_left(client)


async def test_a_block_closed_inside_another_task_does_not_release_the_lock_of_that_task(
    network: Proxy, client: redis.Redis
) -> None:
    async def hold() -> None:
        async with lock:
            await gate

    lock, gate = Lock(NAME, ttl=TTL), asyncio.get_running_loop().create_future()
    await cancelling.section(Lock("any", ttl=TTL))  # the script is known
    coroutine = hold()
    task = asyncio.create_task(coroutine)
    await auntil(lambda: holder(client))
    late = network.hold_answer(inside.RELEASE)
    gate.set_result(None)
    await auntil(lambda: late.caught.is_set() and not holder(client))
    async with lock:  # through the same object
        coroutine.close()
        assert holder(client) == lock.token
    late.let_go()
    task.cancel()
    with contextlib.suppress(RuntimeError):  # it cannot continue
        await task
    await nothing_left(client)
