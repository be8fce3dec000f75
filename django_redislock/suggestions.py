"""What somebody may have meant who gave the name of an option or a setting that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Collection

# as other libraries call it: redis-py, python-redis-lock, SET
_ELSEWHERE = {
    "timeout": ("ttl", "blocking_timeout"),  # redis-py's is the lease, that of threading's acquire() the wait
    "expire": ("ttl",),
    "ex": ("ttl",),
    "auto_renewal": ("auto_renew",),
    "id": ("token",),
    "sleep": ("backoff",),
}


def did_you_mean(wrong: str, choices: Collection[str]) -> str:
    """`` Did you mean 'ttl'?``, to stand behind a sentence; empty where nothing is near. Case does not matter."""
    known = {choice.lower(): choice for choice in choices}
    meant = [known[name] for name in _ELSEWHERE.get(wrong.lower(), ()) if name in known]
    meant = meant or [known[name] for name in difflib.get_close_matches(wrong.lower(), known, 1)]
    return f" Did you mean {' or '.join(map(repr, meant))}?" if meant else ""
