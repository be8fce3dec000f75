from __future__ import annotations

from collections.abc import Iterator

import pytest

from redisserver import RedisServer, redis_server

from .arena import Nursery


@pytest.fixture(scope="package")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def ground() -> Iterator[RedisServer]:
    """A server for the workers alone: this process listens at the session's."""
    with redis_server() as running:
        yield running
