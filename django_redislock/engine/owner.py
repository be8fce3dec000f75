"""Whose acquisition it is: a thread's or a task's, and what each of them holds.

Sync code that a task runs by ``sync_to_async`` is that task's, and a coroutine that sync code runs by ``async_to_sync``
is whose that sync code is, however deep they are nested. A child task is another owner than its parent, and so is the
sync code that it runs. The context cannot tell them apart, as a child task starts with a copy of its parent's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future as ConcurrentFuture
from contextvars import Context, ContextVar
from itertools import islice
from time import monotonic
from types import FrameType, FunctionType
from typing import Any

import asgiref.current_thread_executor
from asgiref.sync import AsyncToSync, SyncToAsync

from ..store.place import Backend
from .lease import Lease, Section

Task = asyncio.Task[Any]

MANY = 100  # objects, before those are forgotten whose locks were lost and never released
MOST_FOLLOWED = 50  # references between a thread's work and the task that waits for it; there are about ten
STARTING_WITHIN = 0.05  # seconds in which a task waits for the sync code that it has started

_shown: ContextVar[Owner | None] = ContextVar("django_redislock.owner", default=None)
_mark: ContextVar[object] = ContextVar("django_redislock.mark", default=None)


class Owner:
    """A thread or a task, and what it holds: by the object through which it was acquired, and by name."""

    __slots__ = ("__weakref__", "_held", "_leases", "_pid", "_sweep_at", "_who")

    def __init__(self, who: Task | threading.Thread) -> None:
        self._who: weakref.ref[Any] = weakref.ref(who)
        self._pid = os.getpid()
        self._held: dict[object, list[Section]] = {}
        self._leases: dict[tuple[Backend, str], Lease] = {}
        self._sweep_at = MANY

    # -- what it holds ----------------------------------------------------------------------------------------------

    def section(self, through: object) -> Section | None:
        """The latest one through this object that was not given back."""
        held = self._held.get(through)
        return held[-1] if held else None

    def lease_on(self, backend: Backend, name: str) -> Lease | None:
        """That on the lock of this name, as long as nothing speaks against it."""
        lease = self._leases.get((backend, name))
        # one whose release failed may be somebody else's by now, and nothing renews it
        return lease if lease is not None and not (lease.closed or lease.lost or lease.tried_release) else None

    def tokens(self, backend: Backend) -> dict[str, str]:
        """The tokens of what it holds, by name."""
        return {lease.name: lease.token for (known, _), lease in list(self._leases.items()) if known is backend}

    def enter(self, section: Section, lease: Lease) -> None:
        """The section uses the lease from now on."""
        lease.shares[section] = None
        self._leases[lease.backend, lease.name] = lease
        held = self._held.setdefault(section.through, [])
        held[:] = [other for other in held if not other.held.lost]
        held.append(section)
        if len(self._held) > self._sweep_at:  # locks that were lost and never released
            for through, sections in list(self._held.items()):
                if all(section.held.lost for section in sections):
                    del self._held[through]
            self._sweep_at = max(MANY, 2 * len(self._held))

    def leave(self, section: Section, lease: Lease) -> None:
        """The section uses the lease no more. May be called again, and from any thread."""
        lease.shares.pop(section, None)
        self.forget(section)
        key = lease.backend, lease.name
        if not lease.shares and self._leases.get(key) is lease:
            self._leases.pop(key, None)

    def disown(self, section: Section, lease: Lease) -> None:
        """It is for somebody else to leave."""
        self.forget(section)
        key = lease.backend, lease.name
        if len(lease.shares) <= 1 and self._leases.get(key) is lease:
            self._leases.pop(key, None)

    def forget(self, section: Section) -> None:
        """It is not found by its object any more."""
        held = self._held.get(section.through)
        if held is not None:
            held[:] = [other for other in held if other is not section]
            if not held:
                self._held.pop(section.through, None)

    # -- who it is --------------------------------------------------------------------------------------------------

    @property
    def here(self) -> bool:
        """Not in the process that this one was forked from."""
        return self._pid == os.getpid()

    @property
    def who(self) -> Task | threading.Thread | None:
        """The task or thread that it is, as long as that exists."""
        return self._who()

    @property
    def task(self) -> Task | None:
        """The task that it is, if it is one."""
        who = self._who()
        return who if asyncio.isfuture(who) else None  # type: ignore[return-value]

    def alive(self) -> bool:
        """Whether it can still release what it holds."""
        who: Any = self._who()
        # not the other way round: gevent leaves in threading a Thread that not all of its threads are instances of
        if asyncio.isfuture(who):
            # nobody goes on with a task whose loop was closed over it
            return not who.done() and not who.get_loop().is_closed()
        return who is not None and who.is_alive()


# weakly: what has ended holds nothing
_owners: weakref.WeakKeyDictionary[Task | threading.Thread, Owner] = weakref.WeakKeyDictionary()


def current_owner() -> Owner:
    """The owner of what the running code acquires."""
    task, shown = running_task(), shown_owner()
    if shown is not None and _is_obvious(shown, task):
        return shown
    who = _root(task, shown)
    if who is None and shown is not None:
        return shown
    who = who or threading.current_thread()
    owner = _owners.get(who)
    if owner is None or not owner.here:
        owner = _owners[who] = Owner(who)
    _shown.set(owner)
    return owner


def shown_owner() -> Owner | None:
    """The owner that the context shows, though it may be that of a parent task."""
    shown = _shown.get()
    return shown if shown is not None and shown.here else None


def running_task() -> Task | None:
    """The task that runs in this thread, if any."""
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


def _is_obvious(shown: Owner, task: Task | None) -> bool:
    """Whether the running code is that of the owner that the context shows, where that is quick to tell."""
    who = shown.who
    if task is not None:
        return who is task
    if asyncio.isfuture(who):
        return runs_below(who)
    # one that has run sync code of a task may run that of another. (AsyncToSync.executors would tell, but takes a lock
    # for it, which a time limit that strikes in that moment leaves locked for good)
    return who is threading.current_thread() and getattr(SyncToAsync.threadlocal, "main_event_loop", None) is None


def _root(task: Task | None, shown: Owner | None) -> Task | threading.Thread | None:
    """Who is behind the running ``task`` or (None) sync code; None where that cannot be told."""
    if task is None:
        task = launching_task(shown)
        if task is None:
            return threading.current_thread()
    while _is_bridge(task):
        caller = _caller_of(task)
        if not asyncio.isfuture(caller):
            return caller
        task = caller
    return task


def launching_task(shown: Owner | None = None) -> Task | None:
    """The task that waits for this thread's code by ``sync_to_async``, if any."""
    loop = getattr(SyncToAsync.threadlocal, "main_event_loop", None)
    if loop is None and shown is not None and shown.task is not None:
        loop = shown.task.get_loop()  # asyncio.to_thread does not say
    end = monotonic() + STARTING_WITHIN
    while loop is not None and loop.is_running():
        # one that runs may just have started this code, and wait for it in a moment
        running = asyncio.current_task(loop)
        known = _woken_task()
        if known is not None and runs_below(known):
            return known
        for task in asyncio.all_tasks(loop):
            if task is not running and runs_below(task):
                return task
        if running is None or monotonic() > end:
            break
        time.sleep(0.0005)
    return None


def _woken_task() -> Task | None:
    """The task that will be woken when this thread's code has ended, as far as the futures between them tell.

    It saves looking at each of thousands of tasks, and must be checked: others may have an interest in a future.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code not in _WORK_ITEMS:
        frame = frame.f_back
    followed: list[Any] = [] if frame is None else [frame.f_locals["self"].future]
    for thing in islice(followed, MOST_FOLLOWED):  # it grows meanwhile
        if isinstance(thing, asyncio.Task):
            return thing
        if isinstance(thing, ConcurrentFuture):
            followed += thing._done_callbacks  # type: ignore[attr-defined]
        elif asyncio.isfuture(thing):
            followed += [callback for callback, _ in thing._callbacks or ()]
        elif isinstance(thing, FunctionType):
            followed += [cell.cell_contents for cell in thing.__closure__ or ()]
        elif callable(thing):
            followed += gc.get_referents(thing)  # what wakes a task does not say which, either
    return None


def runs_below(task: Task) -> bool:
    """Whether this thread's code is what ``task`` waits for, by ``sync_to_async`` or ``asyncio.to_thread``.

    Both run it in a context that the coroutine keeps. So a mark that we leave in our context is seen in there.
    """
    mark = object()
    token = _mark.set(mark)
    try:
        frame = None
        for frame in _frames(task):
            if frame.f_code in _LAUNCHERS and _shows(frame, mark):
                return True
        # whatever else calls sync code so, the innermost waits for it
        return frame is not None and _shows(frame, mark)
    finally:
        _mark.reset(token)


def _shows(frame: FrameType, mark: object) -> bool:
    values = list(frame.f_locals.values())
    return any(isinstance(value, Context) and value.get(_mark) is mark for value in values)


def _caller_of(bridge: Task) -> Task | threading.Thread | None:
    """Who has called ``async_to_sync``, which made this task; None where that cannot be told."""
    frame, loop = _bridge_frame(bridge), bridge.get_loop()
    context = None if frame is None else frame.f_locals.get("task_context")
    if context is None:  # no sync_to_async above it
        return getattr(AsyncToSync.loop_thread_executors.get(loop), "_work_thread", None)
    # sync code below a task: both know this list
    for task in asyncio.all_tasks(loop):
        for frame in _frames(task):
            if frame.f_code is _SYNC_TO_ASYNC and frame.f_locals.get("task_context") is context:
                return task
    return None


def _is_bridge(task: Task) -> bool:
    """Whether the task was made by ``async_to_sync``: it ends with the call, and the sync caller goes on."""
    return _bridge_frame(task) is not None


def _bridge_frame(task: Task) -> FrameType | None:
    coroutine: Any = task.get_coro()
    frame = getattr(coroutine, "cr_frame", None)
    if frame is not None and frame.f_code.co_filename == _ASYNC_TO_SYNC.co_filename:
        # in a loop of its own, newer versions wrap it once more
        coroutine = frame.f_locals.get("awaitable") if frame.f_code.co_name == "new_loop_wrap" else coroutine
        if getattr(coroutine, "cr_code", None) is _ASYNC_TO_SYNC:
            return coroutine.cr_frame  # type: ignore[no-any-return]
    return None


_ASYNC_TO_SYNC, _SYNC_TO_ASYNC = AsyncToSync.main_wrap.__code__, SyncToAsync.__call__.__code__
_WORK_ITEMS = {asgiref.current_thread_executor._WorkItem.run.__code__, concurrent.futures.thread._WorkItem.run.__code__}
_LAUNCHERS = {_SYNC_TO_ASYNC, asyncio.to_thread.__code__}


def _frames(task: Task) -> Iterator[FrameType]:
    """The frames in which a task waits, from the outside."""
    waits: Any = task.get_coro()
    while waits is not None and not asyncio.isfuture(waits):
        for frame, inner in _FRAMES:
            found = getattr(waits, frame, None)
            if found is not None:
                yield found
                waits = getattr(waits, inner)
                break
        else:
            # what drives a generator (asend(), __await__() of a coroutine) does not say which
            driven = gc.get_referents(waits)
            waits = next((found for found in driven if any(hasattr(found, frame) for frame, _ in _FRAMES)), None)


_FRAMES = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
