"""What is stored in Redis, and under which keys: locks, their holders and waiters, and the members of pools."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from ..base.display import Secret, shown
from ..base.names import SEMAPHORE, is_name, known_as, quote, split_member, unquoted
from ..exceptions import LockError
from .lock_store import Partition

# the Redis type of a key, by the word after the prefix; all others are strings
_TYPES = dict.fromkeys(("waiters", "held", "took", "permits"), "hash") | dict.fromkeys(
    ("queue", "index", "members", "fresh", "free", "busy", "wanted", "pools", "ends"), "zset"
)


class Keys(NamedTuple):
    """The keys of a lock, or of a pool when any member is wanted, in the order in which scripts expect them.

    ``never``: a key that never exists (C4). ``stored``: how the lock is stored, and so which variant of a script works
    on it.
    """

    all: tuple[str, ...]  # but never
    never: str
    lock: str  # the lock itself; for a member of a pool or a semaphore, the hash that has it or its permits as fields
    queue: str = ""  # waiters for this very lock
    member: str | None = None  # that field, quoted
    members: str = ""  # of the pool
    busy: str = ""  # of the pool: the ends of its members' leases
    line: str = ""  # of the pool: the queue of those who want any member
    any: bool = False  # any member is wanted
    stored: str = "key"

    @property
    def declared(self) -> tuple[str, ...]:
        return (*self.all, self.never)


@lru_cache(maxsize=1024)  # many a lock is acquired again, and each needs them for several commands
def make_keys(prefix: str, name: str) -> Keys:
    """The keys of the lock ``name``, or of a pool, if ``name`` stands for any of its members.

    ``prefix`` ends with the hash tag and a colon, so all of them are in one slot.
    """
    shared, never = (f"{prefix}index", f"{prefix}fence"), f"{prefix}never"
    if name.endswith(":") and split_member(f"{name}any"):
        pool = pool_keys(prefix, name)
        return Keys(
            (*pool, *shared), never, pool[3], members=pool[0], busy=pool[4], line=pool[7], any=True, stored="member"
        )
    own = (f"{prefix}queue:{name}", f"{prefix}waiters:{name}")
    split = split_member(name)
    if name.startswith(SEMAPHORE):
        permits = f"{prefix}permits:{name}"
        return Keys((permits, f"{prefix}ends:{name}", *own, *shared), never, permits, own[0], stored="permits")
    if split is None:
        lock = f"{prefix}lock:{name}"
        return Keys((lock, *own, *shared), never, lock, own[0])
    pool = pool_keys(prefix, split[0])
    return Keys((*pool, *own, *shared), never, pool[3], own[0], split[1], pool[0], pool[4], pool[7], stored="member")


def pool_keys(prefix: str, pool: str) -> tuple[str, ...]:
    """Return what ``@pool`` stands for in the headers of scripts; ``pool`` as it appears in names."""
    words = ("members", "fresh", "free", "held", "busy", "took", "wanted", "queue", "waiters")
    return tuple(f"{prefix}{word}:{pool}" for word in words)


def pools_key(prefix: str) -> str:
    """A sorted set: the pools that have members, as they appear in names."""
    return f"{prefix}pools"


def redis_type(key: str, prefix: str) -> str:
    """The Redis type that one of our keys should have."""
    return _TYPES.get(key.removeprefix(prefix).partition(":")[0], "string")


UNKNOWN = "?"  # the owner, where a foreign value holds the lock
LONGEST_OWNER = 2000  # bytes, with the note: we write nothing longer

_VALUE = re.compile(rb"(\S+) (\S+) (\S) (\d{1,18}) (\d{1,17}) (\S+) (.*)", re.S)
_ENTRY = re.compile(rb"(\S+) (\d+) (\d+) (\S+) (.*)", re.S)


class Holder(NamedTuple):
    """The value of a lock (piece ``holder``)."""

    id: str
    token: str
    fence: int
    since: int  # server microseconds
    owner: str
    note: str
    suspension: bool = False  # nobody holds the lock: the owner has suspended it
    handed_over: bool = False  # and not confirmed yet
    detached: bool = False  # nobody uses it now; whoever has the token may go on

    @property
    def described(self) -> str:
        """The owner, for people."""
        return f"nobody (suspended by {self.owner})" if self.suspension else self.owner

    def is_of(self, id: str | None, token: str | None = None) -> bool:
        """Return whether it is the acquisition of this id, or one with this token."""
        return self.id == id or self.token == token


def parse_holder(value: bytes | None) -> Holder | None:
    """None for a value that our scripts did not write."""
    found = _VALUE.fullmatch(value or b"")
    if found is None:
        return None
    id, _, flag, fence, since, token = (part.decode(errors="replace") for part in found.groups()[:6])
    secrets, numbers = (Secret(id), Secret(id if token == "-" else token)), (int(fence), int(since))
    return Holder(*secrets, *numbers, *split_owner(found[7]), flag == "s", flag in ("h", "p"), flag == "d")


def parse_waiter(entry: bytes | None) -> tuple[str, str]:
    """Owner and note of a waiter (piece ``queue``)."""
    found = _ENTRY.fullmatch(entry or b"")
    return (UNKNOWN, "") if found is None else split_owner(found[5])


def split_owner(text: bytes) -> tuple[str, str]:
    """Owner and note. Scripts treat them as one text: a line feed, which no owner has, separates them."""
    owner, _, note = text[:LONGEST_OWNER].decode(errors="replace").partition("\n")
    return owner, note


def check_member(partition: Partition, pool: str, raw: bytes) -> str:
    """The member ``raw`` of ``pool``, quoted. Raises LockError for one that we cannot have written."""
    with suppress(UnicodeDecodeError):
        text = raw.decode()
        if quote(unquoted(text)) == text and is_name(f"{pool}{text}"):
            return text
    raise LockError(
        f"Somebody else has written {shown(raw)} into the keys {f'{partition.prefix}members:{pool}'!r} or "
        f"{f'{partition.prefix}free:{pool}'!r}: that is not a member of a pool. Remove it (ZREM), or "
        f"assign() the members anew.",
        known_as(pool)[1],
    )
