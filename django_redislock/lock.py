"""The locks: ``Lock`` (fast; newcomers may win for 100 ms) and ``FairLock`` (strictly first come, first served)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from logging import DEBUG, WARNING
from time import monotonic
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar

from asgiref.sync import iscoroutinefunction

from . import blocks, registry, scripts
from .attempt import Attempt
from .conf import Seconds, conf, seconds
from .connection import Backend, get_backend
from .exceptions import LockError, LockNotAcquired, LockNotOwned, LockUnavailable
from .lease import GONE, TAKEN, Canceller, Lease, OnLost
from .log import log_event, logger
from .names import check_name, check_token, make_keys
from .owner import Bond, describe_owner, running_task
from .registry import LockInfo
from .signals import lock_acquired, lock_released
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

    Guaranteed: no two acquisitions hold the lock at once, as long as Redis keeps what it acknowledged and its clock
    does not jump; then ``fence`` still orders them. Not guaranteed: that your code stops when its lock is lost. Watch
    :attr:`lost`, or give ``fence`` to whatever you write to.

    Waiters queue; but while the first of them has waited for less than 100 ms, whoever asks at the right moment may
    overtake it. That is faster under contention and starves nobody. :class:`FairLock` never lets anybody overtake.
    """

    __slots__ = (
        "__weakref__",
        "_auto_renew",
        "_blocking",
        "_blocking_timeout",
        "_on_lost",
        "_reentrant",
        "_token",
        "_ttl",
        "busy_for",
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
    ) -> None:
        self.name = check_name(name)
        self._ttl = None if ttl is None else seconds(ttl, "ttl")
        self._blocking = blocking
        self._blocking_timeout = _timeout(blocking_timeout)
        self._auto_renew = auto_renew
        self._token = None if token is None else check_token(token)
        self._reentrant = reentrant
        if on_lost is not None and on_lost != "cancel" and (not callable(on_lost) or iscoroutinefunction(on_lost)):
            raise TypeError(f"on_lost must be a plain function, 'cancel' or None, not {on_lost!r}.")
        self._on_lost = on_lost
        self.using = using
        self.busy_for = 0.0  # seconds of lease that the holder had left when the last acquire here was refused
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
        return run_blocking(self._acquire(blocking, _timeout(blocking_timeout), token, None), "aacquire")

    async def aacquire(
        self, *, blocking: bool | None = None, blocking_timeout: Seconds | None = None, token: str | None = None
    ) -> bool:
        """See acquire(). Cancelled at any moment, it leaves no lock and no place in the queue."""
        return await arun(self._acquire(blocking, _timeout(blocking_timeout), token, asyncio.get_running_loop()))

    def release(self) -> None:
        """Give the lock to the next one. With ``reentrant``, the last of as many calls as there were acquires does.

        Raises LockNotOwned when this thread never held it, LockLost when it was lost meanwhile, and LockUnavailable
        when Redis cannot be told: then it can be tried again, and the lease ends by itself after ``remaining()``.
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
        await arun(self._exit(error, awaited=True))

    # -- how it is done, for sync and async alike -------------------------------------------------------------------

    def _enter(self, loop: Loop | None) -> Steps[None]:
        if not (yield from self._acquire(None, None, None, loop)):
            raise LockNotAcquired(
                f"The lock {self.name!r} is held by somebody else and was not got in time.", self.name
            )

    def _around(self, call: Call, loop: Loop | None) -> Steps[Any]:
        """Make the call while the lock is held; what decorators do."""
        yield from self._enter(loop)
        try:
            answer = yield call
        except BaseException as error:
            yield from self._exit(error, awaited=loop is not None)
            raise
        yield from self._exit(None)
        return answer

    def _exit(self, error: BaseException | None, *, awaited: bool = False) -> Steps[None]:
        lease = self._find()
        if awaited and isinstance(error, GeneratorExit) and (lease is None or lease.depth == 1):
            # a coroutine that is closed, because its event loop is gone, say: it may await nothing any more
            if lease is not None:
                self._release_later(lease)
            return
        if lease is not None and lease.canceller is not None and lease.canceller.caused(error):
            self._release_later(lease)
            raise lease.lost_error()
        try:
            yield from (self._release() if error is None else self._give_back())
        except (LockNotOwned, LockUnavailable) as trouble:
            if error is None:
                raise
            # the block's own error matters more
            log_event(WARNING, "not-released", name=self.name, error=trouble)

    def _acquire(
        self, blocking: bool | None, timeout: float | None, token: str | None, loop: Loop | None
    ) -> Steps[bool]:
        """``loop``: the one in which a coroutine waits; None: this thread does."""
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
                raise TypeError(
                    f"on_lost='cancel' cancels the task that holds the lock {self.name!r}, and sync code is no task: "
                    f"give a function, or use aacquire() or async with."
                )
            canceller = Canceller(task)

        mine = self._own_lease_on_name()
        if mine is not None:
            if self._reentrant:
                mine.depth += 1
                self._hold(mine, mine.owner.bond())
                return True
            if waits and not until:
                raise LockError(
                    f"This thread or task holds the lock {self.name!r} already and would wait for itself without end. "
                    f"Give a blocking_timeout, or reentrant=True.",
                    self.name,
                )

        ttl = settings.ttl_of(self.name) if self._ttl is None else self._ttl
        given = check_token(token) if token is not None else self._token
        token = given or secrets.token_urlsafe(16)
        backend = self._backend()
        attempt = Attempt(
            backend,
            self.name,
            token,
            mode=self._mode,
            ttl=round(ttl * 1000),
            deadline=until if waits else None,
            owner=describe_owner(self.purpose, task),
            adopts=given is not None,
            loop=loop,
        )
        granted = None
        try:
            granted = yield from attempt.obtain()
            if granted is None:
                self.busy_for = attempt.busy_for
                yield from attempt.withdraw()
                return False
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
        if lock_acquired.receivers:
            try:
                yield Tell(lock_acquired, type(self), name=lease.name, fence=lease.fence, waited=waited)
            except BaseException:  # cancelled
                self._release_later(lease)
                raise
        return True

    def _release(self) -> Steps[None]:
        if (yield from self._give_back()):
            blocks.complain_of_release(self.name)

    def _give_back(self) -> Steps[bool]:
        """Whether it is free now: False for the inner release of a reentrant lock."""
        lease = self._find()
        if lease is None:
            if self._token is None:
                raise self._not_owned("release")
            yield from self._release_adopted(self._token)
        elif lease.depth > 1:
            lease.depth -= 1
            self._let_go()
            return False
        else:
            yield from self._release_lease(lease)
        return True

    def _release_lease(self, lease: Lease) -> Steps[None]:
        """Release this very acquisition, from any thread, task or context."""
        watchdog.unwatch(lease)
        if lease.canceller is not None:
            lease.canceller.end()
        try:
            held, twice = yield from scripts.release(
                lease.backend, lease.keys, lease.name, lease.token, unknown=lease.unknown
            )
        except Exception:
            lease.tried_release = True
            raise
        except BaseException:  # cancelled or interrupted: it has to end all the same
            self._release_later(lease)
            raise
        finally:
            watchdog.forget(lease)
        # a repeated release that finds nothing, within the lease, did its work the first time
        done = held or ((twice or lease.tried_release) and not lease.lost)
        lease.closed = True
        self._let_go()
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

    def _release_adopted(self, token: str) -> Steps[None]:
        backend = self._backend()
        held, twice = yield from scripts.release(backend, make_keys(backend.prefix, self.name), self.name, token)
        if not held and not twice:
            raise self._not_owned("release")

    def _release_later(self, lease: Lease) -> None:
        """Release in the background, as often as it takes: for when ``release()`` was not to be had."""
        watchdog.forget(lease)
        if lease.canceller is not None:
            lease.canceller.end()
        watchdog.send_farewell(lease.backend, lease.name, lease.token, unknown=lease.unknown)
        lease.closed = True
        self._let_go()

    def _extend(self, additional: Seconds, replace_ttl: bool) -> Steps[bool]:
        ms = round(seconds(additional, "additional") * 1000)
        return self._renew("set" if replace_ttl else "add", ms)

    def _renew(self, how: str, ms: int | None) -> Steps[bool]:
        lease = self._lease()
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
        watchdog.forget(lease, adoptable=True)
        if lease.canceller is not None:
            lease.canceller.end()
        lease.closed = True
        self._let_go()
        return lease.token

    def _value(self) -> Steps[bytes | None]:
        backend = self._backend()
        reply = yield from scripts.execute(backend, ("GET", make_keys(backend.prefix, self.name).lock), self.name)
        return reply.answer  # type: ignore[no-any-return]

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
                if lease.name == self.name and lease.backend is backend and lease.mine(task) and not lease.lost:
                    return lease
        return None

    def _hold(self, lease: Lease, bond: Bond) -> None:
        holdings = _holdings.get()
        if len(holdings) > MANY:  # locks that were lost and never released
            holdings = {lock: holding for lock, holding in holdings.items() if not holding.lease.lost}
        known = holdings.get(self)
        times = known.times + 1 if known is not None and known.lease is lease else 1
        _holdings.set({**holdings, self: _Holding(lease, times, bond)})

    def _let_go(self) -> None:
        rest = dict(_holdings.get())
        holding = rest.pop(self, None)
        if holding is not None and holding.times > 1 and not holding.lease.closed:
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
