from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from .checks import register_checks


class RedislockConfig(AppConfig):
    name = "django_redislock"
    verbose_name: Any = _("Redis locks")

    def ready(self) -> None:
        register_checks()
