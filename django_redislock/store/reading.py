"""Reading many locks in one round trip, however they are stored, and from many nodes at the same time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import ResponseError

from ..base.steps import Call, Pause, Step, Steps
from .lock_store import LockStore, Partition
from .node import Node
from .records import Keys
from .retry import Roundtrip, call_many, refusal
from .wire import CONNECTION_ERRORS, Command

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


def together(several: Sequence[Steps[T]]) -> Steps[list[T]]:
    """The results of several steps that only read, each with a partition of its own.

    The first error that one of them raises propagates.
    """
    if len(several) == 1:
        return [(yield from several[0])]
    results: dict[int, T] = {}
    outcomes: dict[int, Any] = dict.fromkeys(range(len(several)))
    try:
        while outcomes:
            requests: dict[int, Step] = {}
            for i, outcome in outcomes.items():
                try:
                    resume = several[i].throw if isinstance(outcome, Exception) else several[i].send
                    requests[i] = resume(outcome)
                except StopIteration as end:
                    results[i] = end.value
            outcomes = yield from _perform(requests)
    finally:
        for steps in several:
            steps.close()
    return [results[i] for i in range(len(several))]


def _perform(requests: dict[int, Step]) -> Steps[dict[int, Any]]:
    """The outcomes: answers and node, or the error that came instead; None of the pauses that follow trouble."""
    asking = {i: request for i, request in requests.items() if isinstance(request, Roundtrip)}
    outcomes: dict[int, Any] = dict.fromkeys(requests.keys() - asking.keys())
    if outcomes:
        yield Pause(max(request.seconds for request in requests.values() if isinstance(request, Pause)))
    groups: dict[tuple[LockStore, Node], list[int]] = defaultdict(list)
    for i, request in asking.items():
        store = request.partition.store
        try:
            node = yield Call(store.node_of, (request.partition.tag,), twin=store.anode_of)
        except CONNECTION_ERRORS as error:
            outcomes[i] = error
        else:
            groups[store, node].append(i)
    for (store, node), group in groups.items():
        commands = [command for i in group for command in asking[i].commands]
        try:
            read, _ = yield Call(store.threads.exchange, (node, commands), twin=store.aexchange)
        except (*CONNECTION_ERRORS, ResponseError) as error:  # it may refuse to connect
            outcomes |= dict.fromkeys(group, error)
        else:
            answers = iter(read)
            for i in group:
                asking[i].partition.heard_from(node)
                outcomes[i] = [next(answers) for _ in asking[i].commands], node
    return outcomes
