"""Gives each test locks of its own; see :func:`django_redislock.testing.own_locks`.

In the ``conftest.py`` at the root of your tests::

    pytest_plugins = ["django_redislock.pytest_plugin"]
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .testing import own_locks


@pytest.fixture(autouse=True)
def redislock_own_locks() -> Iterator[None]:
    """Locks of its own for each test, whether it names this fixture or not."""
    with own_locks():
        yield
