"""``Counter``: an integer that all processes share."""

from __future__ import annotations

import re

from .base.display import shown
from .base.steps import Steps, arun, run_blocking
from .base.times import Seconds
from .store.scripts import Script
from .stored import Stored, milliseconds_of

LARGEST = 2**63 - 1  # that a counter of Redis can hold

# as Redis reads it; int() would take more
_COUNT = re.compile(rb"0|-?[1-9]\d{0,18}")
_COUNTER = Script("counter")


class Counter(Stored):
    """A 64-bit integer that all processes share. Each call is one atomic step and one round trip.

    ``name``, ``using``
        As of a :class:`ConditionalValue`; so are the errors.

    A call that has to be sent again, because its reply was lost, counts once and returns what the first run did. After
    LockUnavailable it may have counted or not.
    """

    __slots__ = ()

    _kind = "counter"

    def incr(self, by: int = 1, ttl: Seconds | None = None) -> int:
        """Add ``by`` and return the new count. A new counter starts from 0.

        ``ttl``: seconds after which a counter that this call *creates* expires. An existing one keeps its expiry, or
        has none, so that it counts per fixed window of time: give every call the same TTL. Raises OverflowError,
        and changes nothing, if the count would exceed 64 bits.
        """
        return run_blocking(self._add(by, 1, ttl), "Await aincr() instead")

    async def aincr(self, by: int = 1, ttl: Seconds | None = None) -> int:
        """See incr()."""
        return await arun(self._add(by, 1, ttl))

    def decr(self, by: int = 1, ttl: Seconds | None = None) -> int:
        """Subtract ``by``; see incr(). The count may fall below 0."""
        return run_blocking(self._add(by, -1, ttl), "Await adecr() instead")

    async def adecr(self, by: int = 1, ttl: Seconds | None = None) -> int:
        """See decr()."""
        return await arun(self._add(by, -1, ttl))

    def get(self) -> int:
        """The count; 0 when nothing is stored."""
        return run_blocking(self._get(), "Await aget() instead")

    async def aget(self) -> int:
        """See get()."""
        return await arun(self._get())

    def reset(self) -> int:
        """Start again from 0, without a TTL; return the last count. Each increment counts in one of the two."""
        return run_blocking(self._reset(), "Await areset() instead")

    async def areset(self) -> int:
        """See reset()."""
        return await arun(self._reset())

    def _add(self, by: int, sign: int, ttl: Seconds | None) -> Steps[int]:
        if isinstance(by, bool) or not isinstance(by, int):
            raise TypeError(f"by must be an int, not {shown(by)}.")
        if abs(by) > LARGEST:
            raise ValueError(f"by must be between -2**63 + 1 and 2**63 - 1, not {shown(by)}.")
        return int((yield from self._once(_COUNTER, str(int(by) * sign), milliseconds_of(ttl))))

    def _reset(self) -> Steps[int]:
        return int((yield from self._once(_COUNTER, "", "")))

    def _get(self) -> Steps[int]:
        raw = yield from self._get_raw()
        if raw is None:
            return 0
        if _COUNT.fullmatch(raw) and -LARGEST - 1 <= (count := int(raw)) <= LARGEST:
            return count
        raise self._foreign(shown(raw))
