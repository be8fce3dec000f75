from __future__ import annotations

from importlib import import_module
from typing import Any

from django import VERSION
from django.apps import AppConfig, apps
from django.core.checks import Tags, register
from django.utils.translation import gettext_lazy as _

from .checks.server import check_server
from .checks.settings import check_settings
from .engine.owner import follow_django_tasks


class RedislockConfig(AppConfig):
    name = "django_redislock"
    verbose_name: Any = _("Redis locks")

    def ready(self) -> None:
        register(check_settings, Tags.caches)
        register(check_server, Tags.caches, deploy=True)
        packages = {"django.tasks": VERSION >= (6,), "django_tasks": apps.is_installed("django_tasks")}
        for package, is_there in packages.items():  # Django's tasks, and the package that has them for Django 5.2
            if is_there:
                signals = import_module(f"{package}.signals")
                follow_django_tasks(signals.task_started, signals.task_finished)
