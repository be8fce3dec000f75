"""The background threads of a process: in a forked child, and at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redislock.engine import runtime as module
from django_redislock.engine.runtime import Runtime, runtime
from django_redislock.per_process import PerProcess
from tests.helpers.state import listener


@pytest.mark.usefixtures("listening")
def test_a_child_closes_the_socket_of_its_parents_listener(eventually: Callable[..., Any]) -> None:
    """As it is told in a fork. (Here, it is our own, which is made anew.)"""
    ears = listener()
    generation = ears.generation
    runtime().leave_parent()
    eventually(lambda: ears.generation > generation and ears.ready)


@pytest.mark.parametrize("used", [True, False], ids=["locks were used", "no lock was used"])
def test_what_is_pending_is_sent_at_the_end_of_a_process(used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    own = PerProcess(Runtime)
    monkeypatch.setattr(module, "_runtime", own)
    monkeypatch.setattr(
        "django_redislock.engine.watchdog.Watchdog.send_pending", lambda watchdog: sent.append(watchdog)
    )
    if used:
        own.get()
    module._send_pending()
    assert len(sent) == used
