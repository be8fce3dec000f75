"""Signals. Their sender is :class:`Lock`. A receiver's exception is logged and never breaks a lock."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from logging import ERROR
from typing import Any

from django.dispatch import Signal
from django.utils.module_loading import import_string

from .base.log import log_event
from .base.steps import Call, served_loop

# template: the name as it was written, "order:{pk}" of "order:42"; of a name without fields, the same; of a callable
# that makes names, where that is. There are few of them, so that metrics can be labelled with it
lock_acquired: Signal = Signal()  # name, template, fence, waited (seconds)
# outcome: see LockNotAcquired; waited: seconds
lock_not_acquired: Signal = Signal()  # name, template, outcome, waited
lock_released: Signal = Signal()  # name, template, fence, held (seconds)
lock_lost: Signal = Signal()  # name, template, fence, reason, expired (it was not to be renewed, and ran out)
lock_force_released: Signal = Signal()  # name, by

ASYNC = "one of the coroutine functions"  # Django does not say which


def send(signal: Signal, **facts: Any) -> None:
    """Call the receivers; nearly free when there are none."""
    if signal.receivers:
        try:
            _log_failures(signal.send_robust(_sender(), **facts), facts)
        except (Exception, CancelledError) as error:  # of an async receiver, or because a loop runs in this thread
            if isinstance(error, CancelledError) and served_loop() is not None:
                raise  # that of the task for which this thread runs sync code
            _log_failures([(ASYNC, error)], facts)


async def asend(signal: Signal, **facts: Any) -> None:
    """See send()."""
    if signal.receivers:
        try:
            _log_failures(await signal.asend_robust(_sender(), **facts), facts)
        except CancelledError as error:
            if _is_being_cancelled():
                raise
            _log_failures([(ASYNC, error)], facts)


def sending(signal: Signal, **facts: Any) -> Call:
    """The request of steps to send a signal."""
    return Call(send, (signal,), facts, twin=asend)


def _sender() -> Any:
    """Lock, which this module cannot import, and which the admin and cache.lock() do not."""
    return import_string(f"{__package__}.Lock")


def _is_being_cancelled() -> bool:
    """Return whether somebody has cancelled the running task. Before Python 3.11, nothing tells: say so."""
    return bool(getattr(asyncio.current_task(), "cancelling", lambda: True)())


def _log_failures(answers: list[tuple[Any, Any]], facts: dict[str, Any]) -> None:
    for receiver, answer in answers:
        if isinstance(answer, (Exception, CancelledError)):
            log_event(ERROR, "receiver-failed", receiver=receiver, name=facts["name"], exc_info=answer)
