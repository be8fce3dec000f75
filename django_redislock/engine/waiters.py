"""Those who wait for a lock in this process: threads and coroutines, and which of them looks by the clock."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from ..names import split_member
from ..store.holder import Holder
from ..store.node import Node
from .reader import HOT_FOR, Reader

Loop = asyncio.AbstractEventLoop


class Grant(NamedTuple):
    """A handoff, as the wake tells it."""

    fence: int
    us: int  # server time of the grant
    lease: float  # seconds
    name: str  # of the lock: of a member, for one that waits for a pool
    node: Node | None = None  # whose time that is (C2)


class Seen(NamedTuple):
    """What Redis has said of a lock that was not free."""

    at: float  # monotonic
    holder: Holder | None
    busy_for: float  # seconds


class Waiter:
    """One that waits. Told from whichever thread reads, parked where it waits."""

    __slots__ = ("due", "grant", "group", "id", "look", "registered", "told")

    def __init__(self, id: str, name: str, loop: Loop | None) -> None:
        self.id: str = id
        self.group: Group = Group(name, loop)  # until it is registered
        self.registered: bool = False
        self.grant: Grant | None = None
        self.look: bool = False  # for itself
        self.due: float = 0.0  # when it looks untold, where messages do not come
        self.told: bool = False  # anything, since it parked

    def tell(self, grant: Grant | None = None) -> None:
        """The lock was handed over, or there may be something to look for."""
        if grant is None:
            self.look = True
        else:
            self.grant = grant
        self.wake()

    def wake(self) -> None: ...


class ThreadWaiter(Waiter):
    """A thread that waits. ``reader``: what it may read from by itself while it is the oldest of its group."""

    __slots__ = ("_gate", "_reader")

    def __init__(self, id: str, name: str, reader: Callable[[], Reader | None]) -> None:
        super().__init__(id, name, None)
        self._reader = reader
        self._gate = threading.Lock()
        self._gate.acquire()

    def wake(self) -> None:
        self.told: bool = True
        try:
            self._gate.release()
        except RuntimeError:
            pass  # told before, and not yet awake

    def park(self, seconds: float | None) -> None:
        """Wait in this thread until told, at most so many seconds (None: without end)."""
        reader = self._reader() if self.group.oldest is self else None
        try:
            if reader is not None and reader.lead(self, seconds):
                self._gate.acquire(blocking=False)
            else:
                self._gate.acquire(timeout=-1 if seconds is None else min(max(seconds, 0.0), threading.TIMEOUT_MAX))
        finally:
            if reader is not None:
                reader.unfollow(self)
            self.told = False


class TaskWaiter(Waiter):
    """A coroutine that waits in ``loop``. ``on_dead_loop`` is called where that turns out to have ended."""

    __slots__ = ("_on_dead_loop", "_parked", "loop")

    def __init__(self, id: str, name: str, loop: Loop, on_dead_loop: Callable[[Loop], None]) -> None:
        super().__init__(id, name, loop)
        self.loop: Loop = loop
        self._on_dead_loop = on_dead_loop
        self._parked: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self.told: bool = True
        try:
            self.loop.call_soon_threadsafe(self._unpark)
        except RuntimeError:  # the loop has ended, and whoever waited in it
            self._on_dead_loop(self.loop)

    def _unpark(self) -> None:
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    async def apark(self, seconds: float | None) -> None:
        """See park()."""
        # told after this look, _unpark finds us parked: it runs in this loop
        if not self.told:
            self._parked = self.loop.create_future()
            alarm = None if seconds is None else self.loop.call_later(max(seconds, 0.0), self._unpark)
            try:
                await self._parked
            finally:
                self._parked = None
                if alarm is not None:
                    alarm.cancel()
        self.told = False


def lone_waiter(loop: Loop | None) -> Waiter:
    """One that waits for something in this process, which nobody reads from Redis."""
    if loop is None:
        return ThreadWaiter("", "", lambda: None)
    return TaskWaiter("", "", loop, lambda loop: None)


class Park:
    """The request of steps to wait until the waiter is told something, at most so many seconds (None: without end)."""

    __slots__ = ("seconds", "waiter")

    def __init__(self, waiter: Waiter, seconds: float | None) -> None:
        self.waiter: Waiter = waiter
        self.seconds: float | None = seconds

    def run(self) -> None:
        assert isinstance(self.waiter, ThreadWaiter)
        self.waiter.park(self.seconds)

    async def arun(self) -> None:
        assert isinstance(self.waiter, TaskWaiter)
        await self.waiter.apark(self.seconds)


class Group:
    """The waiters for one name in this process's threads, or in one event loop, oldest first.

    The oldest looks when ``due`` (monotonic). Each loop looks for itself: another may hang, or be gone.
    """

    __slots__ = ("asks_until", "doubts_from", "due", "loop", "name", "oldest", "seen", "waiters")

    def __init__(self, name: str, loop: Loop | None) -> None:
        self.name: str = name
        self.loop: Loop | None = loop
        # a dict would find its first slowly when many before it have left
        self.waiters: OrderedDict[str, Waiter] = OrderedDict()
        self.oldest: Waiter | None = None  # its first; read by waiters at any time
        self.due: float = math.inf  # until one of them has looked
        self.doubts_from: float = 0.0  # monotonic; see Listener.doubt()
        self.seen: Seen = Seen(-math.inf, None, 0.0)
        self.asks_until: float = -math.inf  # one of them asks who holds the lock, for all


class Waiters:
    """All that wait in this process for locks of one backend, by id and in groups. Safe to use from any thread.

    Interrupted methods can be called again: each leaves things as a second call needs them.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Waiter] = {}
        self._groups: dict[tuple[str, Loop | None], Group] = {}
        # a finalizer may run on this thread and close a coroutine that waits, so the lock is reentrant
        self._mutex = threading.RLock()
        self._tasks: dict[str, None] = {}  # the coroutines among them
        self._tasks_until = 0.0  # when no more of them are expected

    def get(self, id: str) -> Waiter | None:
        return self._by_id.get(id)

    @property
    def expects_tasks(self) -> bool:
        """Whether coroutines wait, or did a moment ago."""
        return bool(self._tasks) or monotonic() < self._tasks_until

    def add(self, waiter: Waiter) -> None:
        """From now on, what is told reaches it."""
        key = (waiter.group.name, waiter.group.loop)
        with self._mutex:
            waiter.registered = True
            waiter.group = group = self._groups.setdefault(key, waiter.group)
            if isinstance(waiter, TaskWaiter):
                self._tasks[waiter.id] = None
            self._by_id[waiter.id] = group.waiters[waiter.id] = waiter
            group.oldest = group.oldest or waiter

    def discard(self, waiter: Waiter) -> None:
        """It has its lock or leaves; the next one of its group inherits its looks."""
        if not waiter.registered:
            return
        group = waiter.group
        with self._mutex:
            again = self._by_id.pop(waiter.id, None) is None
            group.waiters.pop(waiter.id, None)
            if self._tasks.pop(waiter.id, waiter) is None:
                self._tasks_until = monotonic() + HOT_FOR
            before, group.oldest = group.oldest, next(iter(group.waiters.values()), None)
            heir = group.oldest
            if heir is None and self._groups.get((group.name, group.loop)) is group:
                del self._groups[group.name, group.loop]
        if heir is not None and (again or heir is not before):
            heir.wake()
        waiter.registered = False

    def discard_loop(self, loop: Loop) -> list[Waiter]:
        """The loop has ended: forget those that waited in it, and return them."""
        buried: list[Waiter] = []
        with self._mutex:
            for key in [key for key in self._groups if key[1] is loop]:
                buried += self._groups.pop(key).waiters.values()
            for waiter in buried:
                self._by_id.pop(waiter.id, None)
                self._tasks.pop(waiter.id, None)
                waiter.registered = False
        return buried

    def groups(self, name: str) -> list[Group]:
        """Those that the lock ``name`` is for; a pool's member is also for those who want any."""
        split = split_member(name)
        names = (name,) if split is None else (name, split[0])
        with self._mutex:
            return [group for group in self._groups.values() if group.name in names]

    def of(self, name: str | None = None) -> list[Waiter]:
        """Those that wait for ``name``; None: all."""
        with self._mutex:
            return [waiter for waiter in self._by_id.values() if name is None or waiter.group.name == name]
