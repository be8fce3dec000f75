"""``ConditionalValue``: a value that all processes share, compared and changed in one atomic step; and ``Counter``.

Each is a key of its own, and its calls run once.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Coroutine
from functools import partialmethod
from typing import Any, TypeVar

from .base.display import shown
from .base.names import check_name
from .base.steps import Steps, arun, run_blocking
from .base.times import Seconds, seconds
from .conf import conf
from .exceptions import LockError, LockUnavailable
from .store.calls_once import call_once
from .store.lock_store import Partition
from .store.retry import call
from .store.scripts import Script
from .store.stores import get_partition

T = TypeVar("T")

# what Redis says of a key that holds something else, and what we say
_FOREIGN = {"WRONGTYPE": "another Redis type", "not an integer": "not a whole number"}


class Stored:
    """Something under a name of its own."""

    __slots__ = ("name", "using")

    _kind: str

    def __init__(self, name: str, *, using: str | None = None) -> None:
        self.name: str = check_name(name, self._kind)
        self.using: str | None = using

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _key(self, partition: Partition) -> str:
        return f"{partition.prefix}{self._kind}:{self.name}"

    def _get_raw(self) -> Steps[bytes | None]:
        partition = get_partition(self.using, self.name)
        asking = call(partition, ("GET", self._key(partition)), self.name, noun=self._kind)
        reply = yield from self._explain(asking)
        return reply.answer  # type: ignore[no-any-return]

    def _once(self, script: Script, *args: str) -> Steps[str]:
        partition = get_partition(self.using, self.name)
        calling = call_once(partition, script, [self._key(partition)], args, name=self.name, noun=self._kind)
        answer = yield from self._explain(calling)
        return answer.decode(errors="replace")

    def _explain(self, steps: Steps[T]) -> Steps[T]:
        """Run ``steps``; where somebody else wrote the key, say so."""
        try:
            return (yield from steps)
        except LockUnavailable as error:
            cause = str(error.__cause__)
            for words, found in _FOREIGN.items():
                if words in cause and f"{get_partition(self.using, self.name).prefix}sequence:" not in str(error):
                    raise self._foreign(found) from None
            if "would overflow" in cause:
                raise OverflowError(f"Cannot change the counter {self.name!r}: it would exceed 64 bits.") from None
            raise

    def _foreign(self, found: str) -> LockError:
        key = self._key(get_partition(self.using, self.name))
        return LockError(
            f"Cannot use the {self._kind} {self.name!r}: somebody else has written its key {key!r}, which holds "
            f"{found}. Nothing was changed. Delete the key or choose another name.",
            self.name,
        )


def milliseconds_of(ttl: Seconds | None) -> str:
    """As the scripts take it."""
    return "" if ttl is None else str(round(seconds(ttl, "ttl") * 1000))


Value = int | float | str

_Verb = partialmethod[bool]
_AVerb = partialmethod[Coroutine[Any, Any, bool]]

EXACT = 2**53  # the largest integer up to which a double, in which Redis compares, misses none
EPS = 1e-9

# which of < = > may hold between the value given and the one stored
OPERATORS = {">": ">", "<": "<", ">=": ">=", "<=": "<=", "==": "=", "!=": "<>"}
UNORDERED = ("==", "!=")

_COMPARE = Script("compare")


class ConditionalValue(Stored):
    """A value that is replaced or deleted only if a comparison with it holds, in one atomic step.

    ``name``
        1 to 512 bytes, as of a lock; a lock, a value and a counter of the same name have nothing to do with each other.
    ``using``
        Alias in ``CACHES``; None: from the settings.
    ``eps``
        Numbers that differ by no more than this are equal; 0 compares exactly. ``>`` means "by more than ``eps``",
        ``>=`` "or equal": exactly one of ``>``, ``==`` and ``<`` holds. Below 1, integers compare exactly. The
        difference is one of doubles: 1.1 is above 1.0 by a little more than 0.1.

    Values are int (from -2**53 to 2**53: beyond, doubles miss some), finite floats, and str. An int and a float compare
    as numbers. Text has no order here: ``==`` and ``!=`` compare it whole, and text never equals a number; the other
    four raise TypeError where either side is text. A text takes at most MAX_VALUE_BYTES (setting) as JSON in ASCII.

    Every operator has a short name with its twin for coroutines: ``setgt(value, new=None, ttl=None)`` is
    ``set_if(">", value, new, ttl)``, ``delgt(value)`` is ``delete_if(">", value)``, and so on for ``lt ge le eq ne``.

    Each method is one round trip and survives lost connections: a call that has to be sent again runs once, and returns
    what the first run did. Raises LockUnavailable when Redis cannot be reached (the call may have been carried out all
    the same, or still be); LockError when somebody else wrote something else under this key; TypeError and ValueError
    for bad values. These three change nothing.
    """

    __slots__ = ("eps",)

    _kind = "value"

    def __init__(self, name: str, *, using: str | None = None, eps: float = EPS) -> None:
        super().__init__(name, using=using)
        if isinstance(eps, bool) or not isinstance(eps, (int, float)):
            raise TypeError(f"eps must be an int or a float, not {shown(eps)}.")
        if not 0 <= eps <= sys.float_info.max:
            raise ValueError(f"eps must be 0 or more and finite, not {shown(eps)}.")
        self.eps: float = float(eps)

    def get(self) -> Value | None:
        """Return what is stored; None when nothing is."""
        return run_blocking(self._get(), "Await aget() instead")

    async def aget(self) -> Value | None:
        """See get()."""
        return await arun(self._get())

    def set_if(self, op: str, value: Value, new: Value | None = None, ttl: Seconds | None = None) -> bool:
        """Store ``new`` (None: ``value`` itself) if ``value op stored``, or if nothing is. Return whether it was.

        ``op`` is one of ``> < >= <= == !=``. ``ttl``: seconds after which the value is gone; None: never, even where
        the value that is replaced had a TTL. A value that is not replaced keeps its TTL.
        """
        return run_blocking(self._set_if(op, value, new, ttl), "Await aset_if() instead")

    async def aset_if(self, op: str, value: Value, new: Value | None = None, ttl: Seconds | None = None) -> bool:
        """See set_if()."""
        return await arun(self._set_if(op, value, new, ttl))

    def delete_if(self, op: str, value: Value) -> bool:
        """Delete what is stored if ``value op stored``. Returns whether it was deleted.

        So False when nothing is stored: of many who try to delete the same value, one gets True.
        """
        return run_blocking(self._delete_if(op, value), "Await adelete_if() instead")

    async def adelete_if(self, op: str, value: Value) -> bool:
        """See delete_if()."""
        return await arun(self._delete_if(op, value))

    setgt: _Verb = partialmethod(set_if, ">")
    asetgt: _AVerb = partialmethod(aset_if, ">")
    setlt: _Verb = partialmethod(set_if, "<")
    asetlt: _AVerb = partialmethod(aset_if, "<")
    setge: _Verb = partialmethod(set_if, ">=")
    asetge: _AVerb = partialmethod(aset_if, ">=")
    setle: _Verb = partialmethod(set_if, "<=")
    asetle: _AVerb = partialmethod(aset_if, "<=")
    seteq: _Verb = partialmethod(set_if, "==")
    aseteq: _AVerb = partialmethod(aset_if, "==")
    setne: _Verb = partialmethod(set_if, "!=")
    asetne: _AVerb = partialmethod(aset_if, "!=")
    delgt: _Verb = partialmethod(delete_if, ">")
    adelgt: _AVerb = partialmethod(adelete_if, ">")
    dellt: _Verb = partialmethod(delete_if, "<")
    adellt: _AVerb = partialmethod(adelete_if, "<")
    delge: _Verb = partialmethod(delete_if, ">=")
    adelge: _AVerb = partialmethod(adelete_if, ">=")
    delle: _Verb = partialmethod(delete_if, "<=")
    adelle: _AVerb = partialmethod(adelete_if, "<=")
    deleq: _Verb = partialmethod(delete_if, "==")
    adeleq: _AVerb = partialmethod(adelete_if, "==")
    delne: _Verb = partialmethod(delete_if, "!=")
    adelne: _AVerb = partialmethod(adelete_if, "!=")

    def _get(self) -> Steps[Value | None]:
        raw = yield from self._get_raw()
        return None if raw is None else self._read(raw.decode(errors="replace"))

    def _set_if(self, op: str, value: Value, new: Value | None, ttl: Seconds | None) -> Steps[bool]:
        text = _dumped(value, "value")
        stored = text if new is None else _dumped(new, "new")
        return (yield from self._compare(op, value, text, stored, milliseconds_of(ttl)))

    def _delete_if(self, op: str, value: Value) -> Steps[bool]:
        return (yield from self._compare(op, value, _dumped(value, "value"), "", ""))

    def _compare(self, op: str, value: Value, text: str, new: str, ttl: str) -> Steps[bool]:
        if not isinstance(op, str) or op not in OPERATORS:
            raise ValueError(f"op must be one of {', '.join(map(repr, OPERATORS))}, not {shown(op)}.")
        if isinstance(value, str) and op not in UNORDERED:
            raise TypeError(f"Cannot compare {shown(value)} by {op!r}: text has no order here, only '==' and '!='.")
        most = str(conf().MAX_VALUE_BYTES)
        answer = yield from self._once(_COMPARE, OPERATORS[op], text, repr(self.eps), new, ttl, most)
        if answer[0] == "!":
            raise self._foreign(f"{int(answer[1:]):,} bytes, more than REDISLOCK['MAX_VALUE_BYTES'] allows")
        if answer[0] == "?":
            raise TypeError(
                f"Cannot compare {shown(value)} by {op!r} with {shown(self._read(answer[1:]))}, which the value "
                f"{self.name!r} holds: text has no order here, only '==' and '!='. Nothing was changed."
            )
        return answer == "1"

    def _read(self, text: str) -> Value:
        try:
            # a number or a text, as json.dumps() writes it: what is nested deeply enough would end in a RecursionError
            if text.isascii() and text == text.strip() and not text.startswith(("[", "{")):
                return _check_value(json.loads(text), "value")
        except (ValueError, TypeError):
            pass
        raise self._foreign(shown(text))


def _dumped(value: Value, what: str) -> str:
    """``value`` as Redis stores it."""
    text, most = json.dumps(_check_value(value, what)), conf().MAX_VALUE_BYTES
    if len(text) > most:
        raise ValueError(
            f"{what} must take at most {most:,} bytes as JSON (REDISLOCK['MAX_VALUE_BYTES']), not {len(text):,}."
        )
    return text


def _check_value(value: Value, what: str) -> Value:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{what} must be an int, a float or a str, not {shown(value)}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{what} must be a finite number, not {shown(value)}.")
    if isinstance(value, int) and abs(value) > EXACT:
        raise ValueError(f"{what} must be between -2**53 and 2**53 to be compared exactly, not {shown(value)}.")
    return value


LARGEST = 2**63 - 1  # that a counter of Redis can hold

# as Redis reads it; int() would take more
_COUNT = re.compile(rb"0|-?[1-9]\d{0,18}")
_COUNTER = Script("counter")


class Counter(Stored):
    """A 64-bit integer that all processes share. Each call is one atomic step and one round trip.

    ``name``, ``using``
        As of a :class:`ConditionalValue`; so are the errors.

    A call that has to be sent again, because its reply was lost, counts once and returns what the first run did. After
    LockUnavailable it may have counted or not, or count when the network still delivers it.
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
