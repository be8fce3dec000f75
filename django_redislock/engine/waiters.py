"""The waiters of this process, threads and coroutines, and which of them asks Redis by the clock."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..base.names import split_member
from ..base.times import Alarm, monotonic

Loop = asyncio.AbstractEventLoop


class Grant(NamedTuple):
    """A handoff, as announced by its wake."""

    fence: int
    us: int  # server time of the grant
    ends: float  # monotonic, by the clock of the node that made it (C2): when to presume its lease over
    name: str  # of the lock; for a waiter for a pool, of the member


@dataclass(slots=True, eq=False, repr=False)
class Group:
    """The waiters for one name in this process's threads, or in one event loop, oldest first.

    The oldest looks for all when ``due`` (monotonic), but for those who bear a token. Each loop looks for itself:
    another one may hang or have ended.
    """

    name: str
    loop: Loop | None
    # OrderedDict: a dict is slow to find its first entry after many before it were deleted
    waiters: OrderedDict[str, Waiter] = field(default_factory=OrderedDict)
    oldest: Waiter | None = None  # the first of them; waiters read it without the mutex
    due: float = math.inf  # until one of them has looked
    recheck_from: float = 0.0  # monotonic; see Listener.recheck()
    seen: bytes | None = None  # the value of the lock, as of the last look


NO_GROUP = Group("", None)


@dataclass(slots=True, eq=False, repr=False)
class Waiter:
    """A waiter. The thread that reads messages tells it something; it is parked where it waits."""

    id: str
    name: str  # of the lock that it wants
    loop: Loop | None
    group: Group = NO_GROUP  # its own once it is registered
    registered: bool = False
    grant: Grant | None = None
    look: bool = False  # it has to ask Redis
    bears_token: bool = False  # with which it may adopt the lock, and nobody else can do so for it
    due: float = 0.0  # when it looks by itself, where messages do not arrive

    def tell(self, grant: Grant | None = None) -> None:
        """The lock was handed over to it, or (None) it has to look."""
        if grant is None:
            self.look = True
        else:
            self.grant = grant
        self.wake()

    def wake(self) -> None: ...


class ThreadWaiter(Waiter):
    """A thread that waits."""

    __slots__ = ("_gate",)

    def __init__(self, id: str, name: str) -> None:
        super().__init__(id, name, None)
        self._gate = threading.Lock()
        self._gate.acquire()

    def wake(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            pass  # it was told before, and has not woken up yet

    @property
    def told(self) -> bool:
        """Whether it was told something since it was parked."""
        return not self._gate.locked()

    def park(self, until: float) -> None:
        """Wait in this thread until told, or until this time (monotonic; infinite: without end)."""
        self._gate.acquire(timeout=min(max(until - monotonic(), 0.0), threading.TIMEOUT_MAX))


class TaskWaiter(Waiter):
    """A coroutine that waits in ``loop``. ``on_dead_loop`` is called if the loop turns out to have ended."""

    __slots__ = ("_on_dead_loop", "_parked", "_told")

    loop: Loop

    def __init__(self, id: str, name: str, loop: Loop, on_dead_loop: Callable[[Loop], None]) -> None:
        super().__init__(id, name, loop)
        self._on_dead_loop = on_dead_loop
        self._parked: asyncio.Future[None] | None = None
        self._told: bool = False  # something, since it was parked

    def wake(self) -> None:
        self._told = True
        try:
            self.loop.call_soon_threadsafe(self._unpark)
        except RuntimeError:  # the loop has ended, and this waiter with it
            self._on_dead_loop(self.loop)

    def _unpark(self) -> None:
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    async def apark(self, until: float) -> None:
        """See park()."""
        # if we are told after this check, _unpark still runs after we have parked, since it runs in this loop
        if not self._told:
            self._parked = self.loop.create_future()
            alarm = None if until == math.inf else Alarm(self.loop, until - monotonic(), self._unpark)
            try:
                await self._parked
            finally:
                self._parked = None
                if alarm is not None:
                    alarm.cancel()
        self._told = False


def make_waiter(
    loop: Loop | None, id: str = "", name: str = "", on_dead_loop: Callable[[Loop], None] = lambda loop: None
) -> Waiter:
    """A waiter for a coroutine in ``loop``, or for this thread. Without an id, it waits for no message."""
    return ThreadWaiter(id, name) if loop is None else TaskWaiter(id, name, loop, on_dead_loop)


@dataclass(slots=True, eq=False, repr=False)
class Park:
    """A step: wait until the waiter is told something, or until this time (monotonic; infinite: without end).

    A thread that waits may read the messages of ``receiver`` meanwhile.
    """

    waiter: Waiter
    until: float
    receiver: Any = None

    def run(self) -> None:
        assert isinstance(self.waiter, ThreadWaiter)
        if self.receiver is not None:
            self.receiver.read_here(self.waiter, self.until)
        self.waiter.park(self.until)

    async def arun(self) -> None:
        assert isinstance(self.waiter, TaskWaiter)
        await self.waiter.apark(self.until)


class Waiters:
    """All waiters of this process for the locks of one partition, by id and in groups. Thread-safe.

    A method that was interrupted can be called again: each step leaves a state from which a second call can go on.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Waiter] = {}  # those whom wakes reach
        # those that have asked for the first time, and will wait only if the lock is busy
        self._expected: dict[str, Waiter] = {}
        self._groups: dict[tuple[str, Loop | None], Group] = {}
        # reentrant: a finalizer that runs on this thread may close a coroutine that waits
        self._mutex = threading.RLock()

    def get(self, id: str) -> Waiter | None:
        return self.by_id.get(id) or self._expected.get(id)

    def expect(self, waiter: Waiter) -> None:
        """Let a wake reach this waiter, which may turn out not to wait at all."""
        self._expected[waiter.id] = waiter

    def add(self, waiter: Waiter) -> None:
        """Let messages reach this waiter from now on."""
        key = (waiter.name, waiter.loop)
        with self._mutex:
            waiter.registered = True
            waiter.group = group = self._groups.get(key) or self._groups.setdefault(key, Group(*key))
            self.by_id[waiter.id] = group.waiters[waiter.id] = waiter
            group.oldest = group.oldest or waiter
            self._expected.pop(waiter.id, None)

    def discard(self, waiter: Waiter) -> None:
        """Forget this waiter, which has its lock or gave up; the next oldest of its group takes over the looks."""
        if not waiter.registered:
            self._expected.pop(waiter.id, None)
            return
        group = waiter.group
        with self._mutex:
            again = self.by_id.pop(waiter.id, None) is None
            group.waiters.pop(waiter.id, None)
            before, group.oldest = group.oldest, next(iter(group.waiters.values()), None)
            heir = group.oldest
            if heir is None and self._groups.get((group.name, group.loop)) is group:
                del self._groups[group.name, group.loop]
        if heir is not None and (again or heir is not before):
            heir.wake()
        waiter.registered = False

    def discard_loop(self, loop: Loop) -> list[Waiter]:
        """The loop has ended: forget its waiters, and return them."""
        buried = [waiter for waiter in list(self._expected.values()) if waiter.loop is loop]
        with self._mutex:
            for key in [key for key in self._groups if key[1] is loop]:
                buried += self._groups.pop(key).waiters.values()
            for waiter in buried:
                self.by_id.pop(waiter.id, None)
                self._expected.pop(waiter.id, None)
                waiter.registered = False
        return buried

    def groups(self, name: str) -> list[Group]:
        """The groups that want the lock ``name``; for a pool's member, also those who want any member."""
        split = split_member(name)
        names = (name,) if split is None else (name, split[0])
        with self._mutex:
            return [group for group in self._groups.values() if group.name in names]

    def of(self, name: str | None = None) -> list[Waiter]:
        """The waiters for ``name``, and those expected to wait for it; None: all of them."""
        with self._mutex:
            known = [*self.by_id.values(), *self._expected.values()]
        return [waiter for waiter in known if name is None or waiter.name == name]
