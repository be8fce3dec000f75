"""Parsing what the scripts write: the holder of a lock, a waiter, and a member of a pool."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..base.display import Secret, shown
from ..base.names import known_as, read_member
from ..exceptions import LockError
from .lock_store import Partition

UNKNOWN = "?"  # the owner, where a foreign value holds the lock
LONGEST_OWNER = 2000  # bytes, with the note: we write nothing longer

_VALUE = re.compile(rb"(\S+) (\S+) (\S) (\d{1,18}) (\d{1,17}) (\S+) (.*)", re.S)
_ENTRY = re.compile(rb"(\S+) (\d+) (\d+) (\S+) (.*)", re.S)


class Holder(NamedTuple):
    """The value of a lock (holder.lua)."""

    id: str
    token: str
    fence: int
    since: int  # server microseconds
    owner: str
    note: str
    suspension: bool = False  # nobody holds the lock: the owner has suspended it
    handed_over: bool = False  # and not confirmed yet

    @property
    def described(self) -> str:
        """The owner, for people."""
        return f"nobody (suspended by {self.owner})" if self.suspension else self.owner

    def is_of(self, id: str | None, token: str | None = None) -> bool:
        """Whether it is the acquisition of this id, or one with this token."""
        return self.id == id or self.token == token


def parse_holder(value: bytes | None) -> Holder | None:
    """None for a value that our scripts did not write."""
    found = _VALUE.fullmatch(value or b"")
    if found is None:
        return None
    id, _, flag, fence, since, token = (part.decode(errors="replace") for part in found.groups()[:6])
    secrets, numbers = (Secret(id), Secret(id if token == "-" else token)), (int(fence), int(since))
    return Holder(*secrets, *numbers, *split_owner(found[7]), flag == "s", flag in ("h", "p"))


def shown_holder(value: bytes, us: int) -> Holder:
    """Whoever holds a lock with this ``value``, even if the scripts did not write it. ``us``: the server's time."""
    return parse_holder(value) or Holder("", "", 0, us, UNKNOWN, "")


def parse_waiter(entry: bytes | None) -> tuple[str, str]:
    """Owner and note of a waiter (waiter.lua)."""
    found = _ENTRY.fullmatch(entry or b"")
    return (UNKNOWN, "") if found is None else split_owner(found[5])


def split_owner(text: bytes) -> tuple[str, str]:
    """Owner and note. Scripts treat them as one text: a line feed, which no owner has, separates them."""
    owner, _, note = text[:LONGEST_OWNER].decode(errors="replace").partition("\n")
    return owner, note


def check_member(partition: Partition, pool: str, raw: bytes) -> str:
    """The member ``raw`` of ``pool``, quoted. Raises LockError for one that we cannot have written."""
    found = read_member(pool, raw)
    if found is not None:
        return found
    raise LockError(
        f"Somebody else has written {shown(raw)} into the keys {f'{partition.prefix}members:{pool}'!r} or "
        f"{f'{partition.prefix}free:{pool}'!r}: that is not a member of a pool. Remove it (ZREM), or "
        f"assign() the members anew.",
        known_as(pool)[1],
    )
