"""Who waits for the running code, across the bridges between sync code and coroutines.

``sync_to_async`` and ``asyncio.to_thread`` run sync code for a task, ``async_to_sync`` a task for sync code. None of
them says for whom: their frames, contexts and futures do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import gc
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future as ConcurrentFuture
from contextvars import Context, ContextVar
from itertools import islice
from time import monotonic
from types import FrameType, FunctionType
from typing import Any

import asgiref.current_thread_executor
from asgiref.sync import AsyncToSync, SyncToAsync

Task = asyncio.Task[Any]

MOST_FOLLOWED = 50  # references between a thread's work and the task that waits for it; there are about ten
STARTING_WITHIN = 0.05  # seconds in which a task waits for the sync code that it has started

_mark: ContextVar[object] = ContextVar("django_redislock.mark", default=None)


def root_of(task: Task | None, hint: Task | None) -> Task | threading.Thread | None:
    """Who is behind the running ``task`` or (None) sync code; None where that cannot be told.

    ``hint``: see launching_task().
    """
    if task is None:
        task = launching_task(hint)
        if task is None:
            return threading.current_thread()
    while _is_bridge(task):
        caller = _caller_of(task)
        if not asyncio.isfuture(caller):
            return caller
        task = caller
    return task


def launching_task(hint: Task | None) -> Task | None:
    """The task that waits for this thread's code by ``sync_to_async``, if any.

    ``hint``: a task of the event loop that it may be in: ``asyncio.to_thread`` does not say.
    """
    loop = getattr(SyncToAsync.threadlocal, "main_event_loop", None)
    if loop is None and hint is not None:
        loop = hint.get_loop()
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
