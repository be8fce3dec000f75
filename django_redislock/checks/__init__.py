"""System checks. Each has an id of its own."""

from __future__ import annotations

from django.core.checks import Tags, register

from .server import check_server
from .settings import check_settings
from .views import check_views


def register_checks() -> None:
    register(check_settings, Tags.caches)
    register(check_server, Tags.caches, deploy=True)
    register(check_views, Tags.urls, deploy=True)
