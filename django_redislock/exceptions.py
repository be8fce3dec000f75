"""What can go wrong with a lock. Every error carries the lock's ``.name``."""

from __future__ import annotations

from typing import Any

import redis.exceptions

# "float | Any": it is None where unknown, but those who catch an error that was raised here need not ask


class LockError(redis.exceptions.LockError):
    """Base of all errors of this package; also a :class:`redis.exceptions.LockError`.

    ``args`` is all that an error knows: of what Celery sends as JSON, nothing else arrives. What is unknown is None.
    """

    def __init__(self, message: str, name: str | None = None, *facts: object) -> None:
        super().__init__(message, name)
        self.args: tuple[object, ...] = (message, name, *facts)
        self.name = name
        self.lock_name = name  # as newer redis-py does; 5.0.1 has no such attribute

    def __str__(self) -> str:
        return str(self.args[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class LockNotAcquired(LockError):
    """A ``with`` block or a decorated function did not acquire its lock in time.

    ``outcome``: ``"busy"`` (asked once), ``"timeout"`` (waited in vain), ``"full"`` (``max_waiters`` waited already);
    or, whatever it asked for, ``"own"`` (this thread or task itself holds the lock, which was not to be ``reentrant``)
    or ``"suspended"``. ``attempts``: how often Redis was asked; ``waited``: for how many seconds; ``busy_for``: the
    seconds of lease that the holder had left at the end; ``holder``: its owner. Each is None where it is unknown.
    """

    def __init__(
        self,
        message: str,
        name: str | None = None,
        outcome: str | None = None,
        attempts: int | None = None,
        waited: float | None = None,
        busy_for: float | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(message, name, outcome, attempts, waited, busy_for, holder)
        self.outcome: str | Any = outcome
        self.attempts: int | Any = attempts
        self.waited: float | Any = waited
        self.busy_for: float | Any = busy_for
        self.holder: str | Any = holder

    def in_words(self, message: str, waited: float | None = None) -> LockNotAcquired:
        """The same facts with another message; ``waited``: seconds, where the wait began before this attempt."""
        waited = self.waited if waited is None else waited
        return LockNotAcquired(message, self.name, self.outcome, self.attempts, waited, self.busy_for, self.holder)


class LockNotOwned(LockError, redis.exceptions.LockNotOwnedError):
    """This thread or task does not hold the lock that it tried to use: it never acquired it, or has released it."""

    @classmethod
    def to(cls, verb: str, name: str, *, adoptable: bool = False, elsewhere: bool = False) -> LockNotOwned:
        """The error of somebody who tries ``verb`` on a lock that somebody else holds, or nobody.

        ``elsewhere``: the same thread or task holds it through another object.
        """
        why = "this thread or task does not hold it."
        if elsewhere:
            why = "this thread or task holds it through another object: use that one."
        elif adoptable:
            why += " Acquire it first: with its token, that adopts it."
        return cls(f"Cannot {verb} the lock {name!r}: {why}", name)


class LockLost(LockNotOwned):
    """The lock was held here, but expired, was evicted, flushed, force-released or adopted meanwhile.

    ``reason`` says which; ``fence`` is the fencing token of the acquisition that was lost. Each is None where it is
    unknown.
    """

    def __init__(
        self, message: str, name: str | None = None, reason: str | None = None, fence: int | None = None
    ) -> None:
        super().__init__(message, name, reason, fence)
        self.reason: str | Any = reason
        self.fence = fence


class LockUnavailable(LockError):
    """Redis cannot be reached or cannot serve the lock now. Whether the lock is held is unknown.

    ``lease_left``: after a failed release, the seconds for which the lock stays locked, by the local clock, unless the
    release is tried again. Else None.
    """

    def __init__(self, message: str, name: str | None = None, lease_left: float | None = None) -> None:
        super().__init__(message, name, lease_left)
        self.lease_left: float | Any = lease_left
