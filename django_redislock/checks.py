"""System checks: a misconfiguration shows when the site starts, not at the first lock."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from .conf import conf
from .connection import get_backend


def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """``settings.REDISLOCK`` can be read, and its alias can hold locks. Connects to nothing."""
    try:
        alias = conf().CACHE
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="See the table of settings in the README.", id="django_redislock.E001")]
    try:
        backend = get_backend()
    except ImproperlyConfigured as error:
        return [
            Error(str(error), hint="Name a Redis alias of CACHES in REDISLOCK['CACHE'].", id="django_redislock.E002")
        ]
    if backend.memory and not settings.DEBUG:
        return [
            Warning(
                f"The cache alias {alias!r} is no Redis: its locks live in the memory of one process and guard that "
                f"process only.",
                hint="Name a Redis alias of CACHES in REDISLOCK['CACHE'], or silence this where one process is all.",
                id="django_redislock.W001",
            )
        ]
    return []
