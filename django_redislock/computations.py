"""The computations of values that are under way in this process: who leads each, and who waits for its end."""

from __future__ import annotations

import asyncio
import threading
import weakref

from .base.per_process import PerProcess
from .engine import Acquisition, Frame
from .engine.messages.waiters import Waiter
from .engine.owners.held import Runner, running_task, runs, served_loop
from .exceptions import LockUnavailable


class Computation:
    """One caller that asks for the lock and computes, while the others of this process wait for it to end.

    It carries no value: each reads its own from the cache, since no two should share a mutable object.
    """

    def __init__(self, leader: Runner, frame: Frame) -> None:
        self.leader = weakref.ref(leader)
        self.loop = loop_here()  # for which it is computed
        self.section: Acquisition | None = None  # once it asks for the lock
        self.ended: bool = False
        self.trouble: LockUnavailable | None = None  # by which it ended
        self.waiters: dict[Waiter, None] = {}
        self._frame = weakref.ref(frame)  # whoever is interrupted does not come to the end

    @property
    def goes_on(self) -> bool:
        """Whether it may still come to its end, so that nobody else should compute."""
        lease = None if self.section is None else self.section.lease
        over = lease is not None and (lease.lost or lease.closed)
        return self._frame() is not None and (leader := self.leader()) is not None and runs(leader) and not over

    def end(self, trouble: LockUnavailable | None) -> None:
        self.trouble, self.ended = trouble, True
        for waiter in list(self.waiters):
            waiter.wake()


def loop_here() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, or for which it runs sync code."""
    return asyncio._get_running_loop() or served_loop()


class _Computations:
    """Those that are under way in this process, by alias and name of their locks."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a finalizer may run on this thread and compute as well
        self._under_way: dict[tuple[str | None, str], Computation] = {}

    def join(self, key: tuple[str | None, str], frame: Frame) -> tuple[Computation, bool]:
        """The computation of this value, and whether the caller has to do it."""
        leader = running_task() or threading.current_thread()
        with self._mutex:
            known = self._under_way.get(key)
            # a finalizer may want the value for which its own thread is about to ask
            if known is not None and known.goes_on and known.leader() is not leader:
                return known, False
            self._under_way[key] = made = Computation(leader, frame)
            return made, True

    def end(self, key: tuple[str | None, str], computation: Computation, trouble: LockUnavailable | None) -> None:
        with self._mutex:
            if self._under_way.get(key) is computation:
                del self._under_way[key]
        computation.end(trouble)


computations = PerProcess(_Computations)
