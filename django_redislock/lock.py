"""The locks: ``Lock`` (fast; newcomers may win for 100 ms) and ``FairLock`` (strictly first come, first served)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from logging import DEBUG, ERROR, WARNING
from time import monotonic
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar

from redis.backoff import AbstractBackoff

from . import blocks, options, registry, scripts
from .attempt import Attempt
from .conf import Seconds, conf, seconds
from .connection import Backend, get_backend
from .exceptions import LockError, LockLost, LockNotAcquired, LockNotOwned, LockUnavailable
from .lease import GONE, TAKEN, Canceller, Lease, OnLost
from .log import log_event, logger
from .names import check_name, check_token, known_as, make_keys
from .owner import Bond, describe_owner, running_task
from .registry import LockInfo, LockStatus
from .signals import lock_acquired, lock_force_released, lock_released
from .steps import Call, Steps, Tell, arun, run_blocking
from .watchdog import watchdog

MANY = 100

Loop = asyncio.AbstractEventLoop
Self = TypeVar("Self", bound="Lock")


class _Holding(NamedTuple):
    """A lock object's share in a lease: with reentrance, several share one."""

    lease: Lease
    times: int  # acquired through this object
    bond: Bond  # lives as long as any share does


# What this thread or task holds: an immutable mapping, replaced as a whole. asgiref carries context variables through
# sync_to_async and async_to_sync; its Local does no more for us, takes longer, and used to change its contents in
# place, so that a child task's lock took its parent's away.
_holdings: ContextVar[Mapping[Lock, _Holding]] = ContextVar("django_redislock.holdings", default={})  # noqa: B039


class Lock:
    """A lock on ``name`` for all processes that share the Redis of a cache alias.

    It belongs to the thread or task that acquires it; one object may be shared by many, each has its own acquisition.
    Every method that talks to Redis has a twin for coroutines (``aacquire`` ...); ``async with`` works like ``with``.

    ``name``
        What is locked, 1 to 512 bytes. Quote parts that come from users with :func:`lock_name`.
    ``ttl``
        Seconds (int, float, timedelta) after which Redis frees the lock if nobody renews it; None: by the settings.
    ``blocking``, ``blocking_timeout``
        Whether to wait for a busy lock, and at most how many seconds: 0 tries once, None takes the setting
        (by default: wait without end).
    ``auto_renew``
        Renew in the background at a third of the TTL, while the thread that acquired lives; None: by the settings.
    ``token``
        A token from :meth:`detach`, to adopt an acquisition that was made elsewhere.
    ``reentrant``
        A thread that holds the name may acquire it again; the last release sets it free.
    ``on_lost``
        Called once, from a background thread, with a :class:`LockLost` when the lock is lost while held (from
        ``release()`` itself when that is what finds it out). Its exceptions are logged. ``"cancel"``, for coroutines:
        the task that holds the lock is cancelled, and ``async with`` raises LockLost out of it.
    ``using``
        Alias in ``CACHES``; None: by the settings.
    ``wait``
        How to wait: ``"wake"``, to be woken by a message; ``"poll"``, to look again and again, for servers behind
        proxies that know no pub/sub (nothing subscribes then, so a holder hears of its loss at its next renewal). A
        FairLock is first come, first served either way. None: by the settings.
    ``backoff``, ``attempts``
        With ``wait="poll"``: an instance of one of the classes in :mod:`redis.backoff`, for the delays between two
        tries (at most 15 s each; by default ``EqualJitterBackoff(cap=0.5, base=0.02)``), and at most how many tries.
        There is no delay after the last try, and none beyond ``blocking_timeout``.
    ``note``
        A text for people, at most 1000 bytes, that is kept with the lock and with the place in the queue:
        ``info().note``, the command and the admin show it.

    Guaranteed: no two acquisitions hold the lock at once, as long as Redis keeps what it acknowledged and its clock
    does not jump; then ``fence`` still orders them. Not guaranteed: that your code stops when its lock is lost. Watch
    :attr:`lost`, or give ``fence`` to whatever you write to.

    Waiters queue; but while the first of them has waited for less than 100 ms, whoever asks at the right moment may
    overtake it. That is faster under contention and starves nobody. :class:`FairLock` never lets anybody overtake.
    """

    __slots__ = (
        "__weakref__",
        "_attempts",
        "_auto_renew",
        "_backoff",
        "_blocking",
        "_blocking_timeout",
        "_note",
        "_on_lost",
        "_reentrant",
        "_token",
        "_ttl",
        "_wait",
        "name",
        "purpose",
        "using",
    )

    _mode = "L"

    def __init__(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        blocking: bool = True,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool | None = None,
        token: str | None = None,
        reentrant: bool = False,
        on_lost: OnLost | Literal["cancel"] | None = None,
        using: str | None = None,
        wait: Literal["wake", "poll"] | None = None,
        backoff: AbstractBackoff | None = None,
        attempts: int | None = None,
        note: str = "",
    ) -> None:
        self.name = check_name(name)
        self._ttl = None if ttl is None else seconds(ttl, "ttl")
        self._blocking = blocking
        self._blocking_timeout = _timeout(blocking_timeout)
        self._auto_renew = auto_renew
        self._token = None if token is None else check_token(token)
        self._reentrant = reentrant
        self._on_lost = None if on_lost is None else options.check_on_lost(on_lost)
        self.using = using
        if wait is not None or backoff is not None or attempts is not None:
            options.check_wait(wait, backoff, attempts)
        self._wait = wait
        self._backoff = backoff
        self._attempts = attempts
        self._note = note if note == "" else options.check_note(note)
        self.purpose = ""  # shown behind the owner: a request path, a command

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # -- what users call --------------------------------------------------------------------------------------------

    def acquire(
        self, *, blocking: bool | None = None, blocking_timeout: Seconds | None = None, token: str | None = None
    ) -> bool:
        """Take the lock; False when it was not got in time.

        Arguments override those of the constructor. A busy lock never raises; LockUnavailable says that Redis cannot
        be reached, LockError that this thread would wait without end for a lock that it holds itself.
        """
        timeout = _timeout(blocking_timeout)
        steps = self._take(None, blocking=blocking, timeout=timeout, token=token)
        return run_blocking(steps, "aacquire") is None

    async def aacquire(
        self, *, blocking: bool | None = None, blocking_timeout: Seconds | None = None, token: str | None = None
    ) -> bool:
        """See acquire(). Cancelled at any moment, it leaves no lock and no place in the queue."""
        timeout = _timeout(blocking_timeout)
        steps = self._take(asyncio.get_running_loop(), blocking=blocking, timeout=timeout, token=token)
        return await arun(steps) is None

    def seize(self) -> None:
        """Take the lock whoever holds it, ahead of the queue, whose waiters keep their places.

        In one step: nobody gets the lock in between. The new fence is higher than that of the old holder, which is
        told at once (``lost``) as after :func:`force_release`, but goes on until it looks: make sure that it is dead or
        harmless. It is logged (``seized``), and the signal ``lock_force_released`` is sent.

        Raises LockError when this thread or task holds the lock itself (with ``reentrant``, that counts as one more
        acquire), LockUnavailable; LockNotAcquired for a given ``token`` that was released already.
        """
        run_blocking(self._enter(None, seizes=True), "aseize")

    async def aseize(self) -> None:
        """See seize()."""
        await arun(self._enter(asyncio.get_running_loop(), seizes=True))

    def release(self) -> None:
        """Give the lock to the next one. With ``reentrant``, the last of as many calls as there were acquires does.

        Raises LockNotOwned when this thread never held it or another process has adopted its token, LockLost when it
        was lost meanwhile, and LockUnavailable when Redis cannot be told: then it can be tried again, and the lease
        ends by itself after ``remaining()``, which the error has as ``stands_for``.
        """
        run_blocking(self._release(), "arelease")

    async def arelease(self) -> None:
        """See release(). Cancelled, it is finished in the background."""
        await arun(self._release())

    def extend(self, additional: Seconds, *, replace_ttl: bool = False) -> bool:
        """Add ``additional`` seconds to the lease, or (``replace_ttl``) let it end in so many seconds from now.

        Always True. Raises LockNotOwned, LockLost, LockUnavailable.
        """
        return run_blocking(self._extend(additional, replace_ttl), "aextend")

    async def aextend(self, additional: Seconds, *, replace_ttl: bool = False) -> bool:
        """See extend()."""
        return await arun(self._extend(additional, replace_ttl))

    def reacquire(self) -> bool:
        """Let the lease end a full TTL from now. Raises like :meth:`extend`."""
        return run_blocking(self._renew("set", None), "areacquire")

    async def areacquire(self) -> bool:
        """See reacquire()."""
        return await arun(self._renew("set", None))

    def locked(self) -> bool:
        """Whether anybody holds the lock; asks Redis."""
        return run_blocking(self._locked(), "alocked")

    async def alocked(self) -> bool:
        """See locked()."""
        return await arun(self._locked())

    def owned(self) -> bool:
        """Whether this thread or task holds the lock, or the token given to the constructor does; asks Redis."""
        return run_blocking(self._owned(), "aowned")

    async def aowned(self) -> bool:
        """See owned()."""
        return await arun(self._owned())

    def status(self) -> LockStatus:
        """FREE, LOCKED (by this thread or task, or the token given to the constructor), UNAVAILABLE (by others), ERROR.

        One round trip. ERROR: there is a lock that never expires; none of ours is like that, somebody else wrote it.
        """
        return run_blocking(self._status(), "astatus")

    async def astatus(self) -> LockStatus:
        """See status()."""
        return await arun(self._status())

    def info(self) -> LockInfo | None:
        """What Redis says now: holder, since, lease, fence, waiters in order. None when nobody holds the lock."""
        return run_blocking(registry.inspect(self._backend(), self.name), "ainfo")

    async def ainfo(self) -> LockInfo | None:
        """See info()."""
        return await arun(registry.inspect(self._backend(), self.name))

    def detach(self) -> str:
        """End renewal and ownership here without a release, and answer the token with which another process goes on.

        ``Lock(name, token=...)`` adopts it: its ``acquire()`` renews from then on, its ``release()`` sets it free.
        Until then the lease runs, at most for the TTL. Raises LockNotOwned, LockLost.
        """
        return run_blocking(self._detach(), "adetach")

    async def adetach(self) -> str:
        """See detach()."""
        return await arun(self._detach())

    def check(self) -> None:
        """Raise LockLost when the lock is lost, LockNotOwned when it is not held here. Local; for long loops."""
        lease = self._lease()
        if lease.lost:
            raise lease.lost_error()

    @property
    def lost(self) -> bool:
        """Whether the lock is known, or by the local clock must be presumed, to be lost. Local, no round trip."""
        lease = self._find()
        return lease is not None and lease.lost

    def remaining(self) -> float:
        """Seconds of lease left by the local monotonic clock; 0.0 when lost or not held. Local, no round trip."""
        lease = self._find()
        return 0.0 if lease is None else lease.remaining()

    @property
    def token(self) -> str | None:
        """The secret of the current acquisition: whoever has it can release the lock."""
        lease = self._find()
        return self._token if lease is None else lease.token

    @property
    def fence(self) -> int | None:
        """The fencing token of the current acquisition: it only ever grows, from one acquisition to the next."""
        lease = self._find()
        return None if lease is None else lease.fence

    @property
    def ttl(self) -> float:
        """Seconds after which Redis frees the lock if nobody renews it."""
        lease = self._find()
        if lease is not None:
            return lease.ttl
        return conf().ttl_of(self.name) if self._ttl is None else self._ttl

    def __enter__(self: Self) -> Self:
        run_blocking(self._enter(None), "aacquire")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run_blocking(self._exit(error), "arelease")

    async def __aenter__(self: Self) -> Self:
        await arun(self._enter(asyncio.get_running_loop()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):
            # the context is that of whoever closes the coroutine, and where no task runs, it shows nothing of a task's
            self._closed(None if running_task() is None else self._find())
        else:
            await arun(self._exit(error))

    # -- how it is done, for sync and async alike -------------------------------------------------------------------

    def _enter(self, loop: Loop | None, *, seizes: bool = False) -> Steps[None]:
        refusal = yield from self._take(loop, blocking=False if seizes else None, seizes=seizes)
        if refusal is not None:
            raise refusal

    def _around(self, call: Call, loop: Loop | None) -> Steps[Any]:
        """Make the call while the lock is held; what decorators do."""
        yield from self._enter(loop)
        lease = self._lease()
        try:
            answer = yield call
        except BaseException as error:
            yield from self._failed(lease, error, loop)
            raise
        yield from self._exit(None)
        return answer

    def _failed(self, lease: Lease, error: BaseException, loop: Loop | None) -> Steps[None]:
        """What was done while ``lease`` was held, by a coroutine in ``loop`` or by a thread, has raised ``error``."""
        if loop is not None and isinstance(error, GeneratorExit):
            self._closed(lease)
        else:
            yield from self._exit(error)

    def _closed(self, lease: Lease | None) -> None:
        """A coroutine is closed in its section, because its event loop is gone, say: it may await nothing any more."""
        if lease is not None and lease.ours and not self._left_inner(lease):
            self._release_later(lease)

    def _exit(self, error: BaseException | None) -> Steps[None]:
        lease = self._find()
        if lease is not None and lease.canceller is not None and lease.canceller.caused(error):
            self._release_later(lease)
            raise lease.lost_error()
        try:
            yield from (self._release() if error is None else self._give_back())
        except (LockNotOwned, LockUnavailable) as trouble:
            if lease is not None and isinstance(trouble, LockUnavailable):
                # hardly anybody would try again; who does finds that it was done
                watchdog.release(lease)
            if error is None:
                raise
            # the block's own error matters more, and a loss has been told
            if not isinstance(trouble, LockLost):
                stands_for = getattr(trouble, "stands_for", 0.0)
                log_event(WARNING, "not-released", name=self.name, error=trouble, stands_for=stands_for)

    def _take(
        self,
        loop: Loop | None,
        *,
        blocking: bool | None = None,
        timeout: float | None = None,
        token: str | None = None,
        seizes: bool = False,
        fresh: bool = False,
    ) -> Steps[LockNotAcquired | None]:
        """``loop``: the one in which a coroutine waits; None: this thread does. ``fresh``: nobody else knows ``token``.

        Answers the error that says that the lock was not got; None when it was.
        """
        start = monotonic()
        settings = conf()
        if timeout is None:
            timeout = settings.BLOCKING_TIMEOUT if self._blocking_timeout is None else self._blocking_timeout
        waits = (self._blocking if blocking is None else blocking) and timeout != 0
        until = start + timeout if waits and timeout is not None else 0.0

        task = running_task()
        canceller = None
        on_lost = None if self._on_lost == "cancel" else self._on_lost
        if self._on_lost == "cancel":
            if task is None:
                noun, name = known_as(self.name)
                raise TypeError(
                    f"on_lost='cancel' cancels the task that holds the lock, and sync code is no task: for the {noun} "
                    f"{name!r}, give a function, or use aacquire() or async with."
                )
            canceller = Canceller(task)

        given = check_token(token) if token is not None else self._token
        mine = self._own_lease_on_name()
        if mine is not None:
            if self._reentrant or mine.token == given:
                mine.depth += 1
                self._hold(mine, mine.owner.bond())
                return None
            if seizes:
                raise LockError(
                    f"This thread or task holds the lock {self.name!r} itself, and cannot seize it.", self.name
                )
            if waits and not until and self._attempts is None:
                raise LockError(
                    f"This thread or task holds the lock {self.name!r} already and would wait for itself without end. "
                    f"Give a blocking_timeout, or reentrant=True.",
                    self.name,
                )

        ttl = settings.ttl_of(self.name) if self._ttl is None else self._ttl
        token = given or secrets.token_urlsafe(16)
        backend = self._backend()
        owner = describe_owner(self.purpose, task)
        polls = (self._wait or settings.WAIT) == "poll"
        attempt = Attempt(
            backend,
            self.name,
            token,
            mode=self._mode,
            ttl=round(ttl * 1000),
            deadline=until if waits else None,
            owner=f"{owner}\n{self._note}" if self._note else owner,
            adopts=given is not None and not fresh,
            loop=loop,
            polls=polls,
            backoff=self._backoff,
            attempts=self._attempts,
        )
        granted = None
        try:
            granted = yield from (attempt.seize() if seizes else attempt.obtain())
            if granted is None:
                yield from attempt.withdraw()
                return attempt.refusal(monotonic() - start)
            lease = Lease(
                backend,
                attempt.keys,
                attempt.name,
                token,
                fence=granted.fence,
                ttl=ttl,
                ends=granted.ends,
                handed=granted.handed,
                renewing=settings.AUTO_RENEW if self._auto_renew is None else self._auto_renew,
                max_hold=settings.MAX_HOLD,
                on_lost=on_lost,
                unknown=attempt.unknown,
                task=task,
            )
            lease.canceller = canceller
            lease.listens = not polls
            bond = lease.owner.bond()
            watchdog.watch(lease)
            self._hold(lease, bond)
        except BaseException:
            # interrupted, or Redis went away: what it may still do for us must not stay
            attempt.abandon()
            raise
        finally:
            # not before the lease is watched: a late wake must find somebody it belongs to
            attempt.leave()
        waited = monotonic() - start
        if logger.isEnabledFor(DEBUG):
            log_event(DEBUG, "acquired", name=lease.name, fence=lease.fence, waited=waited)
        if attempt.seized is None and not lock_acquired.receivers:
            return None
        news = []
        if attempt.seized is not None:
            old = registry.holder_of(attempt.seized)
            was = "?" if old is None else old.owner
            log_event(WARNING, "seized", name=lease.name, fence=lease.fence, by=owner, owner=was)
            news.append(Tell(lock_force_released, type(self), name=lease.name, by=owner))
        if lock_acquired.receivers:
            news.append(Tell(lock_acquired, type(self), name=lease.name, fence=lease.fence, waited=waited))
        try:
            yield from news
        except BaseException:  # cancelled
            self._release_later(lease)
            raise
        return None

    def _release(self) -> Steps[None]:
        if (yield from self._give_back()):
            blocks.complain_of_release(self.name)

    def _give_back(self) -> Steps[bool]:
        """Whether it is free now: False for the inner release of a reentrant lock."""
        lease = self._find()
        if lease is None:
            former = _holdings.get().get(self)
            if former is not None and former.lease.adopted:
                self._let_go(former.lease)
                raise former.lease.adopted_error()
            if self._token is None:
                raise self._not_owned("release")
            yield from self._release_adopted(self._token)
        elif self._left_inner(lease):
            return False
        else:
            yield from self._release_lease(lease)
        return True

    def _left_inner(self, lease: Lease) -> bool:
        """Leave the inner block of a reentrant lock, if it is one."""
        if lease.depth == 1:
            return False
        lease.depth -= 1
        self._let_go(lease)
        return True

    def _release_lease(self, lease: Lease, *, own: bool = True) -> Steps[None]:
        """Release this very acquisition, from any thread, task or context. ``own``: see scripts.release()."""
        watchdog.unwatch(lease)
        try:
            held, twice = yield from scripts.release(
                lease.backend, lease.keys, lease.name, lease.token, unknown=lease.unknown, own=own
            )
        except LockUnavailable as error:
            watchdog.forget(lease)
            lease.tried_release = True
            raise lease.unreleased_error(error) from error.__cause__
        except BaseException:  # cancelled or interrupted: it has to end all the same
            self._release_later(lease)
            raise
        # a repeated release that finds nothing, within the lease, did its work the first time
        done = held or ((twice or lease.tried_release) and not lease.lost)
        self._end(lease)
        if held == scripts.ADOPTED and not lease.lost_reason:
            raise lease.adopted_error()
        if not done and not lease.lost_reason:
            lease.lost_reason = GONE
            # coroutines must not wait for receivers, and asynchronous ones cannot be called from within a loop
            (watchdog.tell_lost if running_task() is None else watchdog.announce)(lease)
        if lease.lost_reason:
            raise lease.lost_error()
        held_for = monotonic() - lease.since
        if logger.isEnabledFor(DEBUG):
            log_event(DEBUG, "released", name=self.name, fence=lease.fence, held=held_for)
        if lock_released.receivers:
            yield Tell(lock_released, type(self), name=self.name, fence=lease.fence, held=held_for)

    def _release_surely(self, lease: Lease, **facts: Any) -> Steps[None]:
        """Release where the work is done, and an error now would invite to do it again: where Redis cannot be told, in
        the background. LockLost goes up. ``facts`` are for the log.
        """
        try:
            yield from self._release_lease(lease)
        except LockUnavailable as error:
            log_event(ERROR, "not-released", name=self.name, **facts, error=error, stands_for=error.stands_for)
            self._release_later(lease)

    def _release_adopted(self, token: str) -> Steps[None]:
        backend = self._backend()
        held, twice = yield from scripts.release(backend, make_keys(backend.prefix, self.name), self.name, token)
        if not held and not twice:
            raise self._not_owned("release")

    def _release_later(self, lease: Lease) -> None:
        """Release in the background, as often as it takes: for when ``release()`` was not to be had."""
        self._end(lease)
        watchdog.release(lease)

    def _end(self, lease: Lease, *, adoptable: bool = False) -> None:
        """The acquisition has ended, or (``adoptable``) its token goes on elsewhere."""
        watchdog.end(lease, adoptable=adoptable)
        self._let_go(lease)

    def _extend(self, additional: Seconds, replace_ttl: bool) -> Steps[bool]:
        ms = round(seconds(additional, "additional") * 1000)
        return self._renew("set" if replace_ttl else "add", ms)

    def _renew(self, how: str, ms: int | None) -> Steps[bool]:
        return (yield from self._renew_lease(self._lease(), how, ms))

    def _renew_lease(self, lease: Lease, how: str, ms: int | None) -> Steps[bool]:
        """Renew this very acquisition, from any thread, task or context."""
        if lease.lost_reason:
            raise lease.lost_error()
        ms = lease.ttl_ms if ms is None else ms
        answer = yield from scripts.renew(lease.backend, lease.keys, self.name, lease.token, lease.ttl_ms, how, ms)
        if answer.state != scripts.HELD:
            watchdog.lose(lease, TAKEN if answer.taken else GONE)
            raise lease.lost_error()
        watchdog.extended(lease, answer.ends)
        if lease.lost_reason:  # the answer came after the end: the loss has been told
            raise lease.lost_error()
        return True

    def _detach(self) -> Steps[str]:
        lease = self._lease()
        if lease.handed:
            # it has the short lease of a handoff, and nobody here will confirm it any more
            yield from self._renew("confirm", None)
        if lease.lost:
            raise lease.lost_error()
        self._end(lease, adoptable=True)
        return lease.token

    def _value(self) -> Steps[bytes | None]:
        backend = self._backend()
        reply = yield from scripts.execute(backend, ("GET", make_keys(backend.prefix, self.name).lock), self.name)
        return reply.answer  # type: ignore[no-any-return]

    def _status(self) -> Steps[LockStatus]:
        backend, token = self._backend(), self.token
        value, left_ms, *_ = yield from scripts.info(backend, make_keys(backend.prefix, self.name), self.name, 0)
        return registry.status_of(value, left_ms, token)

    def _locked(self) -> Steps[bool]:
        return (yield from self._value()) is not None

    def _owned(self) -> Steps[bool]:
        token = self.token
        if token is None:
            return False
        value = yield from self._value()
        return value is not None and value.startswith(f"{token} ".encode())

    # -- small parts ------------------------------------------------------------------------------------------------

    def _backend(self) -> Backend:
        return get_backend(self.using)

    def _find(self) -> Lease | None:
        """The current acquisition of this thread or task through this object."""
        holding = _holdings.get().get(self)
        return holding.lease if holding is not None and holding.lease.mine(running_task()) else None

    def _lease(self) -> Lease:
        lease = self._find()
        if lease is None:
            raise self._not_owned("use")
        return lease

    def _own_lease_on_name(self) -> Lease | None:
        holdings = _holdings.get()
        if holdings:
            backend, task = self._backend(), running_task()
            for lease in [holding.lease for holding in holdings.values()]:
                # one whose release failed may be somebody else's by now, and nothing renews it
                ours = not lease.lost and not lease.tried_release
                if ours and lease.name == self.name and lease.backend is backend and lease.mine(task):
                    return lease
        return None

    def _hold(self, lease: Lease, bond: Bond) -> None:
        holdings = _holdings.get()
        if len(holdings) > MANY:  # locks that were lost and never released
            holdings = {lock: holding for lock, holding in holdings.items() if not holding.lease.lost}
        known = holdings.get(self)
        times = known.times + 1 if known is not None and known.lease is lease else 1
        _holdings.set({**holdings, self: _Holding(lease, times, bond)})

    def _let_go(self, lease: Lease) -> None:
        rest = dict(_holdings.get())
        holding = rest.pop(self, None)
        if holding is None or holding.lease is not lease:
            return  # it is let go in a context that knows nothing of it
        if holding.times > 1 and not lease.closed:
            rest[self] = holding._replace(times=holding.times - 1)
        _holdings.set(rest)

    def _not_owned(self, verb: str) -> LockNotOwned:
        return LockNotOwned(f"Cannot {verb} the lock {self.name!r}: this thread or task does not hold it.", self.name)


class FairLock(Lock):
    """A :class:`Lock` that is strictly first come, first served, by the order in which requests reach Redis.

    Release hands the lock to the head of the queue, so a contended acquisition costs two round trips like an
    uncontended one. Where a name is used through ``Lock`` as well, a ``Lock`` waiter at the head of the queue can be
    overtaken by other ``Lock`` users for 100 ms, and everybody behind it with it.
    """

    __slots__ = ()

    _mode = "F"


def tokens_here(backend: Backend) -> dict[str, str]:
    """The tokens of what this thread or task holds, by name."""
    task = running_task()
    leases = [holding.lease for holding in _holdings.get().values()]
    return {lease.name: lease.token for lease in leases if lease.backend is backend and lease.mine(task)}


def _timeout(value: Seconds | None) -> float | None:
    return None if value is None else seconds(value, "blocking_timeout", positive=False)
