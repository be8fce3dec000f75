from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class RedislockConfig(AppConfig):
    name = "django_redislock"
    label = "django_redislock"
    verbose_name = _("Redis locks")
