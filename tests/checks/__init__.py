"""What the tests of the system checks share."""

from __future__ import annotations

from django.core.checks import CheckMessage, run_checks

BACKEND = "django_redis.cache.RedisCache"
DJANGOS = "django.core.cache.backends.redis.RedisCache"


def check(*, deploy: bool = False) -> list[CheckMessage]:
    """Run our checks on the site."""
    found = run_checks(include_deployment_checks=deploy)
    ours = [message for message in found if (message.id or "").startswith("django_redislock")]
    assert all(message.hint for message in ours)
    return ours


def ids(*, deploy: bool = False) -> list[str]:
    return [(message.id or "").rpartition(".")[2] for message in check(deploy=deploy)]
