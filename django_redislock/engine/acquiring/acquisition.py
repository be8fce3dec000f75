"""A section under a lock: getting the lock, and giving it back."""

from __future__ import annotations

import os
import weakref
from logging import WARNING
from typing import Any, Protocol

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
from ..owners.held import Ground, Key, Runner, caller, hide, leases_on, runs, show
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


class Through(Protocol):
    """The object by which users hold a lock: a Lock, say. While it lives, the lock is renewed."""

    def entered(self, section: Acquisition) -> None: ...

    def left(self, section: Acquisition) -> None: ...


class Acquisition:
    """One attempt to acquire a lock for whoever makes this object, and then the lock, until it is released.

    It exists before anything is sent, and always knows what there is to give back: :meth:`undo` does so, wherever an
    exception was raised. From the beginning, the context shows it.

    ``name`` is that of a lock, or of a pool, any member of which will do. ``through``: see there; None, where the
    section ends with a function that runs. ``purpose`` is shown after the owner: a request path, for instance.
    """

    def __init__(
        self,
        name: str,
        options: Options,
        *,
        through: Through | None = None,
        token: str | None = None,
        purpose: str = "",
    ) -> None:
        self.name: str = name
        self.options: Options = options
        self.token: str | None = token
        self.purpose: str = purpose
        self.at_least: float = 0.0  # seconds for which it stays held, though by nobody, if it ends sooner and well
        self.partition: Partition = get_partition(options.using, name)
        self.keys: tuple[Key, ...] = ((self.partition, name),)
        self.lease: Lease | None = None
        self.over: bool = False  # given back, or never got
        self._pid = os.getpid()
        self._caller = _reference(caller())
        self._through = _reference(through)
        self._keeper = self._through
        self._ground: Ground | None = None
        self._runtime = runtime()
        self._attempt: Attempt | None = None
        self._witness: Witness | None = None
        self._above = show(self, self.keys[0])

    @property
    def caller(self) -> Runner | None:
        """The task or thread that has called for it, as long as that exists; None where the context alone counts."""
        return None if self._caller is None else self._caller()

    @property
    def here(self) -> bool:
        """Whether it was made in this process, not in the one that it was forked from."""
        return self._pid == os.getpid()

    # -- getting it -------------------------------------------------------------------------------------------------

    def obtain(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, *, seizes: bool = False
    ) -> Steps[LockNotAcquired | None]:
        """Get the lock; return the error for one that was not acquired in time, None when it was.

        The arguments override the options. Raises LockUnavailable, and LockError for a caller that would wait for
        itself.
        """
        begun, deadline = monotonic(), deadline_of(self.options, blocking, blocking_timeout)
        canceller = make_canceller(self.options, self.caller, self.name)
        above, own = self._held_above()
        if above is not None and (yield from self._enter_again(above, own, deadline, seizes=seizes)):
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
            self._end()
            refusal = attempt.refusal(adopting=adopts, own=above.id if above is not None and own else None)
            yield from tell_refused(self.name, self.options.template or self.name, refusal)
            return refusal
        self._take(attempt, granted, canceller)
        attempt.leave()  # only now that the lease is watched, so that a late wake still finds its addressee
        yield from tell_acquired(self.held, monotonic() - begun, attempt.seized)
        return None

    def _held_above(self) -> tuple[Lease | None, bool]:
        """The lease under which this was called for, if it is held still; and whether it is the caller's own."""
        runner = self.caller
        if runner is not None and not runs(runner):
            runner = caller()  # whoever awaits what that has called for
        found = leases_on(self.name, self._above, runner)
        if found and self._runtime.watchdog.interruptions.undo_under(found[0][0]):
            found = leases_on(self.name, self._above, runner)  # another section may use it as well
        return found[0] if found else (None, False)

    def _enter_again(self, held: Lease, own: bool, deadline: Deadline, *, seizes: bool) -> Steps[bool]:
        """What ``held``, under which this was called for, means; True: it was entered another time.

        LockError where whoever called would wait for itself without end. Redis is asked: the lease may be gone.
        """
        adopts, endless = self.options.adopt and not seizes, deadline.endless and self.options.attempts is None
        reentrant = (self.options.reentrant and not adopts) or (self.token is not None and held.token == self.token)
        if not reentrant and (not own or (not seizes and (adopts or not endless))):
            return False  # it waits for a parent; or for itself, but not without end; or wants another acquisition
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
        self._enter(lease)
        self._runtime.watchdog.watch(lease)

    def _enter(self, lease: Lease) -> None:
        self._ground, self._above = Ground(), ()
        self.lease = lease
        lease.shares.add(self)
        through = None if self._through is None else self._through()
        if through is not None:
            through.entered(self)

    # -- having it --------------------------------------------------------------------------------------------------

    @property
    def held(self) -> Lease:
        """The lease, once it is obtained."""
        assert self.lease is not None
        return self.lease

    def belongs_to(self, through: Through) -> None:
        """It is held by this object from now on: a pool's member."""
        self._through = self._keeper = weakref.ref(through)
        through.entered(self)
        key = self.partition, self.held.name
        self.keys = (*self.keys, key)
        show(self, key)

    def keep_for(self, keeper: object, *, undo: bool = False) -> None:
        """Renew it as long as ``keeper`` lives, whatever has become of the thread or task that acquired it.

        It is no longer theirs, but belongs to whoever runs under it.

        ``undo``: give it back when that has died.
        """
        self._keeper, self._ground, self._witness, self._caller = weakref.ref(keeper), None, None, None
        if undo:
            self.undo_after(keeper)

    def may_be_given_back(self) -> bool:
        """Whether anybody is left who could do so."""
        if self._ground is not None and not self._ground.stands():
            return False
        return self._keeper is None or self._keeper() is not None

    def disown(self) -> None:
        """It is for somebody else to release: the context does not show it any more."""
        hide(self)
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
        """Release the lock. False: other sections still use it (it is reentrant).

        Raises LockLost; LockNotOwned where the lock was detached, or the process was forked inside the section; and
        LockUnavailable when Redis cannot be told, then it can be tried again.
        """
        lease = self.held
        if lease.detached or not lease.here:
            self.leave()
            raise LockNotOwned.to("release", lease.name)
        last = lease.shares <= {self}  # this one may have been undone in the background meanwhile
        if last:
            yield from release(lease, self)
        else:
            self.leave()
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
        if failed or left < 0.001 or not lease.shares <= {self}:
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
        """This section no longer uses the lease. May be called again, and from any thread."""
        self.held.shares.discard(self)
        self._end()

    def _end(self) -> None:
        """There is nothing to give back any more."""
        self.over, self._witness, self._above = True, None, ()
        hide(self)
        through = None if self._through is None else self._through()
        if through is not None:
            through.left(self)

    def fail(self, error: BaseException) -> Steps[None]:
        """Give back what there is: ``error`` was raised, while the lock was held or before or after."""
        if self.lease is None or self.lease.closed:
            self.undo()
        else:
            yield from self.exit(error)

    def undo(self) -> None:
        """Give back all that there may be, in the background: this was interrupted, or Redis could not be told."""
        attempt, lease = self._attempt, self.lease
        here = self.here  # in a process that was forked meanwhile, it is the parent's to give back
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
        self._end()


def _reference(thing: Any) -> Any:
    """A weak reference; None for None."""
    return None if thing is None else weakref.ref(thing)
