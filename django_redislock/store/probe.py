"""The probe: whether a node counts this process as a subscriber to its channel (R3)."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from ..base.steps import Steps
from .node import Node
from .place import Backend
from .retry import call
from .scripts import Script, with_source
from .wire import Command

_PROBE = Script("probe")


def probe_command(backend: Backend) -> Command:
    """Publishes to this process's channel from a script; the answer is the number of receivers, and the time."""
    return with_source(_PROBE.command((f"{backend.prefix}fence",), (backend.channel,)))


def counts_us(backend: Backend) -> Steps[bool]:
    """Whether the node that runs the scripts counts this process as a subscriber; True if it cannot tell."""
    reply = yield from call(backend, probe_command(backend))
    return bool(reply.answer[0])  # an error is no number


def probed(node: Node, answer: Any, sent: float) -> int | ResponseError:
    """The number of receivers that the probe has counted, or the error that it met."""
    if isinstance(answer, ResponseError):
        return answer
    heard, us, id = answer
    node.anchor = us, sent
    node.id = id.decode()
    return heard  # type: ignore[no-any-return]
