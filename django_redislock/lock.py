"""``Lock``: what users call, and nothing else.

Most of this module is docstrings: they are the reference, for sync and async calls alike.
"""

from __future__ import annotations

from asyncio import CancelledError, _get_running_loop
from collections.abc import Coroutine
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS

from .base import Unpack
from .base.name_templates import warn_of_fields
from .base.names import SEMAPHORE, check_name, check_token, refuse_semaphore
from .base.steps import Steps, arun, refuse_event_loop, run, run_blocking
from .base.times import Seconds, seconds, ttl_seconds
from .conf import conf
from .engine.acquisition import Acquisition
from .engine.extension import detach, release_by_token, renew, start_listening, tell_fence
from .engine.held import caller, find, holds, twin
from .engine.lease import Lease
from .engine.with_block import Enterable
from .exceptions import LockError, LockNotOwned
from .fencing.claim import claim
from .inspection.info import LockInfo, LockStatus, inspect, read_status, resume, suspend
from .open_transactions import warn_of_release
from .options import DEFAULTS, LockOptions, check_timeout, read_options
from .store.calls import read_holder
from .store.lock_store import Partition
from .store.stores import get_partition


class Lock(Enterable):
    """A lock on ``name`` for all processes that share the Redis of a cache alias, strictly first come, first served.

    It belongs to the thread or task that acquires it, and an object speaks of its own acquisition there; one may be
    shared by many, each has its own.
    Every method that talks to Redis has a twin for coroutines (``aacquire`` ...); ``async with`` works like ``with``.

    ``name``
        What is locked, 1 to 512 bytes. Quote parts that come from users with :func:`lock_name`. It is no template: one
        that looks like it (``"order:{pk}"``) is a RuntimeWarning.
    ``ttl``
        Seconds (int, float, timedelta; at least 0.003) after which Redis frees the lock if nobody renews it; None: from
        the settings.
    ``blocking``, ``blocking_timeout``
        Whether to wait for a busy lock, and at most how many seconds: 0 tries once, None takes the setting
        (by default: wait without end).
    ``auto_renew``
        Renew in the background at a third of the TTL, while this object lives, and the thread or event loop that
        acquired the lock; None: from the settings. False: the lock ends after its TTL.
    ``max_hold``
        Seconds after which renewal stops, whatever happens: the lock ends at most a TTL later, or when the time is over
        that :meth:`extend` has asked for. None: from the settings.
    ``max_waiters``
        How many others may wait for the lock already; a newcomer that finds that many waiting is refused at once, in
        the same round trip. Dead waiters do not count. None: from the settings (by default any number).
    ``token``
        22 to 128 of ``A-Za-z0-9_-``. The token of an acquisition that was made elsewhere, to adopt or release it; see
        :meth:`detach`. Or one of a job's own: if its process dies, the same job, started again with the same token,
        adopts the lock at once and goes on with a higher ``fence``; if the lock is free, it acquires it anew.
    ``adopt``
        With a token from :meth:`detach`: only adopt that very acquisition, and never wait. Acquiring raises LockLost if
        it is gone, so that others may have held the lock since, and fails like that of a busy lock if it is still used
        where it was acquired.
    ``reentrant``
        A thread or task that holds the name may acquire it again, and so may children that were started meanwhile; the
        last release frees it.
    ``on_lost``
        Called once, from a background thread, with a :class:`LockLost` when the lock is lost while held. Its exceptions
        are logged. ``"cancel"``, for coroutines: the task that holds the lock is cancelled, and its ``async with``
        raises LockLost.
    ``using``
        Alias in ``CACHES``; None: from the settings.
    ``poll``
        True: ask Redis again and again, for servers behind proxies without pub/sub (nothing subscribes then, so a
        holder hears of its loss only at its next renewal). False: wait for a message. None: from the settings.
    ``backoff``, ``attempts``
        With ``poll=True``: an instance of one of the classes in :mod:`redis.backoff`, for the delays between tries
        (at most 15 s each; by default ``EqualJitterBackoff(cap=0.5, base=0.02)``), and the most tries. There is no
        delay after the last try, and none beyond ``blocking_timeout``.
    ``replicas``
        How many replicas of the Redis server must have acknowledged the grant before it counts; with fewer within half
        a second, acquiring raises LockUnavailable. A failover then loses a grant less often, not never. A contended
        acquisition takes one round trip more. Renewals and extensions count by the same rule: without so many replicas,
        the lock is lost when its lease ends. None: from the settings (by default 0).
    ``slow_wait``
        Seconds after which a waiter logs who holds the lock; False: never, for a standby that waits on purpose. None:
        from the settings (by default 10).
    ``fenced``
        Whether every transaction under the lock has to :meth:`claim` it, or on which aliases in ``DATABASES``; None:
        from the settings (FENCED). :func:`locked_atomic`, :func:`locked_view` and, inside a transaction, :func:`locked`
        claim by themselves; a lock that is released without a claim warns.
    ``fence_timeout``
        Seconds that a claim may wait for another transaction; None: from the settings (by default 10).
    ``note``
        A text for people, at most 1000 bytes, kept with the lock and with the place in the queue. ``info().note``, the
        command and the admin show it.
    ``purpose``
        A short text for people, shown after the owner: a path, a command.
    ``template``
        The name as it was written, such as ``"order:{pk}"``, for signals and logs, where metrics can be labelled with
        it. Decorators set it; without, it is the name.

    Guaranteed: no two acquisitions hold the lock at once, as long as Redis keeps the writes that it acknowledged, its
    clock does not jump, and no machine that uses locks is suspended; if that fails, ``fence`` still orders them. Nobody
    overtakes: waiters get the lock in the order in which their requests reached Redis.

    Not guaranteed: that your code stops when its lock is lost. Watch :attr:`lost`, or pass ``fence`` to whatever you
    write to. On a machine that was suspended, ``lost`` may stay False until the first renewal after it wakes, since the
    monotonic clock stands still while it sleeps.
    """

    __slots__ = ("__weakref__", "_acquisitions", "_latest", "_options", "_token", "name")

    def __init__(self, name: str, *, token: str | None = None, **options: Unpack[LockOptions]) -> None:
        self.name: str = check_name(name)
        if name.startswith(SEMAPHORE):
            refuse_semaphore(name)
        if "{" in name:
            warn_of_fields(name)
        self._options = read_options(options, "Lock()", beside=["token"]) if options else DEFAULTS
        self._token = None if token is None else check_token(token)
        self._acquisitions: list[Acquisition] = []  # of all threads and tasks
        self._latest: Lease | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy has acquired nothing."""
        reduced: Any = super().__reduce_ex__(protocol)
        function, arguments, (attributes, slots), *rest = reduced
        return function, arguments, (attributes, slots | self._of_copies()), *rest

    def _of_copies(self) -> dict[str, Any]:
        """What a copy has not, or has anew."""
        return {"_acquisitions": [], "_latest": None}

    @property
    def using(self) -> str | None:
        """The alias in ``CACHES`` that was given; None: from the settings."""
        return self._options.using

    # -- acquiring --------------------------------------------------------------------------------------------------

    def acquire(
        self,
        *,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
        token: str | None = None,
    ) -> bool:
        """Acquire the lock; return False when it could not be acquired in time.

        Arguments override those of the constructor; a ``blocking_timeout`` means to wait. A lock that somebody else
        holds never raises. Raises LockUnavailable when Redis cannot be reached, LockLost with ``adopt`` (see there),
        and LockError when this thread or task would wait without end for a lock that it holds itself.
        """
        if _get_running_loop() is not None:
            refuse_event_loop("Await aacquire() instead")
        acquisition = self._acquisition(token)
        del token  # error reports show local variables
        try:
            return acquisition.acquire(acquisition.terms.deadline(blocking, check_timeout(blocking_timeout))) is None
        except BaseException:
            acquisition.abandon()
            raise

    @twin
    def aacquire(
        self,
        *,
        blocking: bool | None = None,
        blocking_timeout: Seconds | None = None,
        token: str | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """See acquire(). Cancelled at any moment, it leaves neither a lock nor a place in the queue.

        The lock belongs to whoever *calls* this, whichever task awaits it (``wait_for``, ``gather``, ``create_task``).
        """
        acquisition = self._acquisition(token)
        return self._aobtain(acquisition, blocking, blocking_timeout)

    # -- releasing --------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Release the lock to the next waiter. With ``reentrant``, it takes as many calls as there were acquires.

        Raises LockNotOwned when this thread or task never held it, LockLost when it was lost meanwhile, and
        LockUnavailable when Redis cannot be reached: then it can be tried again; if not, the lease ends by itself after
        the seconds in the error's ``lease_left``.
        """
        if _get_running_loop() is not None:
            refuse_event_loop("Await arelease() instead")
        own = self._own()
        if own is None:
            run(self._release_by_token())
            return
        try:
            if own.release_at_once() or run(own.release()):
                warn_of_release(own.its_lease)
        except LockError:
            raise
        except BaseException:
            own.abandon()
            raise

    @twin
    def arelease(self) -> Coroutine[Any, Any, None]:
        """See release(). If cancelled, it completes in the background."""
        return self._arelease(self._own())

    async def _arelease(self, own: Acquisition | None) -> None:
        own = own or self._own()  # a framework may make the call in no task, and await it in the right one
        if own is None:
            await arun(self._release_by_token())
            return
        try:
            if await own.arelease_at_once() or await arun(own.release()):
                warn_of_release(own.its_lease)
        except (LockError, CancelledError):
            raise
        except BaseException:  # interrupted
            own.abandon()
            raise

    def detach(self, ttl: Seconds | None = None) -> str:
        """End renewal and ownership here without a release; return the token with which another process can go on.

        ``Lock(name, token=..., adopt=True)`` adopts it: its ``acquire()`` renews from then on, its ``release()`` frees
        the lock. Until then the lease runs, for ``ttl`` seconds (None: that of the lock): give as many as the other
        process may take to begin. Raises LockNotOwned, LockLost, LockUnavailable.
        """
        return run_blocking(self._detach(self._own(), ttl), "Await adetach() instead")

    @twin
    def adetach(self, ttl: Seconds | None = None) -> Coroutine[Any, Any, str]:
        """See detach()."""
        return arun(self._detach(self._own(), ttl))

    # -- while it is held -------------------------------------------------------------------------------------------

    def extend(self, additional: Seconds, *, replace_ttl: bool = False) -> bool:
        """Add ``additional`` seconds to the lease, or (``replace_ttl``) make it end that many seconds from now.

        The lease of a renewed lock is never made shorter than its TTL. To make a lock end at a given time, use
        ``auto_renew=False`` or :meth:`detach`. Always returns True.
        Raises LockNotOwned, LockLost, LockUnavailable.
        """
        return run_blocking(self._extend(self._own(), additional, replace_ttl), "Await aextend() instead")

    @twin
    def aextend(self, additional: Seconds, *, replace_ttl: bool = False) -> Coroutine[Any, Any, bool]:
        """See extend()."""
        return arun(self._extend(self._own(), additional, replace_ttl))

    def reacquire(self) -> bool:
        """Make the lease end a full TTL from now. Raises like :meth:`extend`."""
        return run_blocking(self._extend(self._own(), None, True), "Await areacquire() instead")

    @twin
    def areacquire(self) -> Coroutine[Any, Any, bool]:
        """See reacquire()."""
        return arun(self._extend(self._own(), None, True))

    def check(self) -> None:
        """Raise LockLost if the lock is lost, LockNotOwned if it is not held here. For long loops: no round trip."""
        lease = self._held("use").its_lease
        if lease.lost:
            raise lease.lost_error()
        lease.check_not_ending("use")

    def claim(self, using: str = DEFAULT_DB_ALIAS) -> None:
        """Write the lock's fence into the database ``using``, as the first statement of a transaction of your own.

        From then on until COMMIT, nobody else can claim the lock; afterwards, nobody with a lower fence. So a holder
        that has lost the lock without knowing (a pause, a failover, a flush) can write nothing over what its successor
        has written. Read nothing before: only what is read after the claim is sure to be up to date.

        Raises RuntimeError outside of a transaction; LockNotOwned; LockLost where a younger holder has claimed the
        lock, or it is known to be lost; LockUnavailable where another transaction that has claimed it is still open
        after ``fence_timeout`` seconds; ImproperlyConfigured where the database has no table for it (``migrate``), or
        is read-only. Let these errors roll your transaction back. Where the database asks to repeat a transaction
        (REPEATABLE READ and above), its error propagates: :func:`locked_atomic` repeats by itself.
        """
        claim(self._held("claim").its_lease, using)

    @twin
    def aclaim(self, using: str = DEFAULT_DB_ALIAS) -> Coroutine[Any, Any, None]:
        """See claim(). For a transaction in the thread of Django's async ORM (``sync_to_async``)."""
        return self._aclaim(self._own(), using)

    async def _aclaim(self, own: Acquisition | None, using: str) -> None:
        await sync_to_async(claim)(self._held("claim", own).its_lease, using)

    @property
    def lost(self) -> bool:
        """Whether the lock is known to be lost, or must be presumed lost by the local clock. No round trip.

        In a thread or task that has not acquired it (a helper of the holder), whether the latest acquisition through
        this object is lost. False where nothing was acquired, and after a release.
        """
        own = self._own()
        lease = self._latest if own is None else own.its_lease
        return lease is not None and lease.here and lease.lost

    def remaining(self) -> float:
        """Seconds of lease left by the local monotonic clock; 0.0 when lost or not held here."""
        own = self._own()
        return 0.0 if own is None else own.its_lease.remaining()

    @property
    def token(self) -> str | None:
        """The secret of the current acquisition: whoever has it can adopt or release the lock."""
        own = self._own()
        if own is None:
            return None if self._token is None else str(self._token)
        start_listening(own.its_lease)
        return str(own.its_lease.token)  # as plain text

    @property
    def fence(self) -> int:
        """The fence (fencing token) of the current acquisition. It grows from one to the next: see docs/fencing.rst.

        Raises LockNotOwned when this thread or task does not hold the lock: there is no number to write down then.
        """
        return self._held("read the fence of").its_lease.fence

    @property
    def ttl(self) -> float:
        """Seconds after which Redis frees the lock if nobody renews it."""
        own = self._own()
        if own is not None:
            return own.its_lease.ttl
        return conf().ttl_of(self.name) if self._options.ttl is None else self._options.ttl

    # -- asking Redis -----------------------------------------------------------------------------------------------

    def locked(self) -> bool:
        """Return whether anybody holds the lock, here or elsewhere, or it is suspended; asks Redis."""
        return run_blocking(self._locked(), "Await alocked() instead")

    async def alocked(self) -> bool:
        """See locked()."""
        return await arun(self._locked())

    def owned(self) -> bool:
        """Return whether this thread or task holds the lock through this object; asks Redis.

        One that has not acquired it asks for the token given to the constructor: whether any acquisition has that.
        """
        return run_blocking(self._owned(self._own()), "Await aowned() instead")

    @twin
    def aowned(self) -> Coroutine[Any, Any, bool]:
        """See owned()."""
        return arun(self._owned(self._own()))

    def status(self) -> LockStatus:
        """The :class:`LockStatus`. LOCKED means held *here*: through this object, or by the constructor's token."""
        return run_blocking(self._status(self._own()), "Await astatus() instead")

    @twin
    def astatus(self) -> Coroutine[Any, Any, LockStatus]:
        """See status()."""
        return arun(self._status(self._own()))

    def info(self) -> LockInfo | None:
        """Return what Redis says now: holder, since, lease, fence, waiters in order. None when it is free."""
        return run_blocking(inspect(self._partition(), self.name), "Await ainfo() instead")

    async def ainfo(self) -> LockInfo | None:
        """See info()."""
        return await arun(inspect(self._partition(), self.name))

    # -- out of use -------------------------------------------------------------------------------------------------

    def suspend(self, seconds: Seconds, note: str = "") -> None:
        """Take the lock out of use: nobody acquires it for so many seconds from now.

        Whoever holds it keeps it, renewed or handed over, until it is released, lost or ends; the suspension then lasts
        for what is left of it. Waiters keep their places, and the first of them gets the lock when it is over: soon
        after its end, at once after :meth:`resume`. Meanwhile ``status()`` is UNAVAILABLE, and lists show who has
        suspended the lock, and the ``note`` (at most 1000 bytes). Another ``suspend()`` replaces this one;
        :func:`force_release` ends it. Raises LockUnavailable.
        """
        run_blocking(suspend(self._partition(), self.name, seconds, note), "Await asuspend() instead")

    async def asuspend(self, seconds: Seconds, note: str = "") -> None:
        """See suspend()."""
        await arun(suspend(self._partition(), self.name, seconds, note))

    def resume(self) -> bool:
        """End a suspension; return whether there was one. Raises LockUnavailable."""
        return run_blocking(resume(self._partition(), self.name), "Await aresume() instead")

    async def aresume(self) -> bool:
        """See resume()."""
        return await arun(resume(self._partition(), self.name))

    # -- for sync and async alike -----------------------------------------------------------------------------------

    def _acquisition(self, token: str | None = None) -> Acquisition:
        given = self._token if token is None else check_token(token)
        return Acquisition(self.name, self._options, through=self, token=given)

    def entered(self, acquisition: Acquisition) -> None:
        for other in tuple(self._acquisitions):  # in place: others leave meanwhile
            # a lost one tells of its loss as long as anybody may ask
            if other.over or (other.its_lease.lost and (other.orphaned or find([other]) is other)):
                self.left(other)
        self._acquisitions.append(acquisition)
        self._latest = acquisition.lease

    def left(self, acquisition: Acquisition) -> None:
        try:
            self._acquisitions.remove(acquisition)
        except ValueError:
            pass  # it was never entered; or the watchdog has come here as well

    def _own(self) -> Acquisition | None:
        """The acquisition of which this object speaks here; see find()."""
        found: Acquisition | None = find(self._acquisitions)
        return found

    def _release_by_token(self) -> Steps[None]:
        if self._token is None or not (yield from release_by_token(self._partition(), self.name, self._token.__eq__)):
            raise self._not_owned("release")
        warn_of_release(self.name)

    def _end(self, acquisition: Acquisition | None, error: BaseException | None) -> Steps[None]:
        """The ``with`` block of an acquisition (None: there is none) has ended: with ``error``, or (None) normally."""
        lease = self._latest if acquisition is None else acquisition.lease
        if lease is not None and lease.closed:
            acquisition = self._own()  # released or handed over inside the block, and perhaps acquired again
        if acquisition is not None:
            if (yield from acquisition.exit(error)) and error is None:
                warn_of_release(acquisition.its_lease)
        elif error is None and (lease is None or not lease.detached):
            raise self._not_owned("release")

    def _detach(self, own: Acquisition | None, ttl: Seconds | None) -> Steps[str]:
        own = self._held("detach", own)
        left = own.its_lease.ttl if ttl is None else ttl_seconds(ttl, "ttl")
        return (yield from detach(own, left))

    def _extend(self, own: Acquisition | None, additional: Seconds | None, replaces: bool) -> Steps[bool]:
        lease = self._held("extend", own).its_lease
        check = ttl_seconds if replaces else seconds
        left = lease.ttl if additional is None else check(additional, "additional")
        yield from renew(lease, "set" if replaces else "add", left)
        return True

    def _locked(self) -> Steps[bool]:
        held, _ = yield from read_holder(self._partition(), self.name)
        return held

    def _owned(self, own: Acquisition | None) -> Steps[bool]:
        id, token = self._known(own)
        if id is None and token is None:
            return False
        _, holder = yield from read_holder(self._partition(own), self.name)
        return holder is not None and holder.is_of(id, token)

    def _status(self, own: Acquisition | None) -> Steps[LockStatus]:
        return (yield from read_status(self._partition(own), self.name, *self._known(own)))

    def _known(self, called: Acquisition | None) -> tuple[str | None, str | None]:
        """The id by which this object holds the lock here; else the constructor's token."""
        own = called or self._own()
        # another acquisition may have the same token
        return (None, self._token) if own is None else (own.its_lease.id, None)

    def _held(self, verb: str, called: Acquisition | None = None) -> Acquisition:
        own = called or self._own()
        if own is None:
            raise self._not_owned(verb)
        return own

    def _not_owned(self, verb: str) -> LockNotOwned:
        elsewhere = holds(self._partition(), self.name, caller()) is not None
        adoptable = self._token is not None and verb != "release"  # which needs no more than the token
        return LockNotOwned.to(verb, self.name, adoptable=adoptable, elsewhere=elsewhere)

    def _note_fence(self, fence: int) -> None:
        """Let Redis hear that a row has this one, so that the next holder's is higher."""
        run(tell_fence(self._held("use").its_lease, fence))

    def _partition(self, called: Acquisition | None = None) -> Partition:
        """Where this object holds the lock here, whatever the settings say by now; else where they say."""
        own = called or self._own()
        return get_partition(self._options.using, self.name) if own is None else own.its_lease.partition


FairLock = Lock
