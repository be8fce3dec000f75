"""A section under a lock: getting the lock, and giving it back."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from logging import WARNING
from typing import Any

from ...base.log import log_event
from ...base.steps import Step, Steps
from ...base.times import Deadline, monotonic
from ...conf import conf
from ...exceptions import LockError, LockNotAcquired, LockNotOwned, LockUnavailable
from ...options import Options
from ...store import calls
from ...store.lock_store import Partition
from ...store.stores import get_partition
from ..leases.canceller import Canceller
from ..leases.interruptions import Witness
from ..leases.lease import Lease
from ..leases.loss import reason_of
from ..owners.owner import Owner, running_task
from ..runtime import runtime
from . import wait_loop
from .announcements import tell_acquired, tell_refused
from .attempt import Attempt, Granted, give_up_at
from .effective_options import apply_to, deadline_of, make_canceller, make_request
from .extension import detach
from .release import release, release_later


class Frame:
    """Made and kept by a function in a local variable, this lives as long as the function runs; see undo_after()."""

    __slots__ = ("__weakref__",)


class Acquisition:
    """One attempt to acquire a lock for ``owner``, and then the lock, until it is released.

    It exists before anything is sent, and always knows what there is to give back: :meth:`undo` does so, wherever an
    exception was raised.

    ``name`` is that of a lock, or of a pool, any member of which will do. ``through`` is called with the lease, and
    returns the object (a Lock, for instance) by which the owner finds this section. ``purpose`` is shown after the
    owner: a request path, for instance.
    """

    def __init__(
        self,
        owner: Owner,
        through: Callable[[Lease], object],
        name: str,
        options: Options,
        *,
        token: str | None = None,
        purpose: str = "",
    ) -> None:
        self.owner: Owner = owner
        self._through = through
        self.through: object = None  # once it is got
        self.name: str = name
        self.options: Options = options
        self.token: str | None = token
        self.purpose: str = purpose
        self.at_least: float = 0.0  # seconds for which it stays held, though by nobody, if it ends sooner and well
        self.partition: Partition = get_partition(options.using, name)
        self._runtime = runtime()
        self.lease: Lease | None = None
        self._attempt: Attempt | None = None
        self._witness: Witness | None = None

    # -- getting it -------------------------------------------------------------------------------------------------

    def obtain(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, *, seizes: bool = False
    ) -> Steps[LockNotAcquired | None]:
        """Get the lock; return the error for one that was not acquired in time, None when it was.

        The arguments override the options. Raises LockUnavailable, and LockError for an owner that would wait for
        itself.
        """
        begun, deadline = monotonic(), deadline_of(self.options, blocking, blocking_timeout)
        canceller = make_canceller(self.options, self.owner, self.name)
        held = self.owner.lease_on(self.partition, self.name)
        if held is not None and self._runtime.watchdog.interruptions.undo_under(held):
            held = self.owner.lease_on(self.partition, self.name)  # another section may use it as well
        if held is not None and (yield from self._enter_again(held, deadline, seizes=seizes)):
            return None
        attempt = self._attempt = self._make_attempt(deadline)
        attempt.begun = begun
        adopts = self.options.adopt and not seizes
        granted = yield from (attempt.seize() if seizes else attempt.adopt() if adopts else wait_loop.obtain(attempt))
        if granted is None:
            try:
                yield from attempt.withdraw()
            except LockUnavailable:
                self.undo()
            attempt.leave()
            self._witness = None  # there is nothing to undo
            refusal = attempt.refusal(adopting=adopts, own=None if held is None else held.id)
            yield from tell_refused(self.name, self.options.template or self.name, refusal)
            return refusal
        self._take(attempt, granted, canceller)
        attempt.leave()  # only now that the lease is watched, so that a late wake still finds its addressee
        yield from tell_acquired(self.held, monotonic() - begun, attempt.seized)
        return None

    def _enter_again(self, held: Lease, deadline: Deadline, *, seizes: bool) -> Steps[bool]:
        """What ``held``, the owner's own lease on this name, means; True: it was entered another time.

        LockError where the owner would wait for itself without end. Redis is asked: the lease may be gone.
        """
        adopts, endless = self.options.adopt and not seizes, deadline.endless and self.options.attempts is None
        reentrant = (self.options.reentrant and not adopts) or (self.token is not None and held.token == self.token)
        if not reentrant and not seizes and (adopts or not endless):
            return False  # it waits for itself, but not without end; or wants another acquisition than its own
        by = give_up_at(deadline)
        answer = yield from calls.renew(held.request, "confirm", held.ttl, held.fence, until=deadline.at, by=by)
        if answer.state != calls.HELD:
            self._runtime.watchdog.lose(held, reason_of(answer))
            return False
        if reentrant:
            held.fence_as_well(self.options.fenced)
            self._enter(held)
            return True
        if seizes:
            raise LockError(f"Cannot seize the lock {self.name!r}: this thread or task holds it itself.", self.name)
        if not held.renewing:
            return False  # it ends by itself
        raise LockError(
            f"Cannot wait for the lock {self.name!r}: this thread or task holds it already, and would wait for itself "
            f"without end. Pass a blocking_timeout, or reentrant=True.",
            self.name,
        )

    def _make_attempt(self, deadline: Deadline) -> Attempt:
        options, watchdog = self.options, self._runtime.watchdog
        request = make_request(self.partition, self.name, options, self.token, self.purpose)
        attempt = Attempt(
            request,
            self._runtime.listener(self.partition),
            deadline=deadline,
            at_work=watchdog.knows,
            polls=not request.listens,
            backoff=options.backoff,
            attempts=options.attempts,
            slow_wait=conf().SLOW_WAIT if options.slow_wait is None else options.slow_wait or None,
        )
        if self.token is not None:
            watchdog.attempts[request.id] = attempt
        return attempt

    def _take(self, attempt: Attempt, granted: Granted, canceller: Canceller | None) -> None:
        """The lock is ours."""
        lease = Lease(
            attempt.request, fence=granted.fence, ends=granted.ends, handed=granted.handed, unknown=attempt.unknown
        )
        apply_to(lease, self.options, self.name)
        lease.canceller = canceller
        lease.owner = weakref.ref(self.owner)
        self._enter(lease)
        self._runtime.watchdog.watch(lease)

    def _enter(self, lease: Lease) -> None:
        self.lease = lease
        self.through = self._through(lease)
        self.owner.enter(self, lease)
        if self._witness is not None and self.owner.task is not None and running_task() is None:
            lease.follow(self, self._witness())  # the task may be cancelled, and its sync code goes on

    # -- having it --------------------------------------------------------------------------------------------------

    @property
    def held(self) -> Lease:
        """The lease, once it is obtained."""
        assert self.lease is not None
        return self.lease

    def disown(self, *, known: bool = False) -> None:
        """It is for somebody else to release. ``known``: until then, whoever has acquired it goes on under the lock."""
        self.owner.disown(self, self.held, known=known)
        self._witness = None

    def undo_after(self, block: object) -> None:
        """Give all back in the background if ``block`` dies before this was given back by other means."""
        self._witness = self._runtime.watchdog.undo_after(block, self)

    def around(self, step: Step) -> Steps[Any]:
        """Get the lock, perform ``step``, and give the lock back; return what the step has sent back.

        Raises LockNotAcquired, and what obtain() and exit() raise.
        """
        frame = Frame()
        self.undo_after(frame)
        try:
            refusal = yield from self.obtain()
            if refusal is not None:
                raise refusal
            result = yield step
            yield from self.exit(None)
            return result
        except BaseException as error:
            yield from self.fail(error)
            raise

    def undo_cancelled(self, error: BaseException) -> None:
        """Give back all that there may be: ``error`` was raised in a coroutine that was to get the lock.

        Raises LockLost where that is the cancellation which a loss has sent.
        """
        lease = self.lease
        lost = lease is not None and lease.cancelled_by(error)
        self.undo()
        if lost:
            raise self.held.lost_error() from None

    # -- giving it back ---------------------------------------------------------------------------------------------

    def give_back(self) -> Steps[bool]:
        """Release the lock. False: others of the owner's sections still use it (it is reentrant).

        Raises LockLost; LockNotOwned where the lock was detached, or the process was forked inside the section; and
        LockUnavailable when Redis cannot be told, then it can be tried again.
        """
        lease = self.held
        if lease.detached or not lease.here:
            self.leave()
            self._witness = None  # there is nothing to undo
            raise LockNotOwned.to("release", lease.name)
        last = lease.shares.keys() <= {self}  # this one may have been undone in the background meanwhile
        if last:
            yield from release(lease, self)
        else:
            self.leave()
        self._witness = None
        if not last and lease.lost:
            raise lease.lost_error()
        return last

    def end(self, *, failed: bool = False) -> Steps[bool]:
        """give_back(), except that one which was detached ends in silence, and that ``at_least`` is kept."""
        lease = self.held
        if lease.detached:  # on purpose: it is for the bearer of the token to release
            self.undo()
            return False
        left = lease.since + self.at_least - monotonic()
        if failed or left < 0.001 or not lease.shares.keys() <= {self}:
            return (yield from self.give_back())
        yield from detach(self, left)
        return True

    def exit(self, error: BaseException | None) -> Steps[bool]:
        """The section has ended, with ``error`` or (None) well. Returns whether the lock is free; see end().

        Where it has ended with an error, that matters more than what goes wrong here.
        """
        lease = self.held
        if lease.cancelled_by(error):
            self.undo()
            raise lease.lost_error()
        if isinstance(error, GeneratorExit):  # nothing may be awaited any more
            self.undo()
            return False
        try:
            return (yield from self.end(failed=error is not None))
        except LockNotOwned:  # a loss was reported already
            if error is None:
                raise
        except LockUnavailable as trouble:
            self.undo()  # hardly anybody would try again
            if error is None:
                raise
            log_event(WARNING, "not-released", name=lease.name, error=trouble, lease_left=trouble.lease_left)
        return False

    def leave(self) -> None:
        """This section no longer uses the lease, and its owner no longer finds it."""
        self.owner.leave(self, self.held)

    def fail(self, error: BaseException) -> Steps[None]:
        """Give back what there is: ``error`` was raised, while the lock was held or before or after."""
        if self.lease is None or self.lease.closed:
            self.undo()
        else:
            yield from self.exit(error)

    def undo(self) -> None:
        """Give back all that there may be, in the background: this was interrupted, or Redis could not be told."""
        attempt, lease = self._attempt, self.lease
        here = self.owner.here  # in a process that was forked meanwhile, it is the parent's to give back
        if lease is not None:
            self.leave()
            if here and not lease.shares and not lease.closed:
                release_later(lease)
        elif here and attempt is not None and attempt.asked and not attempt.over:
            attempt.over = True
            unknown = attempt.unknown or attempt.asking
            self._runtime.watchdog.release_later(attempt.request, unknown=unknown, how=calls.WITHDRAWAL)
        if here and attempt is not None:
            attempt.leave()
        self._witness = None
