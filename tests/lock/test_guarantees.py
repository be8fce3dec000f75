"""Sentences of docs/guarantees.rst that no other test shows. See docs/promises.rst."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from itertools import takewhile
from time import monotonic
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.test import RequestFactory

from django_redislock import Lock, LockSet, LockUnavailable, lock_released, locked, locked_view
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, RUNS, Crowd, auntil, until
from tests.helpers.docs import blocks, page
from tests.helpers.processes import Worker
from tests.helpers.state import NAME, QUEUE, Monitor, holder, put, queued

from .kin import Kin

TTL = 4.5


def test_the_first_waiter_of_a_process_queues_two_round_trips_after_its_request(
    start: Callable[..., Worker], server: RedisServer, client: redis.Redis
) -> None:
    worker = start("with Lock('warm-up'):\n    pass\nsay('ready')\nhear()\nLock(name).acquire()", name=NAME)
    worker.expect("ready")
    put(client, NAME, ttl=600)
    with closing(Monitor(server)) as monitor:
        worker.tell()
        until(lambda: queued(client))
        until_it_queues = takewhile(lambda one: one.words[:2] != ["ZADD", QUEUE], monitor.seen())
        sent = [one.name for one in until_it_queues if one.name in ("eval", "evalsha", "subscribe")]
    assert len(sent) == 4  # the request, the subscription, a message to itself, and the request again
    assert sent[1] == "subscribe"


def test_acquire_asks_a_redis_that_is_away_no_longer_than_its_blocking_timeout(
    crowd: Crowd, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(GENEROUS)
    own.stop()
    for timeout in (0, 0.3):
        began = monotonic()
        with pytest.raises(LockUnavailable):
            crowd()(Lock(NAME), "acquire", blocking_timeout=timeout)
        assert monotonic() - began < GENEROUS / 2


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("how", ["with", "ExitStack", "acquire"])
@pytest.mark.complete
async def test_sync_code_whose_task_was_cancelled_keeps_its_lock(how: str, run: Any) -> None:
    lock, inside, go_on, found = Lock(NAME, ttl=TTL), threading.Event(), threading.Event(), list[Any]()

    @locked(NAME, reentrant=True, blocking_timeout=0)
    def again() -> None:
        lock.check()

    def work() -> None:
        with ExitStack() as stack, lock if how == "with" else nullcontext():
            if how == "ExitStack":
                stack.enter_context(lock)
            elif how == "acquire" and lock.acquire():
                stack.callback(lock.release)
            inside.set()
            assert go_on.wait(GENEROUS)
            again()
            found.append(async_to_sync(lock.aowned)())
        found.append(lock.locked())

    task = asyncio.ensure_future(run(work))
    await auntil(inside.is_set)
    task.cancel()
    await asyncio.wait([task])
    for _ in range(2):
        assert await Kin(tasks=True).renewed(TTL)
    go_on.set()
    await auntil(lambda: len(found) == 2)
    assert found == [True, False]


async def test_the_documented_view_waits_under_its_lock_for_the_thread_that_it_has_started(client: redis.Redis) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def save_rows(pk: int) -> None:
        begun.set()
        assert go_on.wait(GENEROUS)

    names: dict[str, Any] = {
        "asyncio": asyncio,
        "sync_to_async": sync_to_async,
        "locked_view": locked_view,
        "save_rows": save_rows,
    }
    exec(blocks(page("guarantees"))[0], names)
    task = asyncio.ensure_future(names["import_rows"](RequestFactory().get("/"), pk=7))
    await auntil(begun.is_set)
    task.cancel()
    await asyncio.sleep(0.3)
    assert holder(client, "import:7")
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await auntil(lambda: not holder(client, "import:7"))


@pytest.mark.parametrize("lock", [Lock(NAME), LockSet("a", "b")], ids=["lock", "set"])
def test_what_ends_a_block_lives_until_that_has_ended(lock: Any) -> None:
    """From Python 3.14 on, ``with`` unpacks a bound method and drops it before its body begins, which would look as if
    the block had been interrupted."""
    ends, alive = [lock.__exit__], list[bool]()
    end = weakref.ref(ends[0])

    def note(**facts: Any) -> None:
        alive.append(end() is not None)

    lock.__enter__()
    lock_released.connect(note)
    ends.pop()(None, None, None)
    assert alive
    assert all(alive)
