from __future__ import annotations

from typing import Any

import pytest

from redisserver import RedisServer
from tests.checks import BACKEND
from tests.helpers.actors import GENEROUS
from tests.inside import limit


@pytest.fixture(autouse=True)
def _sound(settings: Any, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site of these tests: its locks have a database of their own."""
    locks = {"BACKEND": BACKEND, "LOCATION": f"redis://127.0.0.1:{server.port}/5"}
    settings.CACHES = {**settings.CACHES, "locks": locks}
    settings.REDISLOCK = {"CACHE": "locks"}
    limit(monkeypatch, check_patience=GENEROUS)  # the machine may be busy
