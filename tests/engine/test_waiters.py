"""The waiters of this process, and which one of a group makes the scheduled looks for all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from django_redislock.engine.messages.listener import Listener
from django_redislock.engine.messages.waiters import Grant, TaskWaiter, ThreadWaiter, Waiter
from django_redislock.store.lock_store import Partition
from django_redislock.store.stores import make_store
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.state import NAME

Eventually = Callable[..., Any]
GRANT = Grant(fence=7, us=0, lease=3.0, name=NAME)


class Ears(Listener):
    """A listener that does not run; ``passed_on``: the ids of those whose lock was passed on."""

    def __init__(self, partition: Partition) -> None:
        self.passed_on: list[str] = []
        super().__init__(
            partition,
            lambda ears: None,
            lambda *stray: None,
            lambda *left: self.passed_on.append(left[1]),
            lambda partition: None,
        )

    def add(self, id: str, name: str = NAME, loop: asyncio.AbstractEventLoop | None = None) -> Any:
        waiter = self.make_waiter(id, name, loop)
        self.register(waiter)
        return waiter


@pytest.fixture
def ears() -> Iterator[Ears]:
    store = make_store("default", "ears")
    yield Ears(store.partition(0))
    store.close()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


# -- one that waits ----------------------------------------------------------------------------------------------------


def test_who_is_told_while_parked_goes_on(ears: Ears, other: Callable[[], Other], eventually: Eventually) -> None:
    waiter: ThreadWaiter = ears.add("one")
    waiting = other().start(lambda: waiter.park(10.0 * GENEROUS))
    waiter.tell(GRANT)
    waiting.result(GENEROUS)
    assert (waiter.grant, waiter.look) == (GRANT, False)


def test_who_is_told_before_it_parks_does_not_park(ears: Ears) -> None:
    waiter: ThreadWaiter = ears.add("one")
    for _ in range(3):  # as often as it likes: it is one awakening
        waiter.tell()
    waiter.park(10.0 * GENEROUS)
    assert (waiter.grant, waiter.look) == (None, True)
    began = monotonic()
    waiter.park(0.05)
    assert monotonic() - began >= 0.04


@pytest.mark.parametrize("seconds", [None, 10.0 * GENEROUS])
async def test_a_coroutine_that_is_told_from_another_thread_goes_on(seconds: float | None, ears: Ears) -> None:
    waiter: TaskWaiter = ears.add("one", loop=asyncio.get_running_loop())
    thread = threading.Thread(target=waiter.tell, args=(GRANT,))
    parked = asyncio.create_task(waiter.apark(seconds))
    await asyncio.sleep(0)
    thread.start()
    await asyncio.wait_for(parked, GENEROUS)
    assert waiter.grant == GRANT
    thread.join()


async def test_a_coroutine_that_is_told_before_it_parks_does_not_park(ears: Ears) -> None:
    waiter: TaskWaiter = ears.add("one", loop=asyncio.get_running_loop())
    waiter.tell()
    await asyncio.wait_for(waiter.apark(None), GENEROUS)
    assert waiter.look
    await asyncio.sleep(0)  # the wake that was sent arrives
    began = monotonic()
    await waiter.apark(0.05)
    assert monotonic() - began >= 0.04  # by the clock of the loop


async def test_a_coroutine_that_is_cancelled_while_parked_can_be_told_all_the_same(ears: Ears) -> None:
    waiter: TaskWaiter = ears.add("one", loop=asyncio.get_running_loop())
    parked = asyncio.create_task(waiter.apark(None))
    await asyncio.sleep(0)
    parked.cancel()
    await asyncio.wait([parked])
    waiter.tell(GRANT)
    await asyncio.wait_for(waiter.apark(None), GENEROUS)
    assert waiter.grant == GRANT


# -- groups ------------------------------------------------------------------------------------------------------------


def looks(ears: Ears, *waiters: Waiter) -> list[bool]:
    """Which of them makes the scheduled looks."""
    return [ears.next_look(waiter) is not None for waiter in waiters]


def test_who_has_read_until_the_connection_failed_waits_only_for_the_rest(
    ears: Ears, other: Callable[[], Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = [0.0]

    class Failing:
        def lead(self, waiter: object, seconds: float) -> bool:
            hours.append(seconds)
            return False

        def unfollow(self, waiter: object) -> None: ...

    monkeypatch.setattr("django_redislock.engine.messages.waiters.monotonic", lambda: monotonic() + hours[-1])
    monkeypatch.setattr(ears, "_reader", Failing)
    waiter = ears.make_waiter("a" * 22, NAME, None)
    assert isinstance(waiter, ThreadWaiter)
    ears.register(waiter)
    other().start(lambda: waiter.park(3600.0)).result(GENEROUS)
    assert hours == [0.0, 3600.0]


def test_the_oldest_that_waits_for_a_name_looks_for_all_and_the_next_one_inherits(ears: Ears) -> None:
    one, two, three, another = ears.add("one"), ears.add("two"), ears.add("three"), ears.add("four", "another")
    assert looks(ears, one, two, three, another) == [True, False, False, True]
    ears.waiters.discard(two)
    assert looks(ears, one, three) == [True, False]
    assert not three.told
    ears.waiters.discard(one)
    assert looks(ears, three) == [True]
    assert three.told  # it must schedule its looks


def test_each_event_loop_looks_for_itself(ears: Ears, loop: asyncio.AbstractEventLoop) -> None:
    thread, task, second = ears.add("one"), ears.add("two", loop=loop), ears.add("three", loop=loop)
    assert looks(ears, thread, task, second) == [True, True, False]


def test_where_messages_cannot_be_trusted_each_looks_for_itself(ears: Ears) -> None:
    one, two = ears.add("one"), ears.add("two")
    ears.polled = True
    assert looks(ears, one, two) == [True, True]
    before = monotonic()
    ears.schedule(two, left=30, delay=0.25)
    assert before + 0.25 <= (ears.next_look(two) or 0) <= monotonic() + 0.25


@pytest.mark.parametrize(("left", "within"), [(0.2, 0.3), (60.0, 5.1), (-1.0, 5.1), (-2.0, 0.2)])
def test_the_next_look_is_due_when_the_lease_ends_or_soon_where_the_lock_is_free(
    left: float, within: float, ears: Ears
) -> None:
    ears.ready = True
    one = ears.add("one")
    before = monotonic()
    ears.schedule(one, left, 0.0)
    due = ears.next_look(one)
    assert due is not None
    assert before < due < monotonic() + within


def test_a_newcomers_look_brings_the_next_one_forward_and_never_puts_it_off(ears: Ears) -> None:
    ears.ready = True
    one, two = ears.add("one"), ears.add("two")
    ears.schedule(one, 3.0, 0.0)
    due = ears.next_look(one)
    ears.schedule(two, 60.0, 0.0)
    assert ears.next_look(one) == due
    ears.schedule(two, 0.5, 0.0)
    assert due is not None
    assert (ears.next_look(one) or due) < due - 1
    ears.schedule(one, 4.5, 0.0)
    assert (ears.next_look(one) or 0) > due


def test_all_or_all_of_a_name_can_be_told(ears: Ears) -> None:
    one, two, another = ears.add("one"), ears.add("two"), ears.add("three", "another")
    ears.tell_all(NAME)
    assert [waiter.look for waiter in (one, two, another)] == [True, True, False]
    ears.tell_all()
    assert another.look


def test_an_interrupted_call_can_be_repeated(ears: Ears) -> None:
    one, two = ears.add("one"), ears.add("two")
    ears.register(one)
    assert looks(ears, one, two) == [True, False]
    for _ in range(2):
        ears.waiters.discard(one)
    assert looks(ears, two) == [True]
    ears.waiters.discard(two)
    assert not ears.waiters.of()
    assert not ears.waiters._groups


# -- loops that have ended ---------------------------------------------------------------------------------------------


def test_all_waiters_of_an_ended_loop_are_passed_over_at_once(ears: Ears, loop: asyncio.AbstractEventLoop) -> None:
    gone = [ears.add(f"gone-{number}", loop=loop) for number in range(2000)]
    alive = ears.add("alive")
    assert ears.waiters.tasks_until > monotonic()
    loop.close()
    gone[0].tell()
    assert ears.waiters.of() == [alive]
    assert ears.passed_on == [waiter.id for waiter in gone]
    for waiter in gone:  # which are collected at some time
        ears.waiters.discard(waiter)
    assert not ears.waiters._tasks
    ears.waiters.discard(alive)
    assert not ears.waiters._groups


def test_a_waiter_that_is_collected_while_the_listener_is_busy_does_not_block_it(
    ears: Ears, other: Callable[[], Other]
) -> None:
    gone, alive = ears.add("gone"), ears.add("alive")

    def collect() -> None:
        with ears.waiters._mutex:  # the garbage collection strikes anywhere
            ears.waiters.discard(gone)

    other()(collect)
    assert ears.waiters.of() == [alive]
