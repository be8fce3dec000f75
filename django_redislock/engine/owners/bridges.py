"""For whom the running code runs, across the bridges between sync code and coroutines.

``sync_to_async`` and ``asyncio.to_thread`` run sync code for a task, and ``async_to_sync`` a task for sync code. None
of them records for whom; we find out from their frames, contexts and futures.
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
from contextlib import suppress
from contextvars import Context, ContextVar
from itertools import islice
from types import FrameType, FunctionType
from typing import Any

import asgiref.current_thread_executor
from asgiref.sync import AsyncToSync, SyncToAsync

from ...base.times import monotonic

Task = asyncio.Task[Any]
Work = ConcurrentFuture[Any]

MOST_FOLLOWED = 50  # references to follow from a thread's work to the task that waits for it; about ten suffice
STARTING_WITHIN = 0.05  # seconds from a task's starting sync code to its waiting for it
LAUNCHING_WITHIN = 5.0  # the same while the task is seen starting it: its thread may be slow to get its turn

_mark: ContextVar[object] = ContextVar("django_redislock.mark", default=None)


def root_of(task: Task | None, hint: Task | None) -> Task | threading.Thread | None:
    """The task or thread for which ``task`` (None: sync code) runs in the end; None if that cannot be told.

    ``hint``: see launching_task().
    """
    if task is None:
        task = launching_task(hint)
        if task is None:
            return threading.current_thread()
    while (frame := _bridge_frame(task)) is not None:
        caller = _caller_of(task, frame)
        if not asyncio.isfuture(caller):
            return caller
        task = caller
    return task


def launching_task(hint: Task | None) -> Task | None:
    """The task that waits for this thread's code by ``sync_to_async`` or ``asyncio.to_thread``, if any.

    ``hint``: a task of the event loop that it may be in, in case the futures do not lead to it.
    """
    loop = getattr(SyncToAsync.threadlocal, "main_event_loop", None)
    if loop is None and hint is not None:
        loop = hint.get_loop()
    for known in _looks_at(_work_above(sys._getframe()), loop):
        # code that runs in a context of its own does not show the mark
        if known is not None and (runs_below(known) or _launches(known)):
            return known
        if loop is not None and loop.is_running():
            running = asyncio.current_task(loop)
            for task in asyncio.all_tasks(loop):
                if task is not running and runs_below(task):
                    return task
    return None


def _looks_at(work: Work | None, loop: asyncio.AbstractEventLoop | None = None) -> Iterator[Task | None]:
    """Call _woken_task() for this work, repeatedly while a task may be about to wait for it.

    ``loop``: where that task may be.
    """
    begun, launching = monotonic(), work is not None
    while True:
        # a running task may just have started this work, and be about to wait for it
        running = loop is not None and loop.is_running() and asyncio.current_task(loop) is not None
        yield _woken_task(work)
        waited = monotonic() - begun
        if not (launching and waited < LAUNCHING_WITHIN) and not (running and waited < STARTING_WITHIN):
            break
        launching = work is not None and _is_launching()  # one that waits by now is seen in the next round
        if launching or running:
            time.sleep(0.0005)


def _is_launching() -> bool:
    """Whether any thread is in the middle of starting sync code for a task."""
    return any(frame.f_code in _LAUNCHERS for stack in sys._current_frames().values() for frame in _stack(stack))


def _work_above(frame: FrameType) -> Work | None:
    """The thread pool's work that the code in this frame is part of, if any."""
    for above in _stack(frame):
        if above.f_code in _WORK_ITEMS:
            return above.f_locals["self"].future  # type: ignore[no-any-return]
    return None


def _woken_task(work: Work | None) -> Task | None:
    """The task that will be woken when this work ends, found by following the futures between them.

    It saves looking at each of thousands of tasks. Check the result: what a task waits for need not run on its behalf.
    """
    followed: list[Any] = [] if work is None else [work]
    for thing in islice(followed, MOST_FOLLOWED):  # it grows meanwhile
        if hasattr(thing, "_fut_waiter"):  # a task, though one implemented in Python need not be an asyncio.Task
            waits_for = thing._fut_waiter
            if any(waits_for is other for other in followed):  # otherwise, it is only referred to
                return thing  # type: ignore[no-any-return]
        elif isinstance(thing, ConcurrentFuture):
            followed += thing._done_callbacks  # type: ignore[attr-defined]
        elif asyncio.isfuture(thing):
            followed += [callback for callback, _ in thing._callbacks or ()]
        elif isinstance(thing, FunctionType):
            for cell in thing.__closure__ or ():
                with suppress(ValueError):  # an empty cell
                    followed.append(cell.cell_contents)
        elif callable(thing):
            followed += gc.get_referents(thing)  # a task's wakeup callback has no attribute that names the task
    return None


def runs_below(task: Task) -> bool:
    """Whether ``task`` waits for this thread's code, by ``sync_to_async`` or ``asyncio.to_thread``.

    Both run the code in a context that their coroutine keeps, so a mark set in our context shows up there.
    """
    mark = object()
    token = _mark.set(mark)
    try:
        frame = None
        for frame in _frames(task):
            if frame.f_code in _LAUNCHERS and _shows(frame, mark):
                return True
        # other functions may run sync code in the same way; then the innermost frame waits for it
        return frame is not None and _shows(frame, mark)
    finally:
        _mark.reset(token)


def _shows(frame: FrameType, mark: object) -> bool:
    values = list(frame.f_locals.values())
    return any(isinstance(value, Context) and value.get(_mark) is mark for value in values)


def _caller_of(bridge: Task, frame: FrameType) -> Task | threading.Thread | None:
    """The caller of the ``async_to_sync`` that made this task; None if that cannot be told."""
    loop, context = bridge.get_loop(), frame.f_locals.get("task_context")
    thread: threading.Thread | None = None
    if context is None:  # no sync_to_async above it
        thread = getattr(AsyncToSync.loop_thread_executors.get(loop), "_work_thread", None)
    else:  # sync code below a task: both share this list. (Or it is left over from the thread's previous work)
        for task in asyncio.all_tasks(loop):
            for waiting in _frames(task):
                if waiting.f_code is _SYNC_TO_ASYNC and waiting.f_locals.get("task_context") is context:
                    return task
    stacks = sys._current_frames()
    for stack in stacks.values() if thread is None else [stacks.get(thread.ident or 0)]:
        for call in _stack(stack):
            if call.f_code is _CALL and call.f_locals.get("call_result") is frame.f_locals.get("call_result"):
                task_behind = _task_behind(call)
                if task_behind is None and any(_has_begun(above, context) for above in _stack(call)):
                    return None  # that task no longer waits
                return task_behind or call.f_locals["current_executor"]._work_thread
    return thread


def _has_begun(frame: FrameType, context: object) -> bool:
    """Whether this frame is ``sync_to_async`` running its sync code, and shares this list with ``async_to_sync``."""
    return frame.f_code is _HANDLER and frame.f_locals["task_context"] is context


def _task_behind(frame: FrameType) -> Task | None:
    """The task that waits for the code in this frame of another thread, if any.

    We cannot set a mark in that thread's context. But a task waits for one thing at a time.
    """
    for known in _looks_at(_work_above(frame)):
        if known is not None:
            return known if _launches(known) else None
    return None


def _launches(task: Task) -> bool:
    """Whether the task waits for sync code, directly."""
    codes = [frame.f_code for frame in _frames(task)]
    return bool(codes) and codes[-1] in _LAUNCHERS


def _bridge_frame(task: Task) -> FrameType | None:
    """The frame of ``async_to_sync``, if that made the task; such a task ends with the call of its sync caller."""
    coroutine: Any = task.get_coro()
    frame = getattr(coroutine, "cr_frame", None)
    if frame is not None and frame.f_code.co_filename == _ASYNC_TO_SYNC.co_filename:
        # newer versions wrap it once more if it has an event loop of its own
        coroutine = frame.f_locals.get("awaitable") if frame.f_code.co_name == "new_loop_wrap" else coroutine
        if getattr(coroutine, "cr_code", None) is _ASYNC_TO_SYNC:
            return coroutine.cr_frame  # type: ignore[no-any-return]
    return None


_ASYNC_TO_SYNC, _SYNC_TO_ASYNC = AsyncToSync.main_wrap.__code__, SyncToAsync.__call__.__code__
_WORK_ITEMS = {asgiref.current_thread_executor._WorkItem.run.__code__, concurrent.futures.thread._WorkItem.run.__code__}
_CALL, _HANDLER = AsyncToSync.__call__.__code__, SyncToAsync.thread_handler.__code__
_LAUNCHERS = {_SYNC_TO_ASYNC, asyncio.to_thread.__code__}


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """This frame and those of its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _frames(task: Task) -> Iterator[FrameType]:
    """The frames in which a task waits, the outermost first."""
    waits: Any = task.get_coro()
    while waits is not None and not asyncio.isfuture(waits):
        for frame, inner in _FRAMES:
            found = getattr(waits, frame, None)
            if found is not None:
                yield found
                waits = getattr(waits, inner)
                break
        else:
            # what drives a generator (asend(), a coroutine's __await__()) has no attribute that names it
            driven = gc.get_referents(waits)
            waits = next((found for found in driven if any(hasattr(found, frame) for frame, _ in _FRAMES)), None)


_FRAMES = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
