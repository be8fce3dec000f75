"""``CacheLock``: our lock with redis-py's methods, arguments and errors, for code that was written for redis-py's."""

from __future__ import annotations

import secrets
import threading
from base64 import urlsafe_b64encode
from hashlib import sha256
from types import SimpleNamespace, TracebackType
from typing import Any, Literal, NamedTuple, TypeVar

import redis.exceptions

from . import blocks
from .conf import conf, seconds
from .exceptions import LockError, LockNotAcquired, LockNotOwned, LockUnavailable
from .lease import Lease
from .lock import Lock
from .owner import Bond
from .steps import Steps, run

T = TypeVar("T")

FOREVER = 10 * 365 * 86400.0  # seconds
DIGEST = 22  # characters, for 128 bits


class CacheLockUnavailable(LockUnavailable, redis.exceptions.ConnectionError):
    """LockUnavailable out of ``cache.lock()``: what redis-py raises there is a ConnectionError, so this is one too."""


class _Held(NamedTuple):
    """An acquisition."""

    lock: Lock  # through which it was made
    lease: Lease
    bond: Bond  # the lease is renewed as long as somebody keeps it


class _PerThread(threading.local):
    """What a thread knows of its acquisition."""

    token: bytes | None = None
    held: _Held | None = None


class CacheLock:
    """What ``cache.lock()`` answers. Meant to be used as redis-py's ``Lock`` is, by code that knows nothing of ours.

    ``timeout``
        Seconds (int or float) after which the lock ends, whatever its holder does, short of :meth:`extend` and
        :meth:`reacquire`. None (or 0): it stays until it is released; see below.
    ``sleep``
        Accepted, and without a meaning: who waits is woken.
    ``blocking``, ``blocking_timeout``
        Whether to wait for a busy lock, and at most how many seconds; None waits without end, whatever
        ``REDISLOCK["BLOCKING_TIMEOUT"]`` says, since code that was written for redis-py may not look at the answer.
    ``thread_local``
        True: an acquisition belongs to the thread that made it. False: to this object, and any thread that has the
        object may release or extend it.

    ``local.token`` is the token of the acquisition, in bytes. As with redis-py, another process that is told
    it, and sets it there, can release the lock and extend it.

    Errors are redis-py's: LockError for what is not locked here, its subclass LockNotOwnedError (ours: LockLost, or
    LockNotOwned) when the lock has expired or was taken away. When Redis cannot be reached, the error is a
    redis ConnectionError and our LockUnavailable, which is a LockError.

    What differs from redis-py, on purpose:

    * Without a ``timeout``, redis-py's lock stays for ever when its process dies. Ours has the TTL of the settings and
      is renewed while its thread lives (``thread_local=False``: while this object lives), at most for ``MAX_HOLD``.
    * Who has to wait is woken, and nobody is overtaken for longer than 100 ms; a ``blocking_timeout`` shorter than
      ``sleep`` is waited for.
    * A thread that holds the lock without a ``timeout`` and waits for it again without end gets a LockError, not a
      deadlock.
    * In a thread that has not acquired it, ``release()`` of a thread-local lock raises LockError; redis-py's own raises
      AttributeError there. A forked process holds nothing of its parent's.
    * A release that could not be sent to Redis may be tried again; redis-py has forgotten the token by then.
    * ``timeout`` and ``additional_time`` must be at least a millisecond: ValueError, where redis-py sends what Redis
      then refuses, or takes the lock away for.
    * A lock that outlives its ``timeout`` is logged and told as lost, and one that is released inside an open
      transaction warns, like every lock of ours.

    Like django-redis's, it blocks: in a coroutine, take ``async with Lock(...)``.
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
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.using = using
        self.local: Any = _PerThread() if thread_local else SimpleNamespace(token=None, held=None)
        self._new_lock()  # what is wrong is an error here, not at the first acquire

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Take the lock; False when it was not got in time. Arguments override those of the constructor.

        ``token`` may be any text or bytes. Whoever gives the same one is kept out all the same, as with redis-py; it
        only says who may release.
        """
        given = None if token is None else _encode(token)
        if blocking is None:
            blocking = self.blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        return self._acquire(
            bool(blocking), _patience(blocking_timeout), given, None if given is None else _make(given)
        )

    def release(self) -> None:
        """Give the lock to the next one. LockError: not locked here. LockNotOwnedError: it has expired."""
        token = self._token("release")
        held = self._held(token)
        self.local.token = self.local.held = None
        try:
            if held is not None:
                # as redis-py says it: whoever bears the token may release, whoever has extended the lock since
                _run(held.lock._release_lease(held.lease, own=False))
            else:
                _run(self._new_lock()._release_adopted(self._stored(token, "release")))
        except LockUnavailable:
            self.local.token, self.local.held = token, held  # so that it can be tried again
            raise
        blocks.complain_of_release(self.name)

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add ``additional_time`` seconds to the lease, or let it end in so many seconds from now (``replace_ttl``)."""
        ms = round(seconds(additional_time, "additional_time") * 1000)
        return self._renew("extend", "set" if replace_ttl else "add", ms)

    def reacquire(self) -> Literal[True]:
        """Let the lease end ``timeout`` seconds from now."""
        return self._renew("reacquire", "set", None)

    def locked(self) -> bool:
        """Whether anybody holds the lock."""
        return _run(self._new_lock()._locked())

    def owned(self) -> bool:
        """Whether it is held by this lock: by this thread, or with ``thread_local=False`` by this object."""
        try:
            self._stored(self._token("own"), "own")
        except LockUnavailable:
            raise
        except LockError:
            return False
        return True

    def __enter__(self) -> CacheLock:
        if not self.acquire():
            raise LockNotAcquired("Unable to acquire lock within the time specified", self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    # -- how it is done ---------------------------------------------------------------------------------------------

    def _new_lock(self) -> Lock:
        """One for each acquisition, as the attributes say now."""
        ttl = seconds(self.timeout, "timeout") if self.timeout else None
        return Lock(self.name, ttl=ttl, auto_renew=ttl is None, using=self.using)

    def _acquire(
        self, blocking: bool, patience: float | None, given: bytes | None, ours: str | None, *, fresh: bool = True
    ) -> bool:
        """``given``: the token as the caller knows it; ``ours``: as Redis does. ``fresh``: it was made for this."""
        lock = self._new_lock()
        if _run(lock._take(None, blocking=blocking, timeout=patience, token=ours, fresh=fresh)) is not None:
            return False
        lease = lock._lease()
        bond = lease.owner.bond()
        if not self.thread_local:
            lease.follow(self)
        if not self.thread_local or self.timeout:
            # it ends by itself, or in another thread: who waits for it in this one does not wait for ever
            lock._let_go(lease)
        self.local.token = lease.token.encode() if given is None else given
        self.local.held = _Held(lock, lease, bond)
        return True

    def _renew(self, verb: str, how: str, ms: int | None) -> Literal[True]:
        token = self._token(verb)
        if not self.timeout:
            raise LockError(f"Cannot {verb} a lock with no timeout", self.name)
        held = self._held(token)
        if held is None:  # acquired by another process, which told us the token
            stored = self._stored(token, verb)
            if not self._acquire(False, None, token, stored, fresh=False):
                raise self._not_owned(verb)
            held = self.local.held
        _run(held.lock._renew_lease(held.lease, how, ms))
        return True

    def _token(self, verb: str) -> bytes:
        """That of the acquisition here."""
        token, held = self.local.token, self.local.held
        if token is None or (held is not None and not held.lease.owner.here):
            raise LockError(f"Cannot {verb} an unlocked lock", self.name)
        return _encode(token)

    def _held(self, token: bytes) -> _Held | None:
        held: _Held | None = self.local.held
        return held if held is not None and _bears(token, held.lease.token) else None

    def _stored(self, token: bytes, verb: str) -> str:
        """The token that Redis knows, when it is the bearer's of ``token``."""
        value = _run(self._new_lock()._value())
        stored = "" if value is None else value.partition(b" ")[0].decode(errors="replace")
        if not _bears(token, stored):
            raise self._not_owned(verb)
        return stored

    def _not_owned(self, verb: str) -> LockNotOwned:
        return LockNotOwned(f"Cannot {verb} a lock that's no longer owned", self.name)


def _run(steps: Steps[T]) -> T:
    try:
        return run(steps)
    except LockUnavailable as error:
        raise CacheLockUnavailable(str(error), error.name, stands_for=error.stands_for) from error


def _encode(token: object) -> bytes:
    if isinstance(token, str):
        return token.encode()
    if isinstance(token, bytes):
        return token
    raise TypeError(f"A token must be a str or bytes, not {type(token).__name__}.")  # it is a secret


def _make(given: bytes) -> str:
    """A token of ours for one that was chosen outside: it says whose it is, and is another one each time.

    For ours make whoever has the token the holder, while redis-py's say only who may release.
    """
    return _digest(given) + secrets.token_urlsafe(16)


def _bears(token: bytes, stored: str) -> bool:
    """Whether ``stored``, of ours, is ``token`` itself or was made for it."""
    return token == stored.encode() or (len(stored) == 2 * DIGEST and stored.startswith(_digest(token)))


def _digest(given: bytes) -> str:
    return urlsafe_b64encode(sha256(given).digest()).decode()[:DIGEST]


def _patience(blocking_timeout: float | None) -> float | None:
    if blocking_timeout is None:
        return None if conf().BLOCKING_TIMEOUT is None else FOREVER
    return min(max(0.0, blocking_timeout), FOREVER)
