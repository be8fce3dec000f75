"""Waits for a state, not for a time, in code that cannot use the fixture ``eventually``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

GENEROUS = 60  # seconds, on a busy machine


def until(condition: Callable[[], Any], within: float = GENEROUS) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {within} s"
        time.sleep(0.01)
