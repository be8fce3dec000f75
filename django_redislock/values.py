"""``ConditionalValue``: a value that all processes share, compared and changed in one atomic step."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Coroutine
from functools import partialmethod
from typing import Any

from .base.display import shown
from .base.steps import Steps, arun, run_blocking
from .base.times import Seconds
from .conf import conf
from .store.scripts import Script
from .stored import Stored, milliseconds_of

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
    the same); LockError when somebody else wrote something else under this key; TypeError and ValueError for bad
    values. These three change nothing.
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
        """What is stored; None when nothing is."""
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
