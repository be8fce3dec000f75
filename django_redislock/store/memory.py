"""The memory mode: an in-process stand-in for Redis, for development and tests. It guards one process only."""

from __future__ import annotations

from logging import WARNING
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ..base.log import log_event
from ..base.per_process import PerProcess
from ..conf import conf

_servers: PerProcess[dict[str, Any]] = PerProcess(dict)


def check_allowed(alias: str) -> None:
    """Raise ImproperlyConfigured where the settings demand Redis."""
    if conf().REQUIRE_REDIS:
        raise ImproperlyConfigured(
            f"The cache alias {alias!r} is not Redis, and REDISLOCK['REQUIRE_REDIS'] is True: without Redis, locks "
            f"guard one process only."
        )


def memory_client(alias: str) -> Any:
    """A client of the server that stands in for ``alias``."""
    check_allowed(alias)
    try:
        import fakeredis
    except ImportError:
        raise ImproperlyConfigured(
            f"The cache alias {alias!r} is not Redis, and its in-process stand-in is not installed: "
            f'python -m pip install "django-redislock[memory]"'
        ) from None
    made = fakeredis.FakeServer()
    server = _servers.get().setdefault(alias, made)
    if server is made and not settings.DEBUG:
        log_event(WARNING, "memory-mode", alias=alias, detail="not Redis: locks guard this process only")
    return fakeredis.FakeRedis(server=server)


def forget_servers() -> None:
    """Drop the stand-ins, with all that they hold."""
    _servers.reset()
