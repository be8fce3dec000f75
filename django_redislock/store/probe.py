"""The probe: whether a node counts this process among those who listen to its channel (R3)."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from ..steps import Steps
from .node import Node
from .place import Backend
from .retry import call
from .scripts import Script, with_source
from .wire import Command

_PROBE = Script("probe")


def probe_command(backend: Backend) -> Command:
    """Publishes to the channel of this process, from a script; the answer is how many listen to it, and the time."""
    return with_source(_PROBE.command((f"{backend.prefix}fence",), (backend.channel,)))


def counts_us(backend: Backend) -> Steps[bool]:
    """Whether the node that runs the scripts counts this process now; True where it does not tell."""
    reply = yield from call(backend, probe_command(backend))
    return bool(reply.answer[0])  # an error is no number


def probed(node: Node, answer: Any, sent: float) -> int | ResponseError:
    """How many listen, as the probe has answered, or what it met instead."""
    if isinstance(answer, ResponseError):
        return answer
    heard, us, id = answer
    node.anchor = us, sent
    node.id = id.decode()
    return heard  # type: ignore[no-any-return]
