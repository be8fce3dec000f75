"""The owners of locks, threads and tasks, and what each of them holds.

Sync code that a task runs by ``sync_to_async`` or ``asyncio.to_thread`` belongs to that task, and a coroutine that sync
code runs by ``async_to_sync`` to the owner of that sync code, however deep they are nested. A child task, with the sync
code that it runs, is another owner than its parent. The context does not tell them apart: a child's is a copy of its
parent's.
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

from ...store.lock_store import Partition
from ..leases.lease import Lease, Section
from .bridges import Task, root_of, runs_below

MANY = 100  # objects, above which locks that were lost and never released are swept out

_shown: ContextVar[Owner | None] = ContextVar("django_redislock.owner", default=None)
_set_in_thread: ContextVar[object] = ContextVar("django_redislock.set_in_thread", default=None)


class Owner:
    """A thread or a task, and what it holds: by the object through which it was acquired, and by name."""

    __slots__ = ("__weakref__", "_held", "_leases", "_pid", "_sweep_at", "_who", "is_task")

    def __init__(self, who: Task | threading.Thread) -> None:
        self._who: weakref.ref[Any] = weakref.ref(who)
        self.is_task: bool = asyncio.isfuture(who)
        self._pid = os.getpid()
        self._held: dict[int, list[Section]] = {}  # by the object's id(); its sections keep it alive
        self._leases: dict[tuple[Partition, str], Lease] = {}
        self._sweep_at = MANY

    # -- what it holds ----------------------------------------------------------------------------------------------

    def section(self, through: object) -> Section | None:
        """The latest section of this object that was not given back."""
        held = self._held.get(id(through))
        return held[-1] if held else None

    def lease_on(self, partition: Partition, name: str) -> Lease | None:
        """The lease on the lock of this name, unless it may be over."""
        lease = self._leases.get((partition, name))
        # after a failed release, nothing renews it, and the lock may be somebody else's by now
        return lease if lease is not None and not (lease.closed or lease.lost or lease.tried_release) else None

    def id_on(self, partition: Partition, name: str) -> str | None:
        """The id of its acquisition of the lock of this name, if there is one, though it may be lost."""
        lease = self._leases.get((partition, name))
        return None if lease is None else lease.id

    def enter(self, section: Section, lease: Lease) -> None:
        """The section uses the lease from now on."""
        lease.shares[section] = None
        self._leases[lease.partition, lease.name] = lease
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
        """The section no longer uses the lease. May be called again, and from any thread."""
        lease.shares.pop(section, None)
        self.forget(section)
        key = lease.partition, lease.name
        if not lease.shares and self._leases.get(key) is lease:
            self._leases.pop(key, None)

    def disown(self, section: Section, lease: Lease, *, known: bool = False) -> None:
        """Leaving the lease is up to somebody else. ``known``: until then, this owner goes on under the lease."""
        self.forget(section)
        key = lease.partition, lease.name
        if not known and len(lease.shares) <= 1 and self._leases.get(key) is lease:
            self._leases.pop(key, None)

    @contextmanager
    def under(self, lease: Lease) -> Iterator[None]:
        """During a block, this owner goes on under a lease that somebody else will leave."""
        key = lease.partition, lease.name
        unknown = key not in self._leases
        try:
            if unknown:
                self._leases[key] = lease
            yield
        finally:
            if unknown and self._leases.get(key) is lease:
                self._leases.pop(key, None)

    def forget(self, section: Section) -> None:
        """The section is no longer found by its object."""
        # an empty list stays until the next sweep, as the owner itself may be about to append to it
        _discard(self._held.get(id(section.through), []), section)

    # -- who it is --------------------------------------------------------------------------------------------------

    @property
    def here(self) -> bool:
        """Whether it belongs to this process, not to the one that it was forked from."""
        return self._pid == os.getpid()

    @property
    def who(self) -> Task | threading.Thread | None:
        """The task or thread, as long as it exists."""
        return self._who()

    @property
    def task(self) -> Task | None:
        """The task, if it is one."""
        return self._who() if self.is_task else None

    def alive(self) -> bool:
        """Whether it can still release what it holds."""
        who: Any = self._who()
        if who is None:
            return False
        if self.is_task:
            # a task whose loop was closed never goes on
            return not who.done() and not who.get_loop().is_closed()
        # during atexit, is_alive() is already False for the main thread, which runs it
        return who is threading.main_thread() or who.is_alive()


def _discard(sections: list[Section], section: Section) -> None:
    """Remove it in one atomic step: the watchdog does so, too, for sections that were interrupted."""
    try:
        sections.remove(section)
    except ValueError:
        pass


# weak keys: what has ended holds nothing
_owners: weakref.WeakKeyDictionary[Task | threading.Thread, Owner] = weakref.WeakKeyDictionary()


def current_owner() -> Owner:
    """The owner to whom the running code belongs."""
    task, shown = running_task(), shown_owner()
    if shown is not None and _is_obvious(shown, task):
        if task is None and shown.task is not None:
            _set_in_thread.set(weakref.ref(threading.current_thread()))
        return shown
    who = root_of(task, None if shown is None else shown.task)
    if shown is not None and (who is None or _was_left(shown, who)):
        return shown
    who = who or threading.current_thread()
    owner = _owners.get(who)
    if owner is None or not owner.here:
        owner = _owners[who] = Owner(who)
    _shown.set(owner)
    _set_in_thread.set(weakref.ref(threading.current_thread()))
    return owner


def shown_owner() -> Owner | None:
    """The owner in the context; it may be that of a parent task."""
    shown = _shown.get()
    return shown if shown is not None and shown.here else None


def running_task() -> Task | None:
    """The task that runs in this thread, if any."""
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


def _is_obvious(shown: Owner, task: Task | None) -> bool:
    """Whether the running code surely belongs to the owner in the context; only what is quick to tell is checked."""
    who: Any = shown.who
    if task is not None:
        return who is task
    if shown.is_task:
        return who is not None and runs_below(who)
    # A thread that has run sync code of one task may run that of another. (AsyncToSync.executors would tell, but takes
    # a lock, which a task queue's time limit could leave locked for good)
    # vars(): a fifth of the time of a getattr() that finds nothing
    return who is threading.current_thread() and vars(SyncToAsync.threadlocal).get("main_event_loop") is None


def _was_left(shown: Owner, who: Task | threading.Thread) -> bool:
    """Whether this is sync code of the task in the context, which was cancelled and has ended meanwhile."""
    return not shown.alive() and _set_in_thread.get() == weakref.ref(who)
