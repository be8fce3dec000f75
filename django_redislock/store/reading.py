"""Reading many locks in one round trip, however they are stored."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from ..base.steps import Steps
from .lock_store import Partition
from .records import Keys
from .retry import call_many, refusal
from .wire import Command

T = TypeVar("T")

BATCH = 1000


class Found(NamedTuple):
    """The value of a lock (None: it is free), and ``left``: seconds of lease, infinite if endless."""

    value: bytes | None
    left: float


def read_values(
    partition: Partition, keys: Sequence[Keys], *, sizes: Sequence[str] = ()
) -> Steps[tuple[int, list[Found], dict[str, int]]]:
    """The server's time (microseconds), these locks, and the sizes of these sorted sets; one round trip.

    A size is 0 where the key is of another type.
    """
    groups: dict[str, list[int]] = defaultdict(list)  # by the hash of the pool; "": locks that are keys
    for i, key in enumerate(keys):
        groups["" if key.member is None else key.lock].append(i)
    parts = [(pool, batch) for pool, group in groups.items() for batch in batches(group)]
    commands: list[Command] = []
    for pool, batch in parts:
        names = [keys[i].member or keys[i].lock for i in batch]
        if pool:
            commands += ("HMGET", pool, *names), ("ZMSCORE", keys[batch[0]].busy, *names)
        else:
            commands += ("MGET", *names), *(("PTTL", name) for name in names)
    us, read = yield from read_all(partition, commands, sizes, spares=True)
    answers = iter(read)
    found: dict[int, Found] = {}
    for pool, batch in parts:
        values, ends = next(answers), next(answers) if pool else [next(answers) for _ in batch]
        values, ends = values or [None] * len(batch), ends or [None] * len(batch)
        for i, value, end in zip(batch, values, ends, strict=True):
            found[i] = _of_member(value, end, us) if pool else Found(value, math.inf if end == -1 else end / 1000)
    return us, [found[i] for i in range(len(keys))], dict(zip(sizes, answers, strict=True))


def _of_member(value: bytes | None, score: Any, us: int) -> Found:
    if score is None:
        return Found(value, math.inf)
    left = (float(score) - us) / 1e6
    return Found(value if left > 0 else None, left)  # the value is still stored, but its lease is over


def read_all(
    partition: Partition, reads: Sequence[Command], sizes: Sequence[str] = (), *, spares: bool = False
) -> Steps[tuple[int, list[Any]]]:
    """The server's time (microseconds), and the answers to these commands; one round trip.

    The sizes of these sorted sets follow, 0 where the key is of another type. Raises LockUnavailable if another answer
    is an error (the user may not use MGET, for instance). ``spares``: where a key is of another type, that is None.
    """
    commands: list[Command] = [("TIME",), *reads]
    answers = yield from call_many(partition, [*commands, *(("ZCARD", key) for key in sizes)])
    for command, answer in zip(commands, answers, strict=False):
        if isinstance(answer, Exception) and not (spares and str(answer).startswith("WRONGTYPE")):
            del answers  # there are tokens among them, and error reports show local variables
            raise (yield from refusal(partition, [command], None, answer)) from answer
    read: list[Any] = [None if isinstance(each, Exception) else each for each in answers]
    (seconds, more), *others = read
    counts = [count or 0 for count in others[len(reads) :]]
    return int(seconds) * 1_000_000 + int(more), [*others[: len(reads)], *counts]


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """BATCH at a time: Redis serves nobody else during one long MGET."""
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))
