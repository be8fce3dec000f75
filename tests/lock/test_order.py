"""First come, first served: among threads, tasks and processes, and nobody overtakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest
import redis

from django_redislock import Lock
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.state import LOCK, NAME, QUEUE, WAITERS, flag, holder, queued
from tests.inside import limit

from .blocks import Block

Eventually = Callable[..., Any]
Start = Callable[..., Any]

ID = "an-id-that-the-tests-know"


@pytest.mark.parametrize("mixed", [False, True], ids=["of one kind", "threads and tasks"])
def test_a_lock_is_acquired_in_the_order_of_the_requests(
    crowd: Crowd, mixed: bool, using: str, eventually: Eventually
) -> None:
    with ExitStack() as stack:
        crowds = [crowd, stack.enter_context(closing(Crowd(tasks=not crowd.awaits))) if mixed else crowd]
        people = [crowds[number % 2]() for number in range(16)]
        me, lock, order = people[0], Lock(NAME, using=using), list[int]()
        me(lock, "acquire")
        waiting = []
        for number, person in enumerate(people[1:], 1):
            section = Block(Lock(NAME, using=using), lambda number=number: order.append(number))  # type: ignore[misc]
            waiting.append(person.start(section, "run"))
            eventually(lambda number=number: lock.info().waiters == number)  # type: ignore[union-attr]
        me(lock, "release")
        for future in waiting:
            future.result(GENEROUS)
    assert order == list(range(1, 16))


@pytest.mark.complete
async def test_five_hundred_coroutines_wait_and_all_get_through(using: str, aeventually: Callable[..., Any]) -> None:
    lock = Lock(NAME, ttl=300, using=using)
    fences: list[int] = []

    async def section() -> None:
        async with Lock(NAME, blocking_timeout=100, using=using) as mine:
            fences.append(mine.fence)

    async def all_wait() -> bool:
        info = await lock.ainfo()
        return info is not None and info.waiters == 500

    async with lock:
        tasks = [asyncio.create_task(section()) for _ in range(500)]
        await aeventually(all_wait, within=60)
    await asyncio.gather(*tasks)
    assert len(fences) == 500
    assert fences == sorted(set(fences))


SECTIONS = """
import redis
raw = redis.Redis.from_url(os.environ["REDISLOCK_TEST_URL"])
lock = Lock(name, blocking_timeout=60)
say("ready")
hear()
most, grew = 0, []
for round in range(25):
    with lock:
        if not round:
            say("first", lock.fence)
        most = max(most, raw.incr("inside"))
        grew.append(int(raw.get("last") or 0) < lock.fence)
        raw.set("last", lock.fence)
        raw.decr("inside")
say("done", most, all(grew), len(grew))
hear()
"""


def test_processes_get_a_lock_in_the_order_in_which_they_asked_and_exclude_each_other(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    workers = [start(SECTIONS, name=NAME) for _ in range(3)]
    for worker in workers:
        worker.expect("ready")
    workers = [workers[index] for index in (2, 0, 1)]
    with Lock(NAME) as lock:
        fences, before = [lock.fence], holder(client)
        for number, worker in enumerate(workers, 1):
            worker.tell()
            eventually(lambda number=number: queued(client) == number)
    assert holder(client) not in ("", before)  # by the release itself
    fences += [int(worker.expect("first")[0]) for worker in workers]
    assert fences == sorted(fences)
    for worker in workers:
        assert worker.expect("done", within=60) == ["1", "True", "25"]
    assert holder(client) == ""


@pytest.mark.parametrize("age", [0, -GENEROUS])
@pytest.mark.parametrize("how", ["released", "gone"])
def test_nobody_overtakes_a_waiter(
    crowd: Crowd, how: str, age: float, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """However short it has waited, even if the clock was ahead when it queued, and even if it does not come for the
    lock."""
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    ghost().queue(ID, name=NAME, age=age)
    if how == "released":
        me(lock, "release")
        assert (holder(client), flag(client)) == (ID, "h")
    else:
        client.delete(LOCK)
    for newcomer in (me, you):
        assert newcomer(Lock(NAME), "acquire", blocking=False) is False
    assert holder(client) == ID


def test_the_next_holder_deletes_what_an_evicted_queue_has_left_behind(
    crowd: Crowd, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.2)
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    me(lock, "detach")  # so nothing renews it
    waiting = you.start(lock, "acquire", blocking_timeout=GENEROUS)
    eventually(lambda: queued(client))
    client.delete(QUEUE, LOCK)
    assert waiting.result(GENEROUS)
    assert not client.exists(WAITERS)
