"""``with`` and ``async with`` through one interface: ``me(Block(lock, body), "run")``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from django_redislock import Lock


class Block:
    """Calls ``body`` under the lock, ``times`` times, and lets others run before each time."""

    def __init__(self, lock: Lock, body: Callable[[], Any] = lambda: None, *, times: int = 1) -> None:
        self.lock = lock
        self.body = body
        self.times = times

    def run(self) -> None:
        for _ in range(self.times):
            with self.lock:
                time.sleep(0)
                self.body()

    async def arun(self) -> None:
        for _ in range(self.times):
            async with self.lock:
                await asyncio.sleep(0)
                self.body()
