"""What is held here. It stands in the context, as an immutable value: a child's context is a copy, so a child sees what
was held when it was started, and nothing that came later.

What the context shows belongs to the running code, unless it is that of another task, or of another thread, which still
runs. So sync code that a task runs, and coroutines of sync code, go on with what either of them holds.

What a method acquires belongs to whoever has *called* it: ``asyncio.wait_for`` (before Python 3.12), ``gather`` and
``create_task`` run a coroutine in a task of its own, which ends with it. So whose it is, and of which acquisition it
speaks, is decided before there is a coroutine; see :func:`twin`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import update_wrapper
from itertools import chain, islice
from types import CoroutineType, MethodType
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import AsyncToSync

from ..base.steps import ASGIREF, served_loop
from ..store.lock_store import Partition
from .lease import Lease, Task

Loop = asyncio.AbstractEventLoop
Runner = Task | threading.Thread
Key = tuple[str, str]  # the identity of a partition, and a name

FEW = 16  # entries that are copied each time


class Held:
    """What the context shows of an Acquisition (acquisition.py), and whose it is."""

    # with the dict, which few need: for what has a default in this class, or in those that follow
    __slots__ = (
        *("__dict__", "__weakref__", "_caller", "_ground", "_keeper", "_pid"),
        *("keys", "lease", "name", "over", "partition"),
    )

    name: str
    partition: Partition
    lease: Lease | None
    keys: tuple[Key, ...]  # under which it is shown
    over: bool  # given back, or never got
    _pid: int
    # three answers to "whose is it", each a weak reference or None: who has called for it, and may release it ...
    _caller: Any
    # ... what has to live for it to be renewed (as a rule the Lock, see _through in release.py) ...
    _keeper: Any
    # ... and the thread or event loop where it is given back, which has to run for that: see ground()
    _ground: weakref.ref[Any] | None

    @property
    def caller(self) -> Runner | None:
        """The task or thread that has called for it, as long as that exists; None where the context alone counts."""
        return None if self._caller is None else self._caller()

    @property
    def here(self) -> bool:
        """Whether it was made in this process, not in the one that it was forked from."""
        return self._pid == os.getpid()

    @property
    def orphaned(self) -> bool:
        """Whether whoever has called for it has ended."""
        if self._caller is None:
            return not self.may_be_given_back()
        runner = self._caller()
        return runner is None or not runs(runner)

    @property
    def its_lease(self) -> Lease:
        """The lease, once it is obtained."""
        assert self.lease is not None
        return self.lease

    def may_be_given_back(self) -> bool:
        """Return whether anybody is left who could do so."""
        if self._ground is not None and not stands(self._ground()):
            return False
        return self._keeper is None or self._keeper() is not None

    def abandon(self) -> None: ...


References = tuple[weakref.ref[Held], ...]


# By partition and name, the acquisitions that the context shows, as long as they exist: all of them, and what has
# changed since. A release changes nothing here: what is over is passed over, and forgotten when another one is shown.
# Neither dict is ever changed: a new one takes the place of the second, and seldom of both, so that the ten-thousandth
# lock costs what the first does.
_Map = dict[Key, References]
_shown: ContextVar[tuple[_Map, _Map]] = ContextVar("django_redislock.held", default=({}, {}))


def _get(key: Key) -> References:
    known, late = _shown.get()
    return late[key] if key in late else known.get(key, ())


def _put(key: Key, references: References) -> None:
    known, late = _shown.get()
    late = {**late, key: references}
    if not known:
        late = {key: shown for key, shown in late.items() if any(map(_existing, shown))}
    if len(late) > FEW and len(late) ** 2 > len(known):
        known, late = {key: left for key, some in {**known, **late}.items() if (left := _not_over(some))}, {}
    _shown.set((known, late))


def _existing(reference: weakref.ref[Held]) -> Held | None:
    """The acquisition, unless it is gone or over."""
    one = reference()
    return None if one is None or one.over else one


def _not_over(shown: References) -> References:
    """Without those that are over, or gone, or of an alias that is another one now."""
    return tuple(
        reference for reference in shown if (one := _existing(reference)) is not None and not one.partition.store.closed
    )


def show(acquisition: Held, key: Key) -> tuple[Held, ...]:
    """Show it in this context under one of its keys, though nothing may be held yet.

    Returns what was shown before; see shown_above().
    """
    mine, above, (known, late) = weakref.ref(acquisition), shown_above(key), _shown.get()
    if above or known or len(late) > 1:
        _put(key, (*_not_over(_get(key)), mine))
    else:  # nearly always
        _shown.set(({}, {key: (mine,)}))
    return above


def shown_above(key: Key) -> tuple[Held, ...]:
    """Return what this context shows: all under this key, and the latest under others."""
    known, late = _shown.get()
    if not known and not any(map(_existing, chain(*late.values()))):  # nearly always
        return ()
    latest = islice(chain(reversed(late.items()), reversed(known.items())), FEW)
    others = [shown for other, shown in latest if other != key]
    return tuple(filter(None, map(_existing, (*_not_over(_get(key)), *chain(*others)))))


def hide(acquisition: Held) -> None:
    """No longer show it in this context."""
    reference = weakref.ref(acquisition)
    for key in acquisition.keys:
        _put(key, tuple(one for one in _get(key) if one != reference))


def is_shown(acquisition: Held) -> bool:
    """Return whether this context shows it."""
    reference = weakref.ref(acquisition)
    for key in acquisition.keys:  # noqa: SIM110 (each release comes here)
        if reference in _get(key):
            return True
    return False


@contextmanager
def under(*acquisitions: Held) -> Iterator[None]:
    """During a block, this context shows acquisitions that it does not show otherwise."""
    try:
        for one in acquisitions:
            show(one, one.keys[0])
        yield
    finally:
        for one in acquisitions:
            hide(one)


def caller() -> Runner | None:
    """The running task or thread. None in sync code that a thread runs for a task: it runs that of other tasks, too."""
    if asyncio._get_running_loop() is not None:
        return asyncio.current_task()
    return None if ASGIREF.__dict__ and served_loop() is not None else threading.current_thread()


def _is_of_sync_code(task: Task, other: Task) -> bool:
    """Return whether ``async_to_sync`` runs this task, for sync code that the other one may run."""
    loop = task.get_loop()
    if loop is not other.get_loop():
        return loop in AsyncToSync.loop_thread_executors
    code = AsyncToSync.main_wrap.__code__
    if getattr(task.get_coro(), "cr_code", None) is code:
        return True
    # tools such as Sentry's put a coroutine of their own around that of each task
    outermost: Any = getattr(task.get_coro(), "cr_frame", None)
    frame = sys._getframe() if task is asyncio.current_task() else None
    while frame is not None and frame is not outermost and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None and frame.f_code is code


def waiting_thread(loop: Loop) -> threading.Thread | None:
    """The thread whose sync code waits for this running loop by ``async_to_sync``, if any."""
    return getattr(AsyncToSync.loop_thread_executors.get(loop), "_work_thread", None)


def is_foreign(acquisition: Held, runner: Runner | None) -> bool:
    """Return whether an acquisition that the context shows is that of another task, or thread, which still runs."""
    other = acquisition.caller
    if other is None or runner is None or other is runner or not runs(other):
        return False
    if not asyncio.isfuture(runner):
        return not asyncio.isfuture(other)  # else it is the sync code of a task
    # else sync code waits for this task: that thread's, or that of the other task
    if asyncio.isfuture(other):
        return not _is_of_sync_code(runner, other)
    return other is not (waiting_thread(runner.get_loop()) or threading.current_thread())


def runs(runner: Runner) -> bool:
    """Return whether this task or thread has not ended."""
    if asyncio.isfuture(runner):
        # a task whose loop was closed never goes on
        return not runner.done() and not runner.get_loop().is_closed()
    # during atexit, is_alive() is already False for the main thread, which runs it
    return runner is threading.main_thread() or runner.is_alive()


def find(acquisitions: Sequence[Held]) -> Any:
    """That of these, all made through one object, which belongs to the running code; the latest one. Else None.

    Never one that was made before this process was forked.
    """
    if not acquisitions:
        return None
    runner, latest_first = caller(), acquisitions[::-1]  # a copy: other threads leave meanwhile
    for one in latest_first:
        if one.here and not one.over and is_shown(one) and not is_foreign(one, runner):
            return one
    for one in latest_first:
        if one.here and not one.over and runner is not None and one.caller is runner:
            return one
    return None


def leases_on(key: Key, acquisitions: Sequence[Held], runner: Runner | None) -> list[tuple[Lease, bool]]:
    """The leases on this lock that may be held still, the latest first; and whether each is this runner's own."""
    # after a failed release or detach(), nothing renews it, and the lock may be somebody else's by now
    return [
        (one.lease, not is_foreign(one, runner))
        for one in reversed(acquisitions)
        if one.lease is not None
        and (one.partition.identity, one.lease.name) == key
        and one.here
        and not (one.over or one.lease.closed or one.lease.lost or one.lease.tried_release or one.lease.detaching)
    ]


def holds(partition: Partition, name: str, runner: Runner | None, pool: str = "") -> Lease | None:
    """The lease on the lock of this name that is this runner's own, through whichever object. None: it has none.

    ``runner``: see caller(). ``pool``: of which it may be a member.
    """
    key = partition.identity, name
    shown = [one for one in map(_existing, (*_get((partition.identity, pool)), *_get(key))) if one is not None]
    return next((lease for lease, own in leases_on(key, shown, runner) if own), None)


def ground() -> weakref.ref[Any]:
    """The thread (of sync code) or event loop (of coroutines) that this is: where something acquired is given back."""
    loop = asyncio._get_running_loop()
    # sync code that waits for a loop of its own goes on with what that has acquired
    return weakref.ref(threading.current_thread() if loop is None else waiting_thread(loop) or loop)


def stands(ground: threading.Thread | Loop | None) -> bool:
    """Return whether anything can still be given back there."""
    if isinstance(ground, Loop):
        return not ground.is_closed()
    return ground is not None and runs(ground)


P = ParamSpec("P")
R = TypeVar("R")


async def _coroutine_function() -> None: ...


class _Twin:
    """A function that returns a coroutine, and passes for a coroutine function: ``unittest`` calls nothing else."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        update_wrapper(self, function)
        self.__defaults__ = self.__kwdefaults__ = None
        self.__code__ = _coroutine_function.__code__  # inspect looks at its flags

    def __get__(self, instance: object, kind: type | None = None) -> Callable[..., Any]:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        coroutine: Any = self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]
        coroutine.__qualname__ = self.__qualname__  # type: ignore[attr-defined]  # it may never be awaited
        return coroutine


def twin(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, CoroutineType[Any, Any, R]]:
    """Let a method that returns a coroutine be one of coroutines, as type checkers see those of ``async def``."""
    return _Twin(function)
