"""What somebody may have meant who gave the name of an option or a setting that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
