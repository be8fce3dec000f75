"""The shop's URLs: its views with our lock, without a lock, and with another one, which needs a Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import URLPattern, path
from django.views.decorators.http import require_POST

from django_redislock import locked_view

from . import views
from .settings import ASYNC
from .views import View

PATIENCE = 5  # seconds that a buyer waits for the lock

sell, charge, cache_locked = (
    (views.asell, views.acharge, views.acache_locked) if ASYNC else (views.sell, views.charge, views.cache_locked)
)


def unlocked(name: str, *, blocking_timeout: float) -> Callable[[View], View]:
    """Oversells, and charges twice after a double click."""
    return lambda view: view


def patterns(suffix: str, lock: Callable[..., Any]) -> list[URLPattern]:
    """Buyers wait for the lock, or go away at once with 423, as the second click on a payment does."""
    buy = lock("seats:{pk}", blocking_timeout=PATIENCE)(sell)
    buy_now = lock("seats:{pk}", blocking_timeout=0)(sell)
    pay = lock("order:{pk}", blocking_timeout=0)(charge)
    return [
        path(f"events/<int:pk>/buy{suffix}/", require_POST(buy), name=f"buy{suffix}"),
        path(f"events/<int:pk>/buy{suffix}/now/", require_POST(buy_now), name=f"buy-now{suffix}"),
        path(f"orders/<int:pk>/pay{suffix}/", require_POST(pay), name=f"pay{suffix}"),
    ]


urlpatterns = [
    path("", views.index, name="index"),
    *patterns("", locked_view),
    *patterns("-unlocked", unlocked),
    *patterns("-cache-lock", cache_locked),
]
