"""What somebody may have meant who gave an option or a setting that there is not, or an option by position."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from .display import shown

F = TypeVar("F", bound=Callable[..., Any])

# as other libraries call it: redis-py, python-redis-lock, SET
_ELSEWHERE = {
    "timeout": ("ttl", "blocking_timeout"),  # redis-py's is the lease, that of threading's acquire() the wait
    "expire": ("ttl", "timeout"),
    "ex": ("ttl", "timeout"),
    "ttl": ("timeout",),
    "auto_renewal": ("auto_renew",),
    "id": ("token",),
    "sleep": ("backoff",),
}


def refuse_arguments(
    what: str, wrong: Collection[object], unknown: Collection[str], choices: Collection[str], number: str = "ttl"
) -> NoReturn:
    """Raise TypeError for what ``what`` was given by position (``wrong``), or by a name that there is not.

    ``number``: the option that a number by position stands for elsewhere, if there is one.
    """
    if wrong:
        value = next(iter(wrong))
        plain = isinstance(value, (int, float, timedelta))  # all else may be a secret
        given = shown(value) if plain else f"a {type(value).__name__}"
        meant = "blocking" if isinstance(value, bool) else number
        trouble = f"its options by name, not {given}"
        hint = f" Did you mean {meant}={given}?" if plain and meant in choices else ""
    else:
        trouble, hint = f"no option {min(unknown)!r}", did_you_mean(min(unknown), choices)
    raise TypeError(f"{what} takes {trouble}.{hint} The options are: {', '.join(choices)}.")


def takes_by_name(function: F) -> F:
    """Hide the parameters ``wrong`` and ``unknown``, which are there for refuse_arguments(), from its signature."""
    signature = inspect.signature(function)
    shown = [each for name, each in signature.parameters.items() if name not in ("wrong", "unknown")]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def did_you_mean(wrong: str, choices: Iterable[str], prefix: str = "") -> str:
    """`` Did you mean 'ttl'?``, to stand behind a sentence; empty where nothing is near. Case does not matter.

    ``prefix``: what all ``choices`` begin with, and ``wrong`` too.
    """
    name = wrong.removeprefix(prefix).lower()
    known = {choice.removeprefix(prefix).lower(): choice for choice in choices}
    meant = [known[ours] for ours in _ELSEWHERE.get(name, ()) if ours in known]
    meant = meant or [known[near] for near in difflib.get_close_matches(name, known, 1)]
    return f" Did you mean {' or '.join(map(repr, meant))}?" if meant else ""
