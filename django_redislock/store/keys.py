"""The Redis keys of locks and pools."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..base.names import split_member

# the Redis type of a key, by the word after the prefix; all others are strings
_TYPES = dict.fromkeys(("waiters", "held", "took"), "hash") | dict.fromkeys(
    ("queue", "index", "members", "fresh", "free", "busy", "wanted", "pools"), "zset"
)


class Keys(NamedTuple):
    """The keys of a lock, or of a pool when any member is wanted, in the order in which scripts expect them.

    ``stored``: how the lock is stored, and so which variant of a script works on it.
    """

    all: tuple[str, ...]
    lock: str  # the lock itself; for a member of a pool, the hash that has it as a field
    queue: str = ""  # waiters for this very lock
    member: str | None = None  # that field, quoted
    members: str = ""  # of the pool
    busy: str = ""  # of the pool: the ends of its members' leases
    line: str = ""  # of the pool: the queue of those who want any member
    any: bool = False  # any member is wanted
    stored: str = "key"


@lru_cache(maxsize=1024)  # many a lock is acquired again, and each needs them for several commands
def make_keys(prefix: str, name: str) -> Keys:
    """The keys of the lock ``name``, or of a pool, if ``name`` stands for any of its members.

    ``prefix`` ends with the hash tag and a colon, so all of them are in one slot.
    """
    shared = (f"{prefix}index", f"{prefix}fence")
    if name.endswith(":") and split_member(f"{name}any"):
        pool = pool_keys(prefix, name)
        return Keys((*pool, *shared), pool[3], members=pool[0], busy=pool[4], line=pool[7], any=True, stored="member")
    own = (f"{prefix}queue:{name}", f"{prefix}waiters:{name}")
    split = split_member(name)
    if split is None:
        lock = f"{prefix}lock:{name}"
        return Keys((lock, *own, *shared), lock, own[0])
    pool = pool_keys(prefix, split[0])
    return Keys((*pool, *own, *shared), pool[3], own[0], split[1], pool[0], pool[4], pool[7], stored="member")


def pool_keys(prefix: str, pool: str) -> tuple[str, ...]:
    """What ``@pool`` stands for in the headers of scripts; ``pool`` as it appears in names."""
    words = ("members", "fresh", "free", "held", "busy", "took", "wanted", "queue", "waiters")
    return tuple(f"{prefix}{word}:{pool}" for word in words)


def pools_key(prefix: str) -> str:
    """A sorted set: the pools that have members, as they appear in names."""
    return f"{prefix}pools"


def redis_type(key: str, prefix: str) -> str:
    """The Redis type that one of our keys should have."""
    return _TYPES.get(key.removeprefix(prefix).partition(":")[0], "string")
