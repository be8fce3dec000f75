"""The pytest plugin. (It is used by whole projects in test_projects.py.)"""

from __future__ import annotations

import pytest

from django_redislock import Lock

# as ``pytest_plugins`` does for a site; here for this module alone
from django_redislock.pytest_plugin import redislock_own_locks as redislock_own_locks
from tests.helpers.state import NAME
from tests.inside import settings


@pytest.mark.parametrize("number", range(2))
def test_each_test_has_locks_of_its_own_without_asking_for_them(number: int) -> None:
    assert settings()["KEY_PREFIX"].startswith("redislock-test-")
    assert Lock(NAME).acquire(blocking_timeout=0)
