"""What the tests of the system checks share."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.core.checks.registry import registry

from redisserver import RedisServer
from tests.helpers.actors import GENEROUS
from tests.helpers.ways import DJANGO_REDIS
from tests.inside import limit

Set = Callable[..., None]
OURS = "django_redislock.cache.RedisCache"


def check(*, deploy: bool = False) -> list[CheckMessage]:
    """Run our checks on the site. Django's own, among them, fail on sites that ours describe."""
    checks = [each for each in registry.get_checks(deploy) if each.__module__.startswith("django_redislock.")]
    found = [message for each in checks for message in each(app_configs=None, databases=None)]
    assert all(message.hint for message in found)
    return found


def ids(*, deploy: bool = False) -> list[str]:
    return [(message.id or "").removeprefix("django_redislock.") for message in check(deploy=deploy)]


def only(id: str, *, deploy: bool = False) -> CheckMessage:
    (message,) = check(deploy=deploy)
    assert message.id == f"django_redislock.{id}"
    return message


@pytest.fixture
def caching(settings: Any, server: RedisServer) -> Set:
    """Give the site these aliases beside its others; by default in database 5, where the locks are."""

    def caching(**aliases: dict[str, Any]) -> None:
        ours = {"BACKEND": DJANGO_REDIS, "LOCATION": f"redis://127.0.0.1:{server.port}/5"}
        settings.CACHES = {**settings.CACHES, **{name: ours | entry for name, entry in aliases.items()}}

    return caching


@pytest.fixture(autouse=True)
def _sound(settings: Any, caching: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site of these tests: its locks have a database of their own."""
    caching(locks={})
    settings.REDISLOCK = {"CACHE": "locks"}
    limit(monkeypatch, check_patience=GENEROUS)  # the machine may be busy
