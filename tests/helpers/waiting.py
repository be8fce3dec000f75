"""Waits for a state, not for a time; and where a thread stands."""

from __future__ import annotations

import asyncio
import faulthandler
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable
from linecache import getline
from typing import Any

import pytest
import redis

GENEROUS = 60  # seconds, on a busy machine


def until(condition: Callable[[], Any], within: float = GENEROUS) -> Any:
    """Return what the condition returned."""
    deadline = time.monotonic() + within
    while not (result := condition()):
        if time.monotonic() >= deadline:
            faulthandler.dump_traceback(2)  # what all threads are doing, for the log
            pytest.fail(f"still not so after {within} s")
        time.sleep(0.002)
    return result


async def auntil(condition: Callable[[], Any], within: float = GENEROUS) -> Any:
    """The same for coroutines, and for conditions that must be awaited."""
    deadline = time.monotonic() + within
    while True:
        result = condition()
        if result := (await result if isawaitable(result) else result):
            return result
        assert time.monotonic() < deadline, f"still not so after {within} s"
        await asyncio.sleep(0.002)


def asked_for(condition: Callable[[], Any], ask: Callable[[], object], every: float) -> Callable[[], bool]:
    """The condition, for ``until``. While it is not met, the server is asked for it every so many seconds."""
    asked = -math.inf

    def is_met() -> bool:
        nonlocal asked
        if condition():
            return True
        if time.monotonic() > asked + every:
            asked = time.monotonic()
            with suppress(redis.ResponseError):  # it cannot at the moment
                ask()
        return False

    return is_met


def stands_in(thread: threading.Thread, function: str, code: str = "") -> bool:
    """Whether a thread is in ``function``, or in what that has called, at a line of it with ``code``."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == function and code in getline(frame.f_code.co_filename, frame.f_lineno):
            return True
        frame = frame.f_back
    return False
