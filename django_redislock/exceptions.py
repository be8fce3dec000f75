"""What can go wrong with a lock. Every error carries the lock's ``.name``."""

from __future__ import annotations

import redis.exceptions


class LockError(redis.exceptions.LockError):
    """Base of all errors of this package; also a :class:`redis.exceptions.LockError`."""

    def __init__(self, message: str, name: str | None = None) -> None:
        super().__init__(message, name)
        self.args = (message,)
        self.name = name
        self.lock_name = name  # as newer redis-py does; 5.0.1 has no such attribute

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class LockNotAcquired(LockError):
    """A ``with`` block or a decorated function did not get its lock in time."""


class LockNotOwned(LockError, redis.exceptions.LockNotOwnedError):
    """This thread or task never held the lock that it wants to release, extend or detach."""


class LockLost(LockNotOwned):
    """The lock was held here, but expired, was evicted, flushed or set free by force meanwhile.

    ``reason`` says which, as far as is known; ``fence`` is the fencing token of the acquisition that was lost.
    """

    def __init__(self, message: str, name: str | None = None, *, reason: str = "", fence: int | None = None) -> None:
        super().__init__(message, name)
        self.reason = reason
        self.fence = fence


class LockUnavailable(LockError):
    """Redis cannot be reached or cannot serve the lock now. Nothing is known to be held."""
