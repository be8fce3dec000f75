"""A section under a lock: getting the lock, and giving it back."""

from __future__ import annotations

import asyncio
import os
import weakref
from binascii import b2a_base64
from logging import DEBUG, WARNING
from typing import Any, Protocol

from ..base.display import Secret
from ..base.log import log_event, logger
from ..base.names import known_as
from ..base.steps import Call, Step, Steps, arun, run
from ..base.times import Deadline, monotonic
from ..exceptions import LockError, LockNotAcquired, LockNotOwned, LockUnavailable
from ..options import Options
from ..signals import lock_acquired, lock_released
from ..store import calls
from ..store.calls import LockRequest
from ..store.lock_store import Partition
from ..store.loop_connections import ENTERING, LEAVING
from ..store.records import make_keys
from ..store.retry import Tried, atry_once, try_once
from ..store.stores import get_partition
from ..store.wire import Command
from .announcements import reason_of, tell_acquired, tell_refused, tell_released
from .attempt import Attempt, FirstLook, give_up_at, obtain
from .extension import detach
from .held import Key, Runner, caller, ground, hide, leases_on, runs, show, stands
from .lease import Canceller, Lease
from .owner import describe_owner
from .release import release, release_later
from .runtime import runtime
from .terms import Terms, terms_of
from .waiters import Loop, Waiter
from .with_block import Witness

_URLSAFE = bytes.maketrans(b"+/", b"-_")


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

    __slots__ = (
        "__weakref__",
        "_above",
        "_attempt",
        "_caller",
        "_generation",
        "_ground",
        "_keeper",
        "_pid",
        "_request",
        "_runtime",
        "_terms",
        "_through",
        "_tried",
        "_waiter",
        "_witness",
        "at_least",
        "keys",
        "lease",
        "name",
        "options",
        "over",
        "partition",
        "purpose",
        "token",
    )

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
        runner = caller()
        self._caller: Any = None if runner is None else weakref.ref(runner)
        self._through: Any = None if through is None else weakref.ref(through)
        self._keeper: Any = self._through
        self._ground: weakref.ref[Any] | None = None
        self._runtime = runtime()
        self._terms: Terms = terms_of(options, name)
        self._request: LockRequest | None = None
        self._waiter: Waiter | None = None
        self._generation: int = 0  # of the subscription under which the first try was made
        self._attempt: Attempt | None = None  # once the first try was not enough
        self._witness: Witness | None = None
        self._tried: Tried | None = None  # a release that was not enough
        self._above = show(self, self.keys[0])

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

    # -- getting it -------------------------------------------------------------------------------------------------

    def deadline(self, blocking: bool | None = None, blocking_timeout: float | None = None) -> Deadline:
        """Return until when to wait, beginning now. The arguments, if given, override the options."""
        return self._terms.deadline(blocking, blocking_timeout)

    def acquire(self, deadline: Deadline | None = None) -> LockNotAcquired | None:
        """Get the lock, in this thread; return the error for one that was not acquired in time, None when it was.

        ``deadline``: None: that of the options. Raises LockUnavailable, and LockError for a caller that would wait for
        itself.
        """
        begun, deadline = monotonic(), deadline or self._terms.deadline()
        command, tried = self._first_try(deadline, None), None
        if command is not None:
            tried = try_once(self.partition, command, give_up_at(deadline))
            if self._take_grant(tried):
                if lock_acquired.receivers or logger.isEnabledFor(DEBUG):
                    run(tell_acquired(self.held, monotonic() - begun))
                return None
        return run(self._go_on(deadline, begun, tried))

    async def aacquire(self, deadline: Deadline | None = None) -> LockNotAcquired | None:
        """See acquire()."""
        begun, deadline = monotonic(), deadline or self._terms.deadline()
        command, tried = self._first_try(deadline, asyncio.get_running_loop()), None
        if command is not None:
            tried = await atry_once(self.partition, command, give_up_at(deadline), ENTERING)
            if self._take_grant(tried):
                if lock_acquired.receivers or logger.isEnabledFor(DEBUG):
                    await arun(tell_acquired(self.held, monotonic() - begun))
                return None
        return await arun(self._go_on(deadline, begun, tried))

    def obtain(self, deadline: Deadline | None = None) -> Steps[LockNotAcquired | None]:
        """See acquire()."""
        refusal: LockNotAcquired | None = yield Call(self.acquire, (deadline,), twin=self.aacquire)
        return refusal

    def _first_try(self, deadline: Deadline, loop: Loop | None) -> Command | None:
        """Return the command that gets the lock if it is free, and else queues for it if messages arrive already.

        None: that is not all that it takes.
        """
        if self._above or self.token is not None or not self._terms.plain:
            return None
        listener, wait = self._runtime.listener(self.partition), calls.NOT_AT_ALL
        if listener.ready and deadline.waits and listener.polled:
            return None
        self._generation = listener.generation  # first, so that it is not newer than the answer
        self._request = request = self._make_request()
        if listener.ready and deadline.waits:
            self._waiter = waiter = listener.make_waiter(request.id, request.name, loop)
            listener.register(waiter)
            wait = calls.QUEUED
        return calls.acquire_command(request, wait)

    def _take_grant(self, tried: Tried) -> bool:
        """Hold the lock if the first try has got it; return whether it has."""
        assert self._request is not None
        granted = None if self._request.keys.any else calls.granted_at_once(self._request, tried)
        if granted is None:
            return False
        fence, ends = granted
        lease = Lease(self._request, self._terms, fence=fence, ends=ends, template=self._terms.template)
        self._enter(lease)
        self._runtime.watchdog.watch(lease)
        if self._waiter is not None:  # only now that the lease is watched; see _go_on()
            self._runtime.listener(self.partition).waiters.discard(self._waiter)
            self._waiter = None
        return True

    def _go_on(self, deadline: Deadline, begun: float, tried: Tried | None) -> Steps[LockNotAcquired | None]:
        """Get the lock where the first try, if there was one, was not enough. See acquire()."""
        canceller = self._make_canceller()
        above, own = self._held_above()
        if above is not None and (yield from self._enter_again(above, own, deadline)):
            return None
        attempt = self._make_attempt(deadline, begun, asked=tried is not None)
        first = None if tried is None else FirstLook(tried, self._waiter is not None, self._generation)
        granted = yield from (attempt.adopt() if self.options.adopt else obtain(attempt, first))
        if granted is None:
            try:
                yield from attempt.withdraw()
            except LockUnavailable:
                self.undo()
            attempt.leave()
            self._end()
            refusal = attempt.refusal(adopting=self.options.adopt, own=above.id if above is not None and own else None)
            yield from tell_refused(self.name, self._terms.template or self.name, refusal)
            return refusal
        template = self._terms.template or self.name
        facts: Any = {"template": template, "handed": granted.handed, "unknown": attempt.unknown}
        lease = Lease(attempt.request, self._terms, fence=granted.fence, ends=granted.ends, **facts)
        lease.canceller = canceller
        self._enter(lease)
        self._runtime.watchdog.watch(lease)
        attempt.leave()  # only now that the lease is watched, so that a late wake still finds its addressee
        self._attempt = self._waiter = None
        yield from tell_acquired(lease, monotonic() - begun)
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

    def _enter_again(self, held: Lease, own: bool, deadline: Deadline) -> Steps[bool]:
        """What ``held``, under which this was called for, means; True: it was entered another time.

        LockError where whoever called would wait for itself without end. Redis is asked: the lease may be gone.
        """
        adopts, endless = self.options.adopt, deadline.endless and self.options.attempts is None
        reentrant = (self.options.reentrant and not adopts) or (self.token is not None and held.token == self.token)
        if not reentrant and (not own or adopts or not endless):
            return False  # it waits for a parent; or for itself, but not without end; or wants another acquisition
        by = give_up_at(deadline)
        if reentrant:
            held.shares.append(self)  # before it is sure, so that whoever leaves meanwhile is not the last
        try:
            answer = yield from calls.renew(held.request, "confirm", held.ttl, held.fence, until=deadline.at, by=by)
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
                self._release_unused(held)
        if reentrant or not held.renewing:
            return False  # it is being released, or ends by itself
        raise LockError(
            f"Cannot wait for the lock {self.name!r}: this thread or task holds it already, and would wait for itself "
            f"without end. Pass a blocking_timeout, or reentrant=True.",
            self.name,
        )

    def _make_request(self) -> LockRequest:
        """What to ask Redis for, under a new id."""
        terms, options, name, partition = self._terms, self.options, self.name, self.partition
        if options.adopt and self.token is None:
            raise ValueError(f"Cannot adopt the lock {name!r} without its token: pass the one that detach() returned.")
        owner = describe_owner(self.purpose or options.purpose)
        # as secrets.token_urlsafe(16)
        id = b2a_base64(os.urandom(16), newline=False).translate(_URLSAFE, b"=").decode()
        if options.note:
            owner = f"{owner}\n{options.note}"
        keys, most = make_keys(partition.prefix, name), terms.most
        # all by position: names would take as long as the rest of it
        return LockRequest(
            partition, keys, name, Secret(id), terms.ttl, self.token, most, terms.replicas, owner, terms.listens
        )

    def _make_canceller(self) -> Canceller | None:
        """What cancels the calling task when the lock is lost; TypeError if that is to be, and there is no task."""
        if not self._terms.cancels:
            return None
        task = self.caller
        if not asyncio.isfuture(task):  # whatever its class
            noun, shown = known_as(self.name)
            raise TypeError(
                f"on_lost='cancel' cancels the task that holds the {noun} {shown!r}, but sync code is not a task: give "
                f"a function, or use aacquire() or async with."
            )
        return Canceller(task)

    def _make_attempt(self, deadline: Deadline, begun: float, *, asked: bool) -> Attempt:
        """``asked``: the first try has asked already."""
        request = self._request or self._make_request()
        attempt = Attempt(
            request,
            self._runtime.listener(self.partition),
            deadline=deadline,
            begun=begun,
            polls=not request.listens,
            backoff=self.options.backoff,
            attempts=self._terms.attempts,
            slow_wait=self._terms.slow_wait,
        )
        attempt.waiter, attempt.asked, attempt.asking = self._waiter, asked, asked
        self._attempt = attempt
        return attempt

    def _enter(self, lease: Lease) -> None:
        self._ground, self._above = ground(), ()
        self.lease = lease
        if self not in lease.shares:
            lease.shares.append(self)
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
        if self._ground is not None and not stands(self._ground()):
            return False
        return self._keeper is None or self._keeper() is not None

    def disown(self) -> None:
        """It is for somebody else to release: the context does not show it any more."""
        hide(self)
        self._witness = None

    def undo_after(self, block: object) -> None:
        """Give all back in the background if ``block`` dies before this was given back by other means."""
        watchdog = self._runtime.watchdog
        if not watchdog.runs:
            watchdog.wake_up()
        self._witness = watchdog.interruptions.watch(block, self)

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

    def release_at_once(self, how: str = calls.HOLDER) -> bool:
        """Release the lock in this thread; return False where that takes more than one command: give_back() goes on.

        ``how``: HOLDER or BEARER, by right of the token. Where this is interrupted, it is for the caller to undo it.
        """
        command = self._release_command(how)
        if command is None or not self._let_go(try_once(self.partition, command, None)):
            return False
        if lock_released.receivers or logger.isEnabledFor(DEBUG):
            run(tell_released(self.held))
        return True

    async def arelease_at_once(self) -> bool:
        """See release_at_once(). Cancelled, it completes in the background."""
        command = self._release_command(calls.HOLDER)
        if command is None:
            return False
        try:
            tried = await atry_once(self.partition, command, None, LEAVING)
            if not self._let_go(tried):
                return False
        except BaseException:
            self.undo()
            raise
        if lock_released.receivers or logger.isEnabledFor(DEBUG):
            await arun(tell_released(self.held))
        return True

    def _release_command(self, how: str) -> Command | None:
        """Return the command that releases the lock; None: that is not all that it takes."""
        lease = self.lease
        assert lease is not None
        if lease.closed or lease.detaching or lease.canceller is not None or lease.pid != os.getpid():
            return None
        if not lease.is_last(self):
            return None
        self._runtime.watchdog.unwatch(lease)
        return None if lease.lost_reason else calls.release_command(lease.request, unknown=lease.unknown, how=how)

    def _let_go(self, tried: Tried) -> bool:
        """End the lease if the first try has released the lock, and return True; else keep the try for give_back()."""
        if not calls.released_at_once(tried):
            self._tried = tried
            return False
        assert self.lease is not None
        self._runtime.watchdog.end(self.lease)
        self.leave()
        return True

    def first_release(self) -> Tried | None:
        """Hand over what has come of a release that was not enough, if there was one."""
        tried, self._tried = self._tried, None
        return tried

    def give_back(self) -> Steps[bool]:
        """Release the lock. False: other sections still use it (it is reentrant).

        Raises LockLost; LockNotOwned where the lock was detached, or the process was forked inside the section; and
        LockUnavailable when Redis cannot be told, then it can be tried again.
        """
        tried, lease = self.first_release(), self.held
        try:
            if tried is None:
                if (yield Call(self.release_at_once, twin=self.arelease_at_once)):
                    return True
                tried = self.first_release()
            if lease.detached or not lease.here:
                self.leave()
                raise LockNotOwned.to("release", lease.name)
            if lease.is_last(self):
                yield from release(lease, self, tried=tried)
                return True
            self.leave()
            self._release_unused(lease)
            if lease.lost:
                raise lease.lost_error()
            return False
        except (LockNotOwned, LockUnavailable):
            raise
        except BaseException:  # cancelled or interrupted: the lock has to be released all the same
            self.undo()
            raise

    def end(self, *, failed: bool = False) -> Steps[bool]:
        """give_back(), except that one which was detached ends in silence, and that ``at_least`` is kept."""
        lease = self.held
        if lease.detached:  # on purpose: it is for the bearer of the token to release
            self.undo()
            return False
        left = lease.since + self.at_least - monotonic()
        if failed or left < 0.001 or not lease.is_last(self):
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
        self.held.leave(self)
        self._end()

    @staticmethod
    def _release_unused(lease: Lease) -> None:
        """Release it where two sections have left at the same moment, each taking the other for the last."""
        if not (lease.shares or lease.closed or lease.lost_reason):
            release_later(lease)

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
            if here and not lease.shares:
                if lease.closed:
                    self._runtime.watchdog.end(lease)  # again, in case that was interrupted
                else:
                    release_later(lease)
        elif here and attempt is not None and attempt.asked and not attempt.over:
            attempt.over = True
            unknown = attempt.unknown or attempt.asking
            self._runtime.watchdog.release_later(attempt.request, unknown=unknown, how=calls.WITHDRAWAL)
        elif here and attempt is None and self._request is not None and not self.over:  # inside of the first try
            self._runtime.watchdog.release_later(self._request, unknown=True, how=calls.WITHDRAWAL)
        if here and attempt is not None:
            attempt.leave()
        elif here and self._waiter is not None:
            self._runtime.listener(self.partition).waiters.discard(self._waiter)
        self._end()
