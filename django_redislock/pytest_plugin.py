"""Gives each test locks of its own; see :func:`django_redislock.testing.own_locks`.

In the ``conftest.py`` at the root of your tests::

    pytest_plugins = ["django_redislock.pytest_plugin"]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .testing import own_locks

OWN_LOCKS = "redislock_own_locks"


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Before all other fixtures of one test, whichever plugin is loaded first: they may use locks as well."""
    names: list[str] = getattr(item, "fixturenames", [])
    if OWN_LOCKS in names:
        found: Any = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
        wider = [name for name in names if name in found and found[name][-1].scope != "function"]
        names[:] = dict.fromkeys([*wider, OWN_LOCKS, *names])


@pytest.fixture(autouse=True, name=OWN_LOCKS)
def redislock_own_locks() -> Iterator[None]:
    """Locks of its own for each test, whether it names this fixture or not."""
    with own_locks():
        yield
