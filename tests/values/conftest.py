"""Values and counters on Redis and in memory, used by threads and by tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.processes import Worker
from tests.helpers.ways import DJANGO

Start = Callable[..., Worker]


@pytest.fixture(params=["default", "memory"])
def using(request: pytest.FixtureRequest, settings: Any) -> str:
    settings.CACHES = {**settings.CACHES}  # a memory that holds nothing
    return str(request.param)


@pytest.fixture
def nowhere(settings: Any) -> None:
    """There is no server: calls that need one raise LockUnavailable."""
    settings.CACHES = {"default": {"BACKEND": DJANGO, "LOCATION": "redis://127.0.0.1:1/0"}}
    settings.REDISLOCK = {"RETRY_FOR": 0.1}


@pytest.fixture
def in_processes(start: Start) -> Callable[[int, str], list[list[str]]]:
    """Run code in processes that begin at the same time; return what each prints as "done"."""

    def in_processes(number: int, code: str) -> list[list[str]]:
        workers = [start(f"say('ready'); hear()\n{code}", me=me) for me in range(number)]
        for worker in workers:
            worker.expect("ready")
        for worker in workers:
            worker.tell()
        return [worker.expect("done") for worker in workers]

    return in_processes
