"""The probe: whether a node counts this process as a subscriber to its channel (R3)."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from ..base.steps import Steps
from .lock_store import Partition
from .node import Node
from .retry import call
from .scripts import Script, with_source
from .wire import Command

_PROBE = Script("probe")


def probe_command(partition: Partition) -> Command:
    """Publishes to this process's channel from a script; the answer is the number of receivers, and the time."""
    return with_source(_PROBE.command((f"{partition.prefix}fence",), (partition.channel,)))


def counts_us(partition: Partition) -> Steps[bool]:
    """Whether the node that runs the scripts counts this process as a subscriber; True if it cannot tell."""
    reply = yield from call(partition, probe_command(partition))
    return bool(reply.answer[0])  # an error is no number


def probed(node: Node, answer: Any, sent: float) -> int | ResponseError:
    """The number of receivers that the probe has counted, or the error that it met."""
    if isinstance(answer, ResponseError):
        return answer
    heard, us, id = answer
    node.anchor = us, sent
    node.id = id.decode()
    return heard  # type: ignore[no-any-return]
