"""What can go wrong with a lock. Every error carries the lock's ``.name``."""

from __future__ import annotations

import redis.exceptions


class LockError(redis.exceptions.LockError):
    """Base of all errors of this package; also a :class:`redis.exceptions.LockError`."""

    def __init__(self, message: str, name: str | None = None) -> None:
        super().__init__(message, name)
        self.args: tuple[str, ...] = (message,)
        self.name = name
        self.lock_name = name  # as newer redis-py does; 5.0.1 has no such attribute

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class LockNotAcquired(LockError):
    """A ``with`` block or a decorated function did not acquire its lock in time.

    ``outcome``: ``"busy"`` (asked once), ``"timeout"`` (waited in vain), ``"full"`` (``max_waiters`` waited already);
    or, whatever it asked for, ``"own"`` (this thread or task itself holds the lock, which was not to be ``reentrant``)
    or ``"suspended"``. ``attempts``: how often Redis was asked; ``waited``: for how many seconds; ``busy_for``: the
    seconds of lease that the holder had left at the end; ``holder``: its owner, as far as Redis has said (else empty).
    """

    def __init__(
        self,
        message: str,
        name: str | None = None,
        *,
        outcome: str = "busy",
        attempts: int = 0,
        waited: float = 0.0,
        busy_for: float = 0.0,
        holder: str = "",
    ) -> None:
        super().__init__(message, name)
        self.outcome = outcome
        self.holder = holder
        self.attempts = attempts
        self.waited = waited
        self.busy_for = busy_for

    def in_words(self, message: str, waited: float | None = None) -> LockNotAcquired:
        """The same facts with another message; ``waited``: seconds, where the wait began before this attempt."""
        return LockNotAcquired(
            message,
            self.name,
            outcome=self.outcome,
            attempts=self.attempts,
            waited=self.waited if waited is None else waited,
            busy_for=self.busy_for,
            holder=self.holder,
        )


class LockNotOwned(LockError, redis.exceptions.LockNotOwnedError):
    """This thread or task does not hold the lock that it tried to use: it never acquired it, or has released it."""

    @classmethod
    def to(cls, verb: str, name: str) -> LockNotOwned:
        """The error of somebody who tries ``verb`` on a lock that somebody else holds, or nobody."""
        return cls(f"Cannot {verb} the lock {name!r}: this thread or task does not hold it.", name)


class LockLost(LockNotOwned):
    """The lock was held here, but expired, was evicted, flushed, force-released or adopted meanwhile.

    ``reason`` says which, as far as is known; ``fence`` is the fencing token of the acquisition that was lost.
    """

    def __init__(self, message: str, name: str | None = None, *, reason: str = "", fence: int | None = None) -> None:
        super().__init__(message, name)
        self.reason = reason
        self.fence = fence


class LockUnavailable(LockError):
    """Redis cannot be reached or cannot serve the lock now. Whether the lock is held is unknown.

    ``lease_left``: after a failed release, the seconds for which the lock stays locked, by the local clock, unless the
    release is tried again; 0.0 if unknown.
    """

    def __init__(self, message: str, name: str | None = None, *, lease_left: float = 0.0) -> None:
        super().__init__(message, name)
        self.lease_left = lease_left
