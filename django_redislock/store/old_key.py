"""The key that old code takes for a lock, for the days of a move: ``REDISLOCK["ALSO_LOCK"]``, see docs/coming-from.rst.

Whoever holds one of our locks holds that key as well, by the rules of the old code: of redis-py's ``Lock`` (and
django-redis's, which differs by the name of the key), or of python-redis-lock's. Only locks have one: old code has
neither our semaphores nor our pools. On a cluster it is in a slot of its own, so it takes commands of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.core.cache import caches
from django.core.cache.backends.base import default_key_func
from django.core.exceptions import ImproperlyConfigured

from ..base.display import SecretBytes, shown
from ..base.names import TOKEN_DIGEST, token_digest, unquoted
from ..base.steps import Steps
from ..base.times import NEVER, Deadline
from ..conf import AlsoLock, conf, import_function
from .aliases import has_locks
from .lock_store import Partition
from .loop_connections import ENTERING
from .records import make_keys
from .retry import call
from .stores import get_store
from .wire import Command

# KEYS: the key, python-redis-lock's signal; ARGV: what to do, the value, ms; returns 1 if it is held now, or was until
# now. By the first half of the value, an adopted lock takes it over; by the second, it is that very acquisition's.
# python-redis-lock's waiters wait for an entry in the list of the signal
_SCRIPT = f"""
local how, value, held = ARGV[1], ARGV[2], redis.call('GET', KEYS[1])
if how == 'take' then
  if held and string.sub(held, 1, {TOKEN_DIGEST}) ~= string.sub(value, 1, {TOKEN_DIGEST}) then return 0 end
  redis.call('SET', KEYS[1], value, 'PX', ARGV[3])
  return 1
end
if not held or string.sub(held, {TOKEN_DIGEST + 1}) ~= string.sub(value, {TOKEN_DIGEST + 1}) then return 0 end
if how ~= 'free' then
  if how == 'set' or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return 1
end
redis.call('DEL', KEYS[1])
if KEYS[2] then
  redis.call('DEL', KEYS[2])
  redis.call('LPUSH', KEYS[2], 1)
  redis.call('PEXPIRE', KEYS[2], 1000)
end
return 1
"""


@dataclass(slots=True, eq=False, repr=False)
class OldKey:
    """The old code's key of one acquisition."""

    partition: Partition
    keys: tuple[str, ...]
    name: str  # of our lock
    value: str
    held: bool  # it is to be there as long as our lock is

    def command(self, how: str, seconds: float = 0.0) -> Command:
        """``how``: take (if it is free, or was that of the acquisition that is adopted), keep (for ``seconds`` from now
        at least, as a renewal may be late), set (to end then), free.
        """
        ms = str(max(1, round(seconds * 1000)))
        return ("EVAL", _SCRIPT, str(len(self.keys)), *self.keys, how, self.value, ms)

    def call(
        self,
        how: str,
        seconds: float = 0.0,
        *,
        deadline: Deadline = NEVER,
        urgency: int = ENTERING,
    ) -> Steps[tuple[bool, float]]:
        """Return whether that was done, and the monotonic time at which it was asked for. See command(), retry.call().

        Of what was freed, a second try finds nothing.
        """
        command = self.command(how, seconds)
        reply = yield from call(self.partition, command, self.name, deadline=deadline, urgency=urgency)
        return bool(reply.answer) or (how == "free" and reply.repeated), reply.sent


def old_key_of(partition: Partition, name: str, id: str, token: str | None, *, held: bool = True) -> OldKey | None:
    """The old code's key of this acquisition of ``name``; None: it has none."""
    also = conf().ALSO_LOCK
    if also is None or make_keys(partition.prefix, name).stored != "key":
        return None
    alias = partition.alias
    # another alias with a ``cache.lock()`` has the old locks of that cache
    if also.using is not None and (alias == conf().CACHE or not has_locks(alias)):
        alias = also.using
    old = old_keys(also, alias, name)
    if not old:
        return None
    value = "".join(token_digest(SecretBytes(secret.encode())) for secret in (token or id, id))
    return OldKey(get_store(alias).partition_of(old[0]), old, name, value, held)


def old_key_of_held(partition: Partition, name: str, id: str, token: str | None) -> OldKey | None:
    """The same for an acquisition that may have been made under other settings; None where its key is unclear."""
    try:
        return old_key_of(partition, name, id, token)
    except ImproperlyConfigured:
        return None


def old_keys(also: AlsoLock, alias: str, name: str) -> tuple[str, ...]:
    """The keys of the lock ``name`` in old code: none, or its own first. ImproperlyConfigured if that is unclear."""
    cache: Any = caches[alias] if also.kind == "django-redis" else None
    has_key_function = cache is not None and cache.key_func is not default_key_func
    if has_key_function and also.name is None:
        raise ImproperlyConfigured(
            f"The cache alias {alias!r} has a KEY_FUNCTION, so the keys of its old locks do not follow from our names: "
            f"give REDISLOCK['ALSO_LOCK'] a function as \"name\" that takes our name and returns the key."
        )
    parts = re.fullmatch(r"%([^:]*):(.*)", name, re.S)  # of cache.lock(), see fit_name()
    if parts and "%~" not in name and cache is not None and not has_key_function:
        return (str(cache.make_key(unquoted(parts[2]), version=unquoted(parts[1]) or "1")),)
    old = _old_name(also, name)
    if old is None:
        return ()
    if also.kind == "python-redis-lock":
        return f"lock:{old}", f"lock-signal:{old}"
    return (old if cache is None or has_key_function else str(cache.make_key(old, version="1")),)


def _old_name(also: AlsoLock, name: str) -> str | None:
    """What old code calls the lock; None: it has no such lock."""
    if also.name is not None:
        found: str | None = import_function("ALSO_LOCK", also.name)(name)
        if found is not None and (not isinstance(found, str) or not found):
            raise ImproperlyConfigured(
                f"The function of REDISLOCK['ALSO_LOCK'], {also.name!r}, must return a non-empty str or None, and "
                f"returned {shown(found)} for the lock {name!r}."
            )
        return found
    # whether old code quotes the values in its names, too, or cuts them in the same way, only the site knows
    if unclear := re.search("%(?:[0-9A-F]{2}|~)", name):
        raise ImproperlyConfigured(
            f"What old code calls the lock {name!r} is not clear: in our names, values are quoted, and long names are "
            f"cut (here {unclear[0]!r}). Give REDISLOCK['ALSO_LOCK'] a function as \"name\" that takes our name and "
            f"returns that of old code: 'urllib.parse.unquote' if nothing is quoted there, 'builtins.str' if it has "
            f"these very names."
        )
    return name
