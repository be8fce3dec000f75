from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.utils.translation import gettext_lazy as _

from .checks import check_settings
from .deploychecks import check_server


class RedislockConfig(AppConfig):
    name = "django_redislock"
    verbose_name = _("Redis locks")

    def ready(self) -> None:
        register(check_settings, Tags.caches)
        register(check_server, Tags.caches, deploy=True)
