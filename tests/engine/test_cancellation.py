"""A coroutine cancelled or closed at any await leaves nothing behind: no lock, no place in the queue, no blocked
waiter."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import Lock
from tests import inside
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.cancelling import (
    TTL,
    Closing,
    Interrupted,
    Operation,
    acquire,
    auntil,
    auntil_done_or,
    decorated,
    failing_section,
    got_in_turn,
    lives_on,
    nothing,
    nothing_left,
    release,
    section,
)
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, queued
from tests.inside import idle_here, limit, most_connections, parked

pytestmark = pytest.mark.usefixtures("no_look_by_the_clock", "listening")

Connect = Callable[[], Awaitable[None]]

ROUNDS = int(os.environ.get("REDISLOCK_TEST_ROUNDS", "600"))
SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0")) or random.SystemRandom().getrandbits(32)

moments = pytest.mark.parametrize("moment", ["early", "late", "again and again", "closed"])


def interrupted(operation: Operation, lock: Lock, at: int, moment: str) -> Interrupted[None]:
    if moment == "closed":
        return Closing(operation(lock), at)
    return Interrupted(operation(lock), at, late=moment == "late", again=moment == "again and again")


@pytest.fixture(params=["cold", "warm", "idle"])
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Give the loop no connection, or (warm) one, or (idle) one that is checked before it is used."""
    if request.param == "idle":
        limit(monkeypatch, check_idle_loops=-1.0)

    async def connect() -> None:
        await warm()
        if request.param == "cold":
            inside.drop_idle_here()

    return connect


async def warm() -> None:
    await Lock("any").alocked()


async def try_once(lock: Lock) -> None:
    await lock.aacquire(blocking=False)


async def extend(lock: Lock) -> None:
    await lock.aextend(5)


async def seize(lock: Lock) -> None:
    await lock.aseize()


async def nested(lock: Lock) -> None:
    async with lock, Lock(lock.name, reentrant=True, ttl=TTL), Lock("another", ttl=TTL):
        await asyncio.sleep(0)


# -- alone -------------------------------------------------------------------------------------------------------------

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


@moments
@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("what", ALONE)
async def test_an_uncontended_call_interrupted_at_any_await_leaves_nothing_behind(
    what: str, moment: str, connect: Connect, client: redis.Redis, other: Callable[[], Other]
) -> None:
    before, operation, keeps = ALONE[what]
    bystander = other()
    at, over = 0, False
    while not over:
        at += 1
        lock = Lock(NAME, ttl=TTL)
        over = await lives_on(lock, before, connect, interrupted(operation, lock, at, moment), keeps)
        # whatever is still under way, it is not waited for
        assert await asyncio.wrap_future(bystander.start(got_in_turn))
        await nothing_left(client)
    assert at > 3


@moments
@pytest.mark.usefixtures("gates")
async def test_a_lock_whose_detachment_was_interrupted_can_be_released(moment: str, client: redis.Redis) -> None:
    tokens: list[str] = []

    async def detach(lock: Lock) -> None:
        tokens.append(await lock.adetach())

    at, over = 0, False
    while not over:
        at += 1
        lock = Lock(NAME, ttl=TTL)
        over = await lives_on(lock, acquire, warm, interrupted(detach, lock, at, moment), True)
        if over:
            await Lock(NAME, token=tokens[0]).arelease()
        await nothing_left(client)
    assert at > 2


# -- among others ------------------------------------------------------------------------------------------------------


async def wait_too_short(lock: Lock) -> None:
    assert not await lock.aacquire(blocking_timeout=0.005)


async def poll(lock: Lock) -> None:
    async with Lock(lock.name, ttl=TTL, poll=True, backoff=ConstantBackoff(0.005)):
        await asyncio.sleep(0)


async def poll_too_short(lock: Lock) -> None:
    assert not await Lock(lock.name, poll=True, attempts=2, backoff=ConstantBackoff(0.005)).aacquire()


CONTENDED: dict[str, Operation] = {
    "acquire": acquire,
    "section": section,
    "wait too short": wait_too_short,
    "poll": poll,
    "poll too short": poll_too_short,
}


@moments
@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("what", CONTENDED)
async def test_a_waiter_interrupted_at_any_await_blocks_nobody_behind_it(
    what: str, moment: str, connect: Connect, client: redis.Redis, other: Callable[[], Other]
) -> None:
    operation = CONTENDED[what]
    first, behind = other(), other()
    at, over = 0, False
    while not over:
        at += 1
        held, lock = Lock(NAME, ttl=TTL), Lock(NAME, ttl=TTL)
        first(held.acquire)
        waiting = asyncio.create_task(lives_on(lock, nothing, connect, interrupted(operation, lock, at, moment), False))
        await auntil_done_or(waiting, lambda: parked() or (operation in (poll, poll_too_short) and queued(client)))
        bystander = behind.start(got_in_turn)
        if operation in (wait_too_short, poll_too_short):
            await asyncio.wait([waiting])
        else:
            await auntil_done_or(waiting, lambda: queued(client) == 2)
        first(held.release)
        over = await waiting
        assert await asyncio.wrap_future(bystander)
        await nothing_left(client)
    assert at > 5


@moments
@pytest.mark.usefixtures("gates")
async def test_the_first_waiter_of_a_process_interrupted_at_any_await_leaves_nothing_behind(
    moment: str, client: redis.Redis, other: Callable[[], Other], settings: Any
) -> None:
    async def connect() -> None:
        settings.CACHES = {**settings.CACHES}  # no connections, no listeners

    first, behind = other(), other()
    at, over = 0, False
    while not over:
        at += 1
        held, lock = Lock(NAME, ttl=TTL), Lock(NAME, ttl=TTL)
        first(held.acquire)
        waiting = asyncio.create_task(lives_on(lock, nothing, connect, interrupted(acquire, lock, at, moment), False))
        await auntil_done_or(waiting, parked)
        first(held.release)
        over = await waiting
        assert await asyncio.wrap_future(behind.start(got_in_turn))
        await nothing_left(client)
    assert at > 10


@moments
@pytest.mark.usefixtures("one_connection", "gates")
@pytest.mark.parametrize("what", ["acquire", "release"])
async def test_a_coroutine_interrupted_while_it_waits_for_a_connection_takes_none(
    what: str, moment: str, network: Proxy, client: redis.Redis
) -> None:
    before, operation, keeps = ALONE[what]
    at, over = 0, False
    while not over:
        at += 1
        lock = Lock(NAME, ttl=TTL)
        late = network.hold_answer("occupied")
        occupied: list[asyncio.Task[bool]] = []

        async def occupy(late: Any = late, occupied: list[asyncio.Task[bool]] = occupied) -> None:
            occupied.append(asyncio.create_task(Lock("occupied").alocked()))
            await auntil(late.caught.is_set)

        waiting = asyncio.create_task(lives_on(lock, before, occupy, interrupted(operation, lock, at, moment), keeps))
        await auntil_done_or(waiting, inside.wait_for_connections)
        late.let_go()
        over = await waiting
        await occupied[0]
        await nothing_left(client)
    assert at > 2


# -- at random ---------------------------------------------------------------------------------------------------------


async def test_coroutines_cancelled_at_random_leave_nothing_behind(client: redis.Redis) -> None:
    print(f"REDISLOCK_TEST_SEED={SEED} REDISLOCK_TEST_ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    busy: set[str] = set()
    ends = {"cancelled": 0, "done": 0}
    longest = 0.1  # seconds that a round is let alone; learned, so that a fifth is done on whichever machine

    async def use(name: str, work: float) -> None:
        async with Lock(name, ttl=TTL) as lock:
            assert name not in busy
            busy.add(name)
            try:
                if dice.random() < 0.3:
                    await lock.aextend(1)
                if work:
                    await asyncio.sleep(work)
            finally:
                busy.remove(name)

    async def play(rounds: int) -> None:
        nonlocal longest
        for _ in range(rounds):
            task = asyncio.create_task(use(dice.choice(["a", "b", "c"]), dice.choice([0, 0.0005])))
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
    assert idle_here() <= most_connections()
    # besides those of the loop: this one, the listener's, that of the sender and one of threads
    await auntil(lambda: len(client.client_list()) <= most_connections() + 4)
