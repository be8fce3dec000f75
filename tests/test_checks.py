from __future__ import annotations

from typing import Any

from django.core.checks import run_checks


def ids() -> list[str]:
    return [message.id or "" for message in run_checks() if (message.id or "").startswith("django_redislock")]


def test_a_sound_site_passes() -> None:
    assert ids() == []


def test_wrong_settings_are_found(settings: Any) -> None:
    settings.REDISLOCK = {"TLL": 3}
    assert ids() == ["django_redislock.E001"]


def test_an_alias_that_cannot_hold_locks_is_found(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "nowhere"}
    assert ids() == ["django_redislock.E002"]


def test_the_memory_mode_warns_where_it_is_not_for_development(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "memory"}
    assert ids() == ["django_redislock.W001"]
    settings.DEBUG = True
    assert ids() == []
