"""``CacheLock``: our lock with redis-py's methods, arguments, errors and tokens, for code that was written for
redis-py's.

Tokens as redis-py has them are chosen by the caller; ours are made for one acquisition each.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import redis.exceptions

from .base.display import Secret, SecretBytes, shown
from .base.names import TOKEN_DIGEST, check_name, token_digest
from .base.steps import run
from .base.times import LONGEST, NEVER, seconds, ttl_seconds
from .engine.acquisition import Acquisition
from .engine.extension import release_by_token, renew, renew_by_token
from .engine.with_block import ExitMethod, WithBlock, block_of
from .exceptions import LockError, LockNotAcquired, LockNotOwned, LockUnavailable
from .open_transactions import warn_of_release
from .options import ANY_NUMBER, Options, terms_of
from .store.calls import BEARER, find_held, read_holder
from .store.lock_store import Partition
from .store.stores import get_partition

P = ParamSpec("P")
R = TypeVar("R")


def encode_token(token: object) -> SecretBytes:
    if isinstance(token, str):
        return SecretBytes(token.encode())
    if isinstance(token, bytes):
        return SecretBytes(token)
    raise TypeError(f"A token must be a str or bytes, not {type(token).__name__}.")  # it is a secret


def make_token(given: bytes) -> Secret:
    """A token of ours for one that the caller chose: it shows whose it is, and differs each time.

    Ours identifies the holder; redis-py's only permits a release, and several acquisitions may share it.
    """
    return Secret(token_digest(given) + secrets.token_urlsafe(16))


def bears(token: bytes, stored: str) -> bool:
    """Return whether ``stored``, a token of ours, is ``token`` itself or was made for it."""
    return token == stored.encode() or (len(stored) == 2 * TOKEN_DIGEST and stored.startswith(token_digest(token)))


class CacheLockUnavailable(LockUnavailable, redis.exceptions.ConnectionError):
    """LockUnavailable from ``cache.lock()``: redis-py raises a ConnectionError there, so this is one too."""


def _as_redis_has_it(method: Callable[P, R]) -> Callable[P, R]:
    @wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except LockUnavailable as error:
            raise CacheLockUnavailable(str(error), error.name, lease_left=error.lease_left) from error

    return wrapper


class _PerThread(threading.local):
    """What a thread knows of its acquisition."""

    token: bytes | None = None
    held: Acquisition | None = None


@lru_cache(maxsize=128, typed=True)  # code makes a new lock each time, with the same arguments
def _options_of(timeout: float | None, using: str | None) -> Options:
    ttl = _lease(timeout, "timeout") if timeout else None
    return Options(ttl=ttl, auto_renew=ttl is None, max_waiters=ANY_NUMBER, using=using)


class CacheLock:
    """What ``cache.lock()`` returns. Meant to be used as redis-py's ``Lock`` is, by code that knows nothing of ours.

    ``timeout``
        Seconds (int or float, at least 0.003) after which the lock ends, whatever its holder does, short of
        :meth:`extend` and :meth:`reacquire`. None (or 0): it has the TTL of the settings and is renewed until it is
        released, while its thread lives (``thread_local=False``: while this object lives), at most for ``MAX_HOLD``.
    ``sleep``
        Ignored; kept for compatibility. Waiters are woken.
    ``blocking``, ``blocking_timeout``
        Whether to wait for a busy lock, and at most how many seconds; None waits without end, whatever
        ``REDISLOCK["BLOCKING_TIMEOUT"]`` and ``MAX_WAITERS`` say, since code written for redis-py may not look at what
        is returned.
    ``thread_local``
        True: an acquisition belongs to the thread that made it. False: to this object, and any thread that has the
        object may release or extend it.

    ``local.token`` is the token of the acquisition, in bytes. As with redis-py, another process that is given it, and
    sets it there, can release and extend the lock.

    Errors are redis-py's: LockError for what is not locked here, its subclass LockNotOwnedError (ours: LockLost, or
    LockNotOwned) when the lock has expired or was taken away. When Redis cannot be reached, the error is both a
    redis-py ConnectionError and our LockUnavailable, which is a LockError.

    A wrong argument is a TypeError or ValueError at once. What differs from redis-py, on purpose, is listed on the page
    "cache.lock(), unchanged" of the documentation. Like django-redis's, this lock blocks: in a coroutine, use
    ``async with Lock(...)``.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        using: str | None = None,
    ) -> None:
        self.name: str = check_name(name)
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local: bool = bool(thread_local)
        self.using = using
        self.local: Any = _PerThread() if thread_local else SimpleNamespace(token=None, held=None)
        # wrong arguments are an error here, not at the first acquire; an alias that locks cannot use is one there
        self._options()
        _patience(blocking_timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock; return False if that failed in time. Arguments override those of the constructor.

        ``token`` may be any text or bytes. As with redis-py, it only says who may release: another acquire with the
        same one is kept out too.
        """
        given = None if token is None else encode_token(token)
        del token  # error reports show local variables
        blocking = self.blocking if blocking is None else blocking
        blocking_timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        return self._acquire(blocking, blocking_timeout, given) is None

    @_as_redis_has_it
    def release(self) -> None:
        """Release the lock to the next waiter. LockError: not locked here. LockNotOwnedError: it has expired."""
        token, held = self._current("release")
        self.local.token = self.local.held = None
        try:
            if held is None:
                if not run(release_by_token(self._partition(), self.name, partial(bears, token))):
                    raise self._not_owned("release")
            # as with redis-py: whoever bears the token may release, whoever has extended the lock since
            elif (lease := held.its_lease).lost or not held.release_at_once(BEARER):
                if not lease.lost:
                    run(held.release_lease(bearer=True))
                elif not run(release_by_token(lease.partition, lease.name, lease.token.__eq__)):
                    raise lease.lost_error()  # unless another bearer has extended it in time
        except LockUnavailable:
            self.local.token, self.local.held = bytes(token), held  # so that it can be tried again
            raise
        except LockError:
            raise
        except BaseException:  # interrupted: it has to end all the same
            if held is not None:
                held.abandon()
            raise
        warn_of_release(self.name)

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add ``additional_time`` seconds to the lease, or make it end that many seconds from now (``replace_ttl``)."""
        how, check = ("set", ttl_seconds) if replace_ttl else ("add", seconds)
        return self._renew("extend", how, _lease(additional_time, "additional_time", check))

    def reacquire(self) -> Literal[True]:
        """Make the lease end ``timeout`` seconds from now."""
        return self._renew("reacquire", "set", None)

    @_as_redis_has_it
    def locked(self) -> bool:
        """Return whether anybody holds the lock."""
        return run(read_holder(self._partition(), self.name))[0]

    @_as_redis_has_it
    def owned(self) -> bool:
        """Return whether it is held by this lock: by this thread, or with ``thread_local=False`` by this object."""
        try:
            token, _ = self._current("own")
        except LockError:
            return False
        return run(find_held(self._partition(), self.name, partial(bears, token))) is not None

    def __enter__(self) -> CacheLock:
        refusal = self._acquire(self.blocking, self.blocking_timeout, None, block_of(self))
        if refusal is not None:
            own = ": this thread or task holds it already." if refusal.outcome == "own" else ""
            raise refusal.in_words(f"Unable to acquire lock within the time specified{own}")
        return self

    if TYPE_CHECKING:  # as contextlib declares it

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = ExitMethod(lambda block, kind, error, traceback: block.lock.release())

    # -- how it is done ---------------------------------------------------------------------------------------------

    def _partition(self) -> Partition:
        held: Acquisition | None = self.local.held
        # where it is held, whatever the settings say by now
        return get_partition(self.using, self.name) if held is None or not held.here else held.its_lease.partition

    def _options(self) -> Options:
        """Those of the next acquisition, as the attributes say now."""
        plain = self.timeout is None or type(self.timeout) in (int, float)
        make = _options_of if plain else _options_of.__wrapped__  # what cannot be hashed is refused by the latter
        return make(self.timeout, self.using)

    @_as_redis_has_it
    def _acquire(
        self, blocking: bool, timeout: float | None, given: SecretBytes | None, block: WithBlock | None = None
    ) -> LockNotAcquired | None:
        """Why it failed, if it did. ``given``: the token as the caller knows it."""
        ours = None if given is None else make_token(given)
        # one that ends by itself or in another thread is not shown, so whoever waits for it in this one may wait
        shown = self.thread_local and not self.timeout
        acquisition = Acquisition(self.name, self._options(), token=ours, shown=shown)
        try:
            endless = blocking is True and timeout is None
            refusal = acquisition.acquire(
                NEVER if endless else acquisition.terms.deadline(bool(blocking), _patience(timeout))
            )
            if refusal is not None:
                return refusal
            if not self.thread_local:
                acquisition.tie_to(self)
            if block is not None:
                block.enter(acquisition)  # last: tie_to() forgets the block whose end would release it
            self.local.held = acquisition
            self.local.token = acquisition.its_lease.token.encode() if given is None else bytes(given)
            return None
        except BaseException:
            acquisition.abandon()
            raise

    @_as_redis_has_it
    def _renew(self, verb: str, how: str, left: float | None) -> Literal[True]:
        token, held = self._current(verb)
        if not self.timeout:
            raise LockError(f"Cannot {verb} a lock with no timeout", self.name)
        left = _lease(self.timeout, "timeout") if left is None else left
        replicas = terms_of(self._options(), self.name).replicas
        if held is not None and not held.its_lease.lost:
            run(renew(held.its_lease, how, left))
        elif not run(renew_by_token(self._partition(), self.name, partial(bears, token), how, left, replicas)):
            # None: another process has acquired it, and gave us the token
            raise self._not_owned(verb) if held is None else held.its_lease.lost_error()
        return True

    def _current(self, verb: str) -> tuple[SecretBytes, Acquisition | None]:
        """The token here, and the acquisition that it is of; None for that of another process, which was set here."""
        token, held = self.local.token, self.local.held
        lease = None if held is None else held.lease
        if token is None or (lease is not None and not lease.here):
            raise LockError(f"Cannot {verb} an unlocked lock", self.name)
        token = encode_token(token)
        return token, held if lease is not None and bears(token, lease.token) else None

    def _not_owned(self, verb: str) -> LockNotOwned:
        return LockNotOwned(f"Cannot {verb} a lock that's no longer owned", self.name)


def _lease(value: float, what: str, check: Callable[[object, str], float] = ttl_seconds) -> float:
    """So many seconds, or the most that there are."""
    return check(LONGEST if isinstance(value, (int, float)) and LONGEST < value < math.inf else value, what)


def _patience(blocking_timeout: float | None) -> float:
    """Not None, which would stand for the setting."""
    if blocking_timeout is None:
        return math.inf
    if not isinstance(blocking_timeout, (int, float)):
        raise TypeError(f"blocking_timeout must be seconds (int or float), not {shown(blocking_timeout)}.")
    return math.inf if blocking_timeout == math.inf else min(max(0.0, blocking_timeout), LONGEST)
