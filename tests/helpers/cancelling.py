"""Interrupts coroutines at each of their awaits, and threads anywhere; and checks that nothing is left behind."""

import asyncio
import dis
import gc
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from functools import cache, partial
from itertools import count
from time import monotonic
from types import CodeType, FrameType
from typing import Any, TypeVar

import pytest
import redis

from django_redislock import Lock, LockSet, locked
from tests.inside import AWAITING, PREFIX, kept_by_callers

from . import state
from .actors import GENEROUS, auntil
from .state import NAME

T = TypeVar("T")
Operation = Callable[[Lock], Coroutine[Any, Any, None]]

TTL = 300  # a handoff's lease then lasts 100 s: a waiter that continues sooner does so because the lock was passed on


async def auntil_done_or(task: asyncio.Task[Any], condition: Callable[[], Any]) -> None:
    await auntil(lambda: task.done() or condition())


def got_in_turn(name: str = NAME) -> bool:
    with Lock(name, ttl=TTL, blocking_timeout=GENEROUS):
        return True


async def nothing_left(client: redis.Redis) -> None:
    """Neither in Redis nor in this process is anything kept of callers that have left."""

    def stays(key: str) -> bool:
        """Not the trace of a handoff (``!``), which expires by itself and delays nobody."""
        trace = key.startswith("waiters:") and client.hkeys(PREFIX + key) in ([], [b"!"])
        return not trace or client.pttl(PREFIX + key) == -1

    deadline = monotonic() + GENEROUS
    while left := [*filter(stays, state.leftovers(client)), *kept_by_callers().items()]:
        assert monotonic() < deadline, left
        await asyncio.sleep(0.001)


def add_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request lets other callbacks of the loop run before it begins and after it has ended."""

    def add(owner: Any, name: str) -> None:
        arun = getattr(owner, name)

        async def between_gates(*request: object) -> Any:
            await asyncio.sleep(0)
            answer = await arun(*request)
            await asyncio.sleep(0)
            return answer

        monkeypatch.setattr(owner, name, between_gates)

    for owner, name in AWAITING:
        add(owner, name)


class Interrupted(Awaitable[T]):
    """Await ``coroutine`` and cancel the task that does so the ``at``-th time that it is suspended; ``late``: when the
    result is there and the task has not been resumed yet; ``again``: each time after that, too."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], at: int, *, late: bool = False, again: bool = False) -> None:
        self.coroutine = coroutine
        self.at, self.suspended = at, 0
        self.late, self.again = late, again

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self.coroutine.__await__()
        resume = partial(inner.send, None)
        while True:
            try:
                awaited = resume()
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.suspended += 1
            if self.suspended == self.at or (self.again and self.suspended > self.at):
                self.interrupt(awaited)
            resume = partial(inner.send, None)
            try:
                yield awaited
            except BaseException as error:
                resume = partial(inner.throw, error)

    def interrupt(self, awaited: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self.late and awaited is not None:
            # runs before the callback that resumes the task, which the task has not added yet
            awaited.add_done_callback(lambda _: task.cancel())
        else:
            asyncio.get_running_loop().call_soon(task.cancel)


class Closed(Exception):
    pass


class Closing(Interrupted[T]):
    """Close the coroutine instead, at once: it gets GeneratorExit and cannot await anything any more."""

    def interrupt(self, awaited: Any) -> None:
        if awaited is not None:
            awaited._asyncio_future_blocking = False
            awaited.cancel()  # otherwise the loop would watch a closed socket
        self.coroutine.close()
        raise Closed


moments = pytest.mark.parametrize("moment", ["early", "late", "again and again", "closed"])


def interrupted(work: Coroutine[Any, Any, None], at: int, moment: str) -> Interrupted[None]:
    if moment == "closed":
        return Closing(work, at)
    return Interrupted(work, at, late=moment == "late", again=moment == "again and again")


async def lives_on(
    lock: Lock, before: Operation, connect: Callable[[], Awaitable[None]], interrupted: Interrupted[None], keeps: bool
) -> bool:
    """In a task of its own, run ``before``, then the operation to interrupt; return whether that finished. ``keeps``:
    the lock is still held after an interruption."""
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
    if task.cancelled() or isinstance(task.exception(), Closed):
        assert interrupted.suspended >= interrupted.at
        assert still_held == [keeps]
        return False
    task.result()
    assert interrupted.suspended < interrupted.at
    return True


async def nothing(lock: Lock) -> None:
    await asyncio.sleep(0)


async def acquire(lock: Lock) -> None:
    assert await lock.aacquire()


async def release(lock: Lock) -> None:
    await lock.arelease()


async def section(lock: Lock | LockSet) -> None:
    async with lock:
        await asyncio.sleep(0)


async def decorated(lock: Lock) -> None:
    await locked(lock.name, ttl=TTL)(nothing)(lock)


class Interrupt(BaseException):
    """The exception that a signal handler raises."""


class Interrupter:
    """Runs a function and raises Interrupt at the ``place``-th (None: nowhere, only counts) of the places where CPython
    runs signal handlers, and where an exception of another thread (a time limit of a task queue) arrives: when a
    function begins, after a call has returned, and when a loop jumps back. Only places in files that ``where`` accepts
    count, except those in finalizers, whose exceptions Python swallows."""

    def __init__(self, where: Callable[[str], bool], place: int | None = None) -> None:
        self.places = 0
        self.struck = ""  # where it raised, for messages
        self._where = where
        self._place = place
        self._before: dict[int, str] = {}  # instructions by ids of frames, since this must not keep the frames alive

    def run(self, function: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # otherwise Python 3.12 reports no opcodes the first time
        sys.settrace(self._enter)
        try:
            return function()
        finally:
            sys.settrace(before)

    def leaves_nothing(self, left: Callable[[], object]) -> None:
        """Wait until nothing is left of what it has interrupted."""
        deadline = monotonic() + GENEROUS
        while found := left():
            if sys.version_info < (3, 11):
                gc.collect()  # there, a traced frame keeps its local variables, its errors among them, in a dict
            assert monotonic() < deadline, f"{found}, interrupted at {self.struck}"

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self._where(frame.f_code.co_filename) or _in_finalizer(frame):
            return None
        self._before.pop(id(frame), None)
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            name = _instructions(frame.f_code).get(frame.f_lasti, "")
            before = self._before.get(id(frame), "")
            returned = before.startswith("CALL") and "INTRINSIC" not in before  # these call nothing
            self._before[id(frame)] = name
            if returned or name in ("RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE"):
                self.places += 1
                if self.places - 1 == self._place:
                    code = frame.f_code
                    self.struck = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}, before {name}"
                    raise Interrupt
        return self._step


def interrupters(where: Callable[[str], bool], *, least: int = 20) -> Iterator[Interrupter]:
    """One for each place in turn. The first one only counts: Python 3.13 does not report all opcodes of code that is
    traced for the first time, or that somebody has run without tracing since; so a run that reaches no place ends
    nothing if another one has counted more. There have to be more than ``least`` places."""
    yield (one := Interrupter(where))
    most = one.places
    for place in count():
        if place > most:
            break
        yield (one := Interrupter(where, place))
        most = max(most, one.places)
    assert most > least  # newer Pythons check for signals at fewer places


def _in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


@cache
def _instructions(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}
