"""The memory mode: an in-process stand-in for Redis, for development and tests. It guards one process only."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ..per_process import PerProcess

_servers: PerProcess[dict[str, Any]] = PerProcess(dict)


def memory_client(alias: str) -> Any:
    """A client of the server that stands in for ``alias``."""
    try:
        import fakeredis
    except ImportError:
        raise ImproperlyConfigured(
            f"The cache alias {alias!r} is not Redis, and its in-process stand-in is not installed: "
            f'python -m pip install "django-redislock[memory]"'
        ) from None
    server = _servers.get().setdefault(alias, fakeredis.FakeServer())
    return fakeredis.FakeRedis(server=server)


def forget_servers() -> None:
    """What they hold is gone."""
    _servers.reset()
