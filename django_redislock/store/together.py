"""Reading from many partitions at once: what is asked of one node at the same time goes there in one write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..base.steps import Call, Pause, Step, Steps
from .lock_store import LockStore
from .node import Node
from .retry import Execute
from .wire import CONNECTION_ERRORS

T = TypeVar("T")

Resume = Callable[[Any], Step]


def together(several: Sequence[Steps[T]]) -> Steps[list[T]]:
    """The results of several steps that only read, each with a partition of its own.

    The first error that one of them raises propagates.
    """
    if len(several) == 1:
        return [(yield from several[0])]
    results: dict[int, T] = {}
    waiting: dict[int, Step] = {}

    def resume(i: int, how: Resume, value: Any) -> None:
        waiting.pop(i, None)
        try:
            waiting[i] = how(value)
        except StopIteration as end:
            results[i] = end.value

    try:
        for i, steps in enumerate(several):
            resume(i, steps.send, None)
        while waiting:
            # each waits for Redis, or pauses after trouble with it
            pauses = {i: request.seconds for i, request in waiting.items() if isinstance(request, Pause)}
            asking = {i: request for i, request in waiting.items() if isinstance(request, Execute)}
            if pauses:
                yield Pause(max(pauses.values()))
            for i in pauses:
                resume(i, several[i].send, None)
            for i, outcome in (yield from _ask(asking)).items():
                resume(i, several[i].throw if isinstance(outcome, Exception) else several[i].send, outcome)
    finally:
        for steps in several:
            steps.close()
    return [results[i] for i in range(len(several))]


def _ask(asking: dict[int, Execute]) -> Steps[dict[int, Any]]:
    """The outcomes of these requests: answers and node, or a connection error."""
    outcomes: dict[int, Any] = {}
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
            read, _ = yield Call(store.exchange, (node, commands), twin=store.aexchange)
        except CONNECTION_ERRORS as error:
            outcomes |= dict.fromkeys(group, error)
        else:
            answers = iter(read)
            for i in group:
                asking[i].partition.heard_from(node)
                outcomes[i] = [next(answers) for _ in asking[i].commands], node
    return outcomes
