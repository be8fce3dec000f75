"""Having a lock, and giving it back.

``release_at_once``  in one command, the ordinary end; False where that is not enough: then release() goes on
``release``          for whoever calls release(): errors are raised, and it can be tried again
``end``              at the end of a block or function: ``at_least`` is kept, and no loss hides the error of the work
``exit``             the same, and where Redis could not be told, that is logged, not raised
``abandon``          in the background: it was interrupted, or Redis does not answer; asks nothing, raises nothing

Where one of these is interrupted or cancelled, the lock is abandoned: by ``release()`` and all coroutines themselves,
and by the callers of ``release_at_once()`` and ``release_lease()``.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from abc import abstractmethod
from logging import DEBUG, WARNING
from typing import Any

from ..base.log import log_event, logger
from ..base.steps import Call, Steps, arun, run
from ..base.times import monotonic
from ..exceptions import LockNotOwned, LockUnavailable
from ..signals import lock_released
from ..store import calls
from ..store.loop_connections import LEAVING
from ..store.retry import Tried, atry_once, try_once
from ..store.wire import Command
from .announcements import tell_released
from .extension import detach
from .held import Held, show
from .lease import OLD_KEY, VANISHED, Lease
from .runtime import Runtime, runtime
from .with_block import Finalizer


class Ending:
    """How an Acquisition, and Several, give back what they have: what both share, built on end() and abandon()."""

    __slots__ = ()

    leases: Any  # those that are obtained

    @abstractmethod
    def end(self, error: BaseException | None, **facts: Any) -> Steps[bool]: ...

    @abstractmethod
    def abandon(self) -> None: ...

    def exit(self, error: BaseException | None, **facts: Any) -> Steps[bool]:
        """See end(). Where Redis cannot be told, that is logged, with ``facts``: what was done under it is done."""
        try:
            return (yield from self.end(error, **facts))
        except LockUnavailable as trouble:
            log_unreleased(trouble, **facts)
            return False

    def exit_quietly(self, **facts: Any) -> Steps[None]:
        """See exit(); a loss does not matter any more."""
        try:
            yield from self.exit(None, **facts)
        except LockNotOwned:
            pass  # a loss, which was reported already; or this process was forked from the one that holds it

    @property
    @abstractmethod
    def half_obtained(self) -> bool: ...

    def fail(self, error: BaseException) -> Steps[None]:
        """Give back what there is: ``error`` was raised, while it was held or before or after."""
        if self.half_obtained or all(lease.closed for lease in self.leases):
            self.abandon_cancelled(error)
        else:
            yield from self.exit(error)

    def abandon_cancelled(self, error: BaseException | None) -> None:
        """Give back all that there may be: ``error``, if any, was raised in a coroutine that was to get the lock.

        Raises LockLost where that is the cancellation which a loss has sent.
        """
        lost = [lease for lease in self.leases if lease.cancelled_by(error)]
        self.abandon()
        if lost:
            raise lost[0].lost_error() from None


class Releasable(Ending, Held):
    """The half of an Acquisition that has the lock, and gives it back."""

    __slots__ = ("_above", "_finalizer", "_runtime", "_through")

    _above: tuple[Held, ...]  # what the context had shown before
    _through: Any  # weak: the object by which users hold the lock
    _runtime: Runtime
    _finalizer: Finalizer | None
    at_least: float = 0.0  # seconds for which it stays held, though by nobody, if it ends sooner and well
    _tried: Tried | None = None  # a release that was not enough

    @property
    def acquisitions(self) -> tuple[Releasable]:
        """Itself; see Several."""
        return (self,)

    @property
    def leases(self) -> list[Lease]:
        """The lease, once it is obtained, as a list; see Several."""
        return [] if self.lease is None else [self.lease]

    def keep(self, seconds: float) -> None:
        """Keep it held for so many seconds, though by nobody, if it ends sooner and well."""
        self.at_least = seconds

    # -- having it --------------------------------------------------------------------------------------------------

    def belongs_to(self, through: Any) -> None:
        """It is held by this object from now on: a pool's member."""
        self._through = self._keeper = weakref.ref(through)
        through.entered(self)
        key = self.partition.identity, self.its_lease.name
        self.keys = (*self.keys, key)
        show(self, key)

    def tie_to(self, keeper: object, *, abandon: bool = False) -> None:
        """Renew it as long as ``keeper`` lives, whatever has become of the thread or task that acquired it.

        It is no longer theirs, but belongs to whoever runs under it; so its loss no longer cancels the task.

        ``abandon``: give it back when that has died.
        """
        self._keeper, self._ground, self._finalizer, self._caller = weakref.ref(keeper), None, None, None
        lease = self.its_lease
        if lease.canceller is not None and lease.is_last(self):  # else it is still that of a block around
            lease.canceller.end()
        if abandon:
            self.abandon_after(keeper)

    def abandon_after(self, block: object) -> None:
        """Give all back in the background if ``block`` dies before this was given back by other means."""
        watchdog = self._runtime.watchdog
        if not watchdog.runs:
            watchdog.ensure_runs()
        self._finalizer = Finalizer(block, watchdog.interruptions.note)
        self._finalizer.acquisition = self

    @property
    def stranded(self) -> bool:
        """Whether it is that of a block of coroutines whose event loop has stopped."""
        loop: Any = None if self._ground is None else self._ground()
        return self._finalizer is not None and isinstance(loop, asyncio.AbstractEventLoop) and not loop.is_running()

    # -- giving it back, in one command ------------------------------------------------------------------------------

    def release_at_once(self, how: str = calls.HOLDER) -> bool:
        """Release the lock in this thread; return False where that takes more than one command: release() goes on.

        ``how``: HOLDER or BEARER, by right of the token. Where this is interrupted, the caller abandons it.
        """
        command = self.prepare_release(how)
        if command is None or not self.let_go(try_once(self.partition, command, None)):
            return False
        if lock_released.receivers or logger.isEnabledFor(DEBUG):
            run(tell_released(self.its_lease))
        return True

    async def arelease_at_once(self) -> bool:
        """See release_at_once(). Cancelled, it completes in the background."""
        command = self.prepare_release(calls.HOLDER)
        if command is None:
            return False
        try:
            tried = await atry_once(self.partition, command, None, LEAVING)
            if not self.let_go(tried):
                return False
        except BaseException:
            self.abandon()
            raise
        if lock_released.receivers or logger.isEnabledFor(DEBUG):
            await arun(tell_released(self.its_lease))
        return True

    def prepare_release(self, how: str) -> Command | None:
        """Return the command that releases the lock, and stop renewing it. None: release() does it."""
        lease = self.lease
        assert lease is not None
        if lease.closed or lease.detaching or lease.canceller is not None or lease.pid != os.getpid():
            return None
        request = lease.request
        if request.old is not None or self.at_least or not lease.is_last(self):
            return None
        self._runtime.watchdog.unwatch(lease)
        if lease.lost_reason:
            return None
        lease.releases += 1
        return calls.release_command(request, may_arrive=lease.may_arrive, how=how)

    def let_go(self, tried: Tried) -> bool:
        """End the lease if the first try has released the lock, and return True; else keep the try for release()."""
        lease = self.lease
        assert lease is not None
        if tried[1] != calls.RELEASED_AT_ONCE:
            self._tried = tried
            lease.releases -= 1
            return False
        self._runtime.watchdog.end(lease)
        lease.leave(self)
        self._mark_over()
        return True

    # -- giving it back, whatever it takes ---------------------------------------------------------------------------

    def release(self) -> Steps[bool]:
        """Release the lock. False: other acquisitions still use it (it is reentrant).

        Raises LockLost; LockNotOwned where the lock was detached, or the process was forked while it was held; and
        LockUnavailable when Redis cannot be told, then it can be tried again.
        """
        lease = self.its_lease
        try:
            if self._tried is None and (yield Call(self.release_at_once, twin=self.arelease_at_once)):
                return True
            if lease.detached or not lease.here:
                self.leave()
                raise LockNotOwned.to("release", lease.name)
            if lease.is_last(self):
                yield from self.release_lease()
                return True
            self.leave()
            release_unused(lease)
            if lease.lost:
                raise lease.lost_error()
            return False
        except (LockNotOwned, LockUnavailable):
            raise
        except BaseException:  # cancelled or interrupted: the lock has to be released all the same
            self.abandon()
            raise

    def release_lease(self, *, bearer: bool = False) -> Steps[None]:
        """release() for the last acquisition that uses the lease, from any thread, task or context.

        ``bearer``: by right of the token, also if it was detached. Where this is interrupted, it is for the caller to
        abandon it.
        """
        lease, watchdog = self.its_lease, self._runtime.watchdog
        tried, self._tried = self._tried, None
        lease.releases += 1
        try:
            watchdog.unwatch(lease)
            how = calls.BEARER if bearer or lease.detaching else calls.HOLDER
            answer = yield from calls.release(lease.request, may_arrive=lease.may_arrive, how=how, tried=tried)
            # a repeated release that finds nothing within the lease did its work the first time; a closed lease was
            # released in the background meanwhile, because its block was interrupted
            repeated = answer.repeated or lease.tried_release
            done = answer.state == calls.RELEASED or lease.closed or (repeated and not lease.lost)
            if not done and lease.releases > 1:  # another call has released it, or will find that it is lost
                raise LockNotOwned.to("release", lease.name)
            watchdog.end(lease)
            self.leave()
        except LockUnavailable as error:
            watchdog.forget(lease)
            lease.tried_release = True
            raise lease.unreleased_error(error) from error.__cause__
        finally:
            lease.releases -= 1
        if not done and not lease.lost_reason:
            watchdog.lose(lease, OLD_KEY if answer.state == calls.OLD_LOST else VANISHED, released=True)
        if lease.lost_reason:
            raise lease.lost_error()
        yield from tell_released(lease)

    # -- the end of what was done under it ---------------------------------------------------------------------------

    def end(self, error: BaseException | None, **facts: Any) -> Steps[bool]:
        """What was done under it has ended, with ``error`` or (None) well. Returns whether the lock is free.

        As release(), except that a lock which was detached ends in silence, that ``at_least`` is kept, and that no loss
        is raised over ``error``. A release that Redis could not be told of is tried again in the background; where it
        could not be told of ``at_least``, the lock is left to its lease. ``facts`` are for Several.
        """
        lease = self.its_lease
        if lease.cancelled_by(error):
            self.abandon()
            raise lease.lost_error()
        # nothing may be awaited any more; or the lock was left, on purpose, for the bearer of the token to release
        if isinstance(error, GeneratorExit) or lease.detached:
            self.abandon()
            return False
        left = self._seconds_kept(error)
        try:
            if not left:
                self.at_least = 0.0  # it has passed, or is for what ends well: one command is enough
                return (yield from self.release())
            yield from detach(self, left, acknowledged=False)  # nobody holds it from now on
            return True
        except LockNotOwned:  # a loss was reported already
            if error is None:
                raise
        except LockUnavailable as trouble:
            lost = lease.lost
            if left:
                trouble.lease_left = max(left, lease.remaining())  # the former if Redis was told after all
            self.leave_to_background(error)  # hardly anybody would try again
            if lost and error is None:
                raise lease.lost_error() from trouble
            raise
        return False

    def _seconds_kept(self, error: BaseException | None) -> float:
        """For how long it is to stay held, though by nobody, as what was done under it has ended with ``error``."""
        lease = self.its_lease
        left = lease.since + self.at_least - monotonic()
        return left if error is None and left >= 0.001 and lease.is_last(self) and lease.here else 0.0

    def leave_to_background(self, error: BaseException | None) -> None:
        """See end(): Redis cannot be told. Release the lock in the background or, with ``at_least``, let it end."""
        if self._seconds_kept(error):
            self._runtime.watchdog.end(self.its_lease)
            self.leave()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Give the lock back in the background: this was interrupted, or Redis could not be told."""
        lease = self.lease
        if lease is None:
            self._mark_over()
            return
        lease.leave(self)
        if self.here and not lease.shares:  # in a process that was forked meanwhile, it is the parent's to give back
            if lease.closed:
                self._runtime.watchdog.end(lease)  # again, in case that was interrupted
            else:
                abandon_lease(lease)
        self._mark_over()  # last: until then, its finalizer does this again

    def leave(self) -> None:
        """This acquisition no longer uses the lease. May be called again, and from any thread."""
        assert self.lease is not None
        self.lease.leave(self)
        self._mark_over()

    def _mark_over(self) -> None:
        """There is nothing to give back any more."""
        self.over, self._finalizer, self._above = True, None, ()  # contexts go by ``over``
        through = None if self._through is None else self._through()
        if through is not None:
            through.left(self)


def log_unreleased(trouble: LockUnavailable, **facts: Any) -> None:
    """Log that Redis could not be told of a release."""
    log_event(WARNING, "not-released", name=trouble.name, **facts, error=trouble, lease_left=trouble.lease_left)


def abandon_lease(lease: Lease) -> None:
    """Release in the background, trying as often as it takes."""
    watchdog = runtime().watchdog
    how = calls.BEARER if lease.detaching else calls.HOLDER
    # a renewal whose answer was lost may have moved its end
    lasts = max(lease.ttl, lease.remaining(), lease.detaching)
    watchdog.abandon(lease.request, may_arrive=lease.may_arrive, how=how, lasts=lasts)
    watchdog.end(lease)


def release_detached(lease: Lease | None) -> Steps[None]:
    """Release a lock that was detached here, unless somebody has adopted it since; in the background if need be."""
    if lease is None or not lease.detached:
        return  # whoever uses it gives it back
    answer = None
    try:
        answer = yield from calls.release(lease.request, may_arrive=lease.may_arrive, how=calls.BEARER)
    except LockUnavailable as trouble:
        log_unreleased(trouble)
    finally:
        if answer is None:  # or it was interrupted
            abandon_lease(lease)
    if answer is not None and answer.state == calls.RELEASED:
        yield from tell_released(lease)


def release_unused(lease: Lease) -> None:
    """Release it where two acquisitions have left at the same moment, each taking the other for the last."""
    if not (lease.shares or lease.closed or lease.lost_reason):
        abandon_lease(lease)
