from __future__ import annotations

from collections.abc import Iterator

import pytest

from redisserver import RedisServer, redis_server

from .trial import Launcher


@pytest.fixture(scope="package")
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.close()


@pytest.fixture
def bare_server() -> Iterator[RedisServer]:
    """A server for the workers alone: this process listens at the session's."""
    with redis_server() as running:
        yield running
