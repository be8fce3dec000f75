"""Signals. A receiver's exception is logged and never breaks a lock."""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("django_redislock")

lock_acquired = Signal()  # name, fence, waited (seconds)
lock_released = Signal()  # name, fence, held (seconds)
lock_lost = Signal()  # name, fence, reason
lock_force_released = Signal()  # name, by


def send(signal: Signal, sender: type, **facts: Any) -> None:
    """Tell the receivers; nearly free when there are none."""
    if signal.receivers:
        for receiver, answer in signal.send_robust(sender, **facts):
            if isinstance(answer, Exception):
                logger.error("event=receiver-failed receiver=%r name=%s", receiver, facts["name"], exc_info=answer)
