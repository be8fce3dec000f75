"""Signals. A receiver's exception is logged and never breaks a lock."""

from __future__ import annotations

from logging import ERROR
from typing import Any

from django.dispatch import Signal

from .log import log_event

lock_acquired = Signal()  # name, fence, waited (seconds)
lock_released = Signal()  # name, fence, held (seconds)
lock_lost = Signal()  # name, fence, reason
lock_force_released = Signal()  # name, by


def send(signal: Signal, sender: type, **facts: Any) -> None:
    """Tell the receivers; nearly free when there are none."""
    if signal.receivers:
        _log(signal.send_robust(sender, **facts), facts)


async def asend(signal: Signal, sender: type, **facts: Any) -> None:
    """See send()."""
    if signal.receivers:
        _log(await signal.asend_robust(sender, **facts), facts)


def _log(answers: list[tuple[Any, Any]], facts: dict[str, Any]) -> None:
    for receiver, answer in answers:
        if isinstance(answer, Exception):
            log_event(ERROR, "receiver-failed", receiver=receiver, name=facts["name"], exc_info=answer)
