"""Acquiring a lock. See release.py for what an acquisition does once it has the lock."""

from __future__ import annotations

import asyncio
import os
import weakref
from asyncio import _get_running_loop
from binascii import b2a_base64
from collections.abc import Set
from logging import DEBUG
from typing import Any

from ..base import processes
from ..base.display import Secret
from ..base.log import logger
from ..base.names import capped_name, known_as, refuse_semaphore, semaphore_name
from ..base.steps import Call, Steps, arun, run
from ..base.times import NEVER, Deadline, monotonic
from ..exceptions import LockError, LockNotAcquired, LockUnavailable
from ..options import Options, terms_of
from ..signals import lock_acquired
from ..store import calls
from ..store.calls import LockRequest
from ..store.lock_store import LockStore, Partition
from ..store.loop_connections import ENTERING
from ..store.old_key import old_key_of
from ..store.records import make_keys
from ..store.retry import Tried, atry_once, try_once
from ..store.stores import get_partition, get_store
from ..store.wire import Command
from .announcements import reason_of, tell_acquired, tell_refused
from .attempt import Attempt, wait_for_lock
from .held import Held, caller, ground, leases_on, runs, show, shown_above
from .lease import Canceller, Lease
from .listener import Listener
from .old_code import take_old_key
from .order import note_order
from .owner import describe_owner
from .release import Releasable, release_unused
from .runtime import Runtime, runtime
from .waiters import Loop, Waiter, make_waiter

_URLSAFE = bytes.maketrans(b"+/", b"-_")


class Frame:
    """Made and kept by a function in a local variable, this lives as long as the function runs; see abandon_after()."""

    __slots__ = ("__weakref__",)


class Place:
    """Where the acquisitions with these options are at home, in this process: kept, as looking it up takes its time."""

    __slots__ = ("fork", "listener", "partition", "pid", "runtime", "store")

    def __init__(self, options: Options) -> None:
        self.pid: int = os.getpid()
        self.runtime: Runtime = runtime()
        self.fork: object = processes.generation  # only now: runtime() notices a fork of which no hook has told
        self.store: LockStore = get_store(options.using)
        # of a cluster's, it depends on the name
        self.partition: Partition | None = None if self.store.clustered else self.store.partition(0)
        self.listener: Listener | None = None if self.partition is None else self.runtime.listener(self.partition)


class Acquisition(Releasable):
    """One attempt to acquire a lock for whoever makes this object, and then the lock, until it is released.

    It exists before anything is sent, and always knows what there is to give back: :meth:`abandon` does so, wherever an
    exception was raised. From the beginning, the context shows it, unless it is not to be ``shown``.

    ``name`` is that of a lock, of a semaphore (if the options have a limit), or of a pool, any member of which will do.
    ``through`` is the object by which users hold the lock, a Lock: while that lives, the lock is renewed; None, where
    it ends with a function that runs. ``purpose`` is shown after the owner: a request path, for instance. ``template``
    is the name as it was written, where the options do not say so.
    """

    __slots__ = ("_generation", "_listener", "_request", "options", "purpose", "template", "terms", "token")

    _request: LockRequest | None
    _generation: int  # of the subscription under which the first try was made
    _waiter: Waiter | None = None
    _attempt: Attempt | None = None  # once the first try was not enough

    def __init__(
        self,
        name: str,
        options: Options,
        *,
        through: Any = None,
        token: str | None = None,
        purpose: str = "",
        template: str = "",
        shown: bool = True,
    ) -> None:
        self.name = name = name if options.limit is None else capped_name(semaphore_name(name))
        self.options: Options = options
        self.token: str | None = token
        self.purpose: str = purpose
        self.template: str = options.template or template or name
        self.terms = terms = terms_of(options, name)
        self._pid = pid = os.getpid()
        place: Any = terms.place
        if place is None or place.pid != pid or place.fork is not processes.generation or place.store.closed:
            place = terms.place = Place(options)
        self._runtime = place.runtime
        self.partition = partition = place.partition or get_partition(options.using, name)
        self._listener = place.listener or self._runtime.listener(partition)
        self.keys = ((partition.identity, name),)
        runner = caller()
        self._caller = None if runner is None else weakref.ref(runner)
        self._through = None if through is None else weakref.ref(through)
        self._keeper = self._through
        self.lease = self._ground = self._finalizer = self._request = None
        self.over, self._generation = False, 0
        above = show(self, self.keys[0]) if shown else shown_above(self.keys[0])
        self._above = above if options.limit is None else ()  # whoever holds a permit may want another one

    # -- getting it -------------------------------------------------------------------------------------------------

    def acquire(self, deadline: Deadline | None = None) -> LockNotAcquired | None:
        """Get the lock, in this thread; return the error for one that was not acquired in time, None when it was.

        ``deadline``: None: that of the options. Raises LockUnavailable, and LockError for a caller that would wait for
        itself. Where this is interrupted, the caller abandons it: see abandon_cancelled().
        """
        begun, deadline = monotonic(), deadline or self.terms.no_deadline or self.terms.deadline()
        command, tried = self.prepare_first_try(deadline, None), None
        if command is not None:
            tried = try_once(self.partition, command, None if deadline is NEVER else deadline.answer_by)
            if self.take_grant(tried):
                if lock_acquired.receivers or logger.isEnabledFor(DEBUG):
                    run(tell_acquired(self.its_lease, monotonic() - begun))
                return None
        return run(self.go_on(deadline, begun, tried))

    async def aacquire(self, deadline: Deadline | None = None) -> LockNotAcquired | None:
        """See acquire()."""
        begun, deadline = monotonic(), deadline or self.terms.no_deadline or self.terms.deadline()
        command, tried = self.prepare_first_try(deadline, asyncio.get_running_loop()), None
        if command is not None:
            by = None if deadline is NEVER else deadline.answer_by
            tried = await atry_once(self.partition, command, by, ENTERING)
            if self.take_grant(tried):
                if lock_acquired.receivers or logger.isEnabledFor(DEBUG):
                    await arun(tell_acquired(self.its_lease, monotonic() - begun))
                return None
        return await arun(self.go_on(deadline, begun, tried))

    def obtain(self, deadline: Deadline | None = None) -> Steps[LockNotAcquired | None]:
        """See acquire()."""
        refusal: LockNotAcquired | None = yield Call(self.acquire, (deadline,), twin=self.aacquire)
        return refusal

    def prepare_first_try(self, deadline: Deadline, loop: Loop | None, *, queues: bool = True) -> Command | None:
        """Return the command that gets the lock if it is free, and else queues for it if messages arrive already.

        None: one command is not enough; go_on() does it.
        """
        if (self._above and self._check_above(deadline)) or self.token is not None or not self.terms.plain:
            return None
        listener, wait = self._listener, calls.NOT_AT_ALL
        if listener.ready and deadline.waits and listener.polled:
            return None
        self._generation = listener.generation  # first, so that it is not newer than the answer
        self._request = request = self._make_request()
        if listener.ready and deadline.waits and queues:
            self._waiter = waiter = make_waiter(loop, request.id, request.name, listener.bury)
            listener.waiters.expect(waiter)
            wait = calls.QUEUED
        return calls.acquire_command(request, wait)

    def command_to_give_back(self, tried: Tried) -> Command | None:
        """Return the command that releases what the first try has got; None: nothing. See forget_try()."""
        assert self._request is not None
        state = calls.state_at_once(tried)
        if state == calls.GRANTED:
            return calls.release_command(self._request, may_arrive=False, how=calls.HOLDER)
        self.forget_try(given_back=state == calls.BUSY)
        return None

    def forget_try(self, *, given_back: bool) -> None:
        """The next try is the first one. Unless all was ``given_back``, that is done in the background."""
        assert self._request is not None
        if not given_back:
            self._runtime.watchdog.abandon(self._request, may_arrive=True, how=calls.WITHDRAWAL)
        self._request = None

    def _check_above(self, deadline: Deadline) -> bool:
        """Return whether this lock is held above already (see _enter_again()); if not, note the order of others."""
        if any(self.keys[0] in one.keys for one in self._above):
            return True
        runner = self.caller
        for one in self._above if deadline.waits else ():
            note_order(one, runner, self.partition.store, self.name, self.template)
        return False

    def stand_beside(self, others: Set[Held]) -> None:
        """Forget that the context shows these ``others``: all are of one set, whose order is always the same."""
        if self._above:
            self._above = tuple(one for one in self._above if one not in others)

    def take_grant(self, tried: Tried) -> bool:
        """Hold the lock if the first try has got it; return whether it has."""
        assert self._request is not None
        granted = None if self._request.keys.any else calls.granted_at_once(self._request, tried)
        if granted is None:
            return False
        fence, ends = granted
        lease = Lease(self._request, self.terms, fence, ends, self.template)
        self._enter(lease)
        self._runtime.watchdog.watch(lease)
        if self._waiter is not None:  # only now that the lease is watched; see go_on()
            self._listener.waiters.discard(self._waiter)
            self._waiter = None
        return True

    def go_on(self, deadline: Deadline, begun: float, tried: Tried | None) -> Steps[LockNotAcquired | None]:
        """Get the lock where the first try, if there was one, was not enough. See acquire()."""
        canceller = self._make_canceller()
        above, own = self._held_above()
        if above is not None and (yield from self._enter_again(above, own, deadline)):
            return None
        request, listener = self._request or self._make_request(), self._listener
        old = old_key_of(self.partition, self.name, request.id, self.token, held=False)
        self._attempt = attempt = Attempt(
            request, listener, self.terms, deadline, begun,
            waiter=self._waiter, tried=tried, generation=self._generation,
        )  # fmt: skip
        granted = yield from (attempt.adopt() if self.options.adopt else wait_for_lock(attempt))
        if granted is not None:
            request = attempt.request if old is None else attempt.request._replace(old=old)
            fence, ends, handed = granted
            lease = Lease(request, self.terms, fence, ends, self.template, handed=handed, may_arrive=attempt.may_arrive)
            lease.canceller = canceller
            self._enter(lease)
            self._runtime.watchdog.watch(lease)
            attempt.unregister()  # only now that the lease is watched, so that a late wake still finds its addressee
            if old is None or (yield from take_old_key(attempt, lease, old, adopts=self.options.adopt)):
                self._attempt = self._waiter = None
                if lock_acquired.receivers or logger.isEnabledFor(DEBUG):
                    yield from tell_acquired(lease, monotonic() - begun)
                return None
        trouble: LockUnavailable | None = None
        try:
            yield from (attempt.withdraw() if granted is None else self._release_untold(lease))
        except LockUnavailable as error:
            trouble = error
            self.abandon()
        attempt.unregister()
        self._mark_over()
        refusal = attempt.refusal(adopting=self.options.adopt, own=above.id if above is not None and own else None)
        refusal.__cause__ = trouble
        yield from tell_refused(self.name, self.template, refusal)
        return refusal

    def _release_untold(self, lease: Lease) -> Steps[None]:
        """Release the lock, of which nobody was told: it was not all that it took."""
        watchdog = self._runtime.watchdog
        watchdog.unwatch(lease)
        request = lease.request._replace(old=None)
        yield from calls.release(request, Deadline.after(0), may_arrive=lease.may_arrive)
        watchdog.end(lease)
        lease.leave(self)

    def _held_above(self) -> tuple[Lease | None, bool]:
        """The lease under which this was called for, if it is held still; and whether it is the caller's own."""
        if not self._above:
            return None, False
        runner = self.caller
        if runner is not None and not runs(runner):
            runner = caller()  # it has made the coroutine, and has ended: this one awaits it
        found = leases_on(self.keys[0], self._above, runner)
        if found and self._runtime.watchdog.interruptions.abandon_under(found[0][0]):
            found = leases_on(self.keys[0], self._above, runner)  # another acquisition may use it as well
        return found[0] if found else (None, False)

    def _enter_again(self, held: Lease, own: bool, deadline: Deadline) -> Steps[bool]:
        """Enter ``held``, under which this was called for, once more if options or token say so; return whether it has.

        LockError where whoever called would wait for itself without end. Redis is asked: the lease may be gone.
        """
        adopts, endless = self.options.adopt, deadline.endless and self.options.attempts is None
        reentrant = (self.options.reentrant and not adopts) or (self.token is not None and held.token == self.token)
        # who would wait for itself without end is refused. Not so who waits for a parent, or for a time, or who wants
        # another acquisition
        if not reentrant and (not own or adopts or not endless):
            return False
        try:
            if reentrant:
                held.shares.append(self)  # before it is sure, so that whoever leaves meanwhile is not the last
            answer = yield from calls.renew(held.request, "confirm", held.ttl, held.fence, deadline, late=held.late)
            if answer.state != calls.HELD:
                self._runtime.watchdog.lose(held, reason_of(answer))
                return False
            if reentrant and held.watched:
                held.fence_as_well(self.options.fenced)
                self._enter(held)
                return True
        finally:
            if reentrant and self.lease is None:
                held.leave(self)
                release_unused(held)
        if reentrant or not held.renewing:
            return False  # it is being released, or ends by itself
        raise LockError(
            f"Cannot wait for the lock {self.name!r}: this thread or task holds it already, and would wait for itself "
            f"without end. Release it first, or pass a blocking_timeout or (to a Lock) reentrant=True.",
            self.name,
        )

    def _make_request(self) -> LockRequest:
        """Return what to ask Redis for, under a new id."""
        terms, options, name, partition = self.terms, self.options, self.name, self.partition
        if options.adopt and self.token is None:
            raise ValueError(f"Cannot adopt the lock {name!r} without its token: pass the one that detach() returned.")
        owner = describe_owner(self.purpose or options.purpose, self.caller, self._pid)
        # as secrets.token_urlsafe(16)
        id = b2a_base64(os.urandom(16), newline=False).translate(_URLSAFE, b"=").decode()
        if options.note:
            owner = f"{owner}\n{options.note}"
        keys, most, replicas = make_keys(partition.prefix, name), terms.most, terms.replicas
        if replicas and partition.store.memory:
            replicas = 0  # it has none
        if keys.stored == "permits" and options.limit is None:
            refuse_semaphore(name)
        # all by position: names would take as long as the rest of it
        return LockRequest(
            partition, keys, name, Secret(id), terms.ttl, self.token, most, replicas, owner, terms.listens,
            options.limit,
        )  # fmt: skip

    def _make_canceller(self) -> Canceller | None:
        """What cancels the calling task when the lock is lost; TypeError if that is to be, and there is no task."""
        if not self.terms.cancels:
            return None
        task = self.caller
        if not asyncio.isfuture(task):  # whatever its class
            noun, shown = known_as(self.name)
            raise TypeError(
                f"on_lost='cancel' cancels the task that holds the {noun} {shown!r}, but sync code is not a task: give "
                f"a function, or use aacquire() or async with."
            )
        return Canceller(task)

    def _enter(self, lease: Lease) -> None:
        # the thread that has called for it is where this runs, unless a loop or asgiref runs it
        sync = self._caller if _get_running_loop() is None else None
        self._ground, self._above = sync or ground(), ()
        self.lease = lease
        if self not in lease.shares:
            lease.shares.append(self)
        through = None if self._through is None else self._through()
        if through is not None:
            through.entered(self)

    @property
    def half_obtained(self) -> bool:
        """Whether the call that is to get the lock has not got it: it goes on, was refused or interrupted."""
        return self._attempt is not None or self._waiter is not None

    def abandon(self) -> None:
        """Give back all that there may be, in the background: this was interrupted, or Redis could not be told."""
        if self.here:
            self._abandon_attempt()
        super().abandon()

    def _abandon_attempt(self) -> None:
        attempt, request, watchdog = self._attempt, self._request, self._runtime.watchdog
        if attempt is not None:
            if self.lease is None and attempt.asked:
                attempt.asked = False
                watchdog.abandon(attempt.request, may_arrive=attempt.may_arrive, how=calls.WITHDRAWAL)
            attempt.unregister()
            return
        if self.lease is None and request is not None and not self.over:  # inside of the first try
            watchdog.abandon(request, may_arrive=True, how=calls.WITHDRAWAL)
        if self._waiter is not None:
            self._listener.waiters.discard(self._waiter)
