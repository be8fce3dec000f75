"""How names, durations and secrets are shown to people, in the terminal, in the admin and in error reports.

Also what somebody may have meant who gave an option or a setting that does not exist.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from reprlib import Repr

from django.utils.translation import gettext_noop as _


def printable(text: str) -> str:
    """``text`` as it is, or as a literal if it could control a terminal (escapes, right-to-left marks), or if a part of
    it cannot be seen.
    """
    if text.isprintable() and text == text.strip() and not _BLANK.search(text):
        return text
    return _BLANK.sub(lambda found: f"\\u{ord(found[0]):04x}", repr(text))


# printable, for Python: fillers of Hangul, and a Braille pattern without dots
_BLANK = re.compile("[\u115f\u1160\u2800\u3164\uffa0]")


_STARS = "********************"  # as Django writes what it hides

_repr = Repr()
_repr.maxstring = _repr.maxother = 120
_repr.maxlong = 500


def shown(value: object) -> str:
    """``value`` as a literal for an error, cut in the middle when it is long."""
    try:
        return _repr.repr(value)
    except ValueError:  # an int with more digits than Python writes
        return f"<{type(value).__name__} that is too long to be shown>"


class Secret(str):
    """A token, or text with one in it: error reports, which show local variables by ``repr()``, show stars."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _STARS


class SecretBytes(bytes):
    """The same for bytes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _STARS


def duration(seconds: float, translate: Callable[[str], str] = str) -> str:
    """``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``, ``4 d 3 h``, ``without end``; ``translate``: ``gettext``."""
    if seconds == math.inf:
        return translate(_("without end"))
    tenths, whole = round(seconds * 10), round(seconds)
    if tenths < 100:
        text, numbers = _("%(whole)d.%(part)d s"), (tenths // 10, tenths % 10)
    elif whole < 60:
        text, numbers = _("%(whole)d s"), (whole, 0)
    elif whole < 3600:
        text, numbers = _("%(whole)d min %(part)d s"), (whole // 60, whole % 60)
    elif whole < 86400:
        text, numbers = _("%(whole)d h %(part)d min"), (whole // 3600, whole % 3600 // 60)
    else:
        text, numbers = _("%(whole)d d %(part)d h"), (whole // 86400, whole % 86400 // 3600)
    return translate(text) % {"whole": numbers[0], "part": numbers[1]}


# as other libraries call it: redis-py, python-redis-lock, SET
_ELSEWHERE = {
    "timeout": ("ttl", "blocking_timeout"),  # redis-py's is the lease, that of threading's acquire() the wait
    "expire": ("ttl",),
    "ex": ("ttl",),
    "auto_renewal": ("auto_renew",),
    "id": ("token",),
    "sleep": ("backoff",),
}


def did_you_mean(wrong: str, choices: Iterable[str], prefix: str = "") -> str:
    """`` Did you mean 'ttl'?``, to stand behind a sentence; empty where nothing is near. Case does not matter.

    ``prefix``: what all ``choices`` begin with, and ``wrong`` too.
    """
    name = wrong.removeprefix(prefix).lower()
    known = {choice.removeprefix(prefix).lower(): choice for choice in choices}
    meant = [known[ours] for ours in _ELSEWHERE.get(name, ()) if ours in known]
    meant = meant or [known[near] for near in difflib.get_close_matches(name, known, 1)]
    return f" Did you mean {' or '.join(map(repr, meant))}?" if meant else ""
