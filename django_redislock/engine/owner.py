"""Whose acquisition it is: a thread's or a task's, and what each of them holds.

Sync code that a task runs by ``sync_to_async`` is that task's, and a coroutine that sync code runs by ``async_to_sync``
is whose that sync code is, however deep they are nested. A child task is another owner than its parent, and so is the
sync code that it runs. The context cannot tell them apart, as a child task starts with a copy of its parent's.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from asgiref.sync import SyncToAsync

from ..store.place import Backend
from .bridges import Task, root_of, runs_below
from .lease import Lease, Section

MANY = 100  # objects, before those are forgotten whose locks were lost and never released

_shown: ContextVar[Owner | None] = ContextVar("django_redislock.owner", default=None)
_place: ContextVar[object] = ContextVar("django_redislock.place", default=None)  # the thread that was told so


class Owner:
    """A thread or a task, and what it holds: by the object through which it was acquired, and by name."""

    __slots__ = ("__weakref__", "_held", "_leases", "_pid", "_sweep_at", "_who")

    def __init__(self, who: Task | threading.Thread) -> None:
        self._who: weakref.ref[Any] = weakref.ref(who)
        self._pid = os.getpid()
        self._held: dict[int, list[Section]] = {}  # by the id of the object, which its sections keep alive
        self._leases: dict[tuple[Backend, str], Lease] = {}
        self._sweep_at = MANY

    # -- what it holds ----------------------------------------------------------------------------------------------

    def section(self, through: object) -> Section | None:
        """The latest one through this object that was not given back."""
        held = self._held.get(id(through))
        return held[-1] if held else None

    def lease_on(self, backend: Backend, name: str) -> Lease | None:
        """That on the lock of this name, as long as nothing speaks against it."""
        lease = self._leases.get((backend, name))
        # one whose release failed may be somebody else's by now, and nothing renews it
        return lease if lease is not None and not (lease.closed or lease.lost or lease.tried_release) else None

    def id_on(self, backend: Backend, name: str) -> str | None:
        """The id of its acquisition of the lock of this name, if there is one, though it may be lost."""
        lease = self._leases.get((backend, name))
        return None if lease is None else lease.id

    def enter(self, section: Section, lease: Lease) -> None:
        """The section uses the lease from now on."""
        lease.shares[section] = None
        self._leases[lease.backend, lease.name] = lease
        held = self._held.setdefault(id(section.through), [])
        for other in [other for other in held if other.held.lost]:
            _discard(held, other)
        held.append(section)
        if max(len(self._held), len(self._leases)) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Forget the locks that were lost and never released."""
        for through, sections in list(self._held.items()):
            if all(section.held.lost for section in sections):
                self._held.pop(through, None)
        for key, lease in list(self._leases.items()):
            if lease.lost or lease.closed:
                self._leases.pop(key, None)
        self._sweep_at = max(MANY, 2 * max(len(self._held), len(self._leases)))

    def leave(self, section: Section, lease: Lease) -> None:
        """The section uses the lease no more. May be called again, and from any thread."""
        lease.shares.pop(section, None)
        self.forget(section)
        key = lease.backend, lease.name
        if not lease.shares and self._leases.get(key) is lease:
            self._leases.pop(key, None)

    def disown(self, section: Section, lease: Lease, *, known: bool = False) -> None:
        """It is for somebody else to leave. ``known``: until then, this one goes on under the lease."""
        self.forget(section)
        key = lease.backend, lease.name
        if not known and len(lease.shares) <= 1 and self._leases.get(key) is lease:
            self._leases.pop(key, None)

    @contextmanager
    def under(self, lease: Lease) -> Iterator[None]:
        """For the time of a block, this one knows that it runs under a lease that is for somebody else to leave."""
        key = lease.backend, lease.name
        unknown = key not in self._leases
        try:
            if unknown:
                self._leases[key] = lease
            yield
        finally:
            if unknown and self._leases.get(key) is lease:
                self._leases.pop(key, None)

    def forget(self, section: Section) -> None:
        """It is not found by its object any more."""
        # an empty list stays until it is swept: the owner itself may be about to append to it
        _discard(self._held.get(id(section.through), []), section)

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
        # while atexit runs its functions on the main thread, is_alive() says that this thread has ended
        return who is not None and (who is threading.main_thread() or who.is_alive())


def _discard(sections: list[Section], section: Section) -> None:
    """At one stroke: the watchdog does so as well, of what was interrupted."""
    try:
        sections.remove(section)
    except ValueError:
        pass


# weakly: what has ended holds nothing
_owners: weakref.WeakKeyDictionary[Task | threading.Thread, Owner] = weakref.WeakKeyDictionary()


def current_owner() -> Owner:
    """The owner of what the running code acquires."""
    task, shown = running_task(), shown_owner()
    if shown is not None and _is_obvious(shown, task):
        if task is None and shown.task is not None:
            _place.set(weakref.ref(threading.current_thread()))
        return shown
    who = root_of(task, None if shown is None else shown.task)
    if shown is not None and (who is None or _was_left(shown, who)):
        return shown
    who = who or threading.current_thread()
    owner = _owners.get(who)
    if owner is None or not owner.here:
        owner = _owners[who] = Owner(who)
    _shown.set(owner)
    _place.set(weakref.ref(threading.current_thread()))
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


def _was_left(shown: Owner, who: Task | threading.Thread) -> bool:
    """Whether it runs sync code of the task that the context shows, which was cancelled and has ended meanwhile."""
    return not shown.alive() and _place.get() == weakref.ref(who)
