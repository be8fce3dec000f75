"""One logger, and messages that a program can take apart."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import django_redislock
from django_redislock import Lock, LockLost, force_release, lock_force_released, lock_lost
from django_redislock.log import in_form, log_event

SOURCE = Path(django_redislock.__file__).parent
README = SOURCE.parent / "README.rst"
PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?: |$)')


def parsed(message: str) -> dict[str, str]:
    """What a program reads from a message; all of it must be pairs."""
    assert PAIR.sub("", message) == ""
    return {key: json.loads(value) if value.startswith('"') else value for key, value in PAIR.findall(message)}


def messages(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, str]]:
    assert {record.name for record in caplog.records} <= {"django_redislock"}
    return [facts for record in caplog.records if (facts := parsed(record.getMessage()))["event"] == event]


def calls() -> list[tuple[str, str, tuple[str, ...]]]:
    """Level, event and keys of every call of log_event in the package."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "log_event":
                level, event = node.args
                assert isinstance(level, ast.Name)
                assert isinstance(event, ast.Constant)
                keys = tuple(keyword.arg for keyword in node.keywords if keyword.arg not in (None, "exc_info"))
                found.append((level.id, str(event.value), keys))
    return found


@pytest.mark.parametrize("plain", ["a", "order:42", "host:1:Main", "größe:鍵", "a/b%20c", 7, 0, "…"])
def test_a_plain_value_stands_as_it_is(plain: object) -> None:
    assert in_form(plain) == str(plain)


@pytest.mark.parametrize(
    "value", ["", "a b", 'a"b', "a'b", "a=b", "a\\b", "a\nb event=lost", "\u2028", "\u202e", "\x1b[2J", "größe c"]
)
def test_a_value_that_could_be_misread_is_a_json_string(value: str) -> None:
    written = in_form(value)
    assert json.loads(written) == value
    assert written.isprintable()


def test_seconds_are_plain_decimals() -> None:
    assert in_form(0.00001) == "0.000010"
    assert in_form(12.5) == "12.500000"


def test_a_message_can_be_taken_apart(caplog: pytest.LogCaptureFixture) -> None:
    log_event(logging.WARNING, "lost", name='a "b" event=x', fence=7, reason="")
    assert messages(caplog, "lost") == [{"event": "lost", "name": 'a "b" event=x', "fence": "7", "reason": ""}]


def test_messages_of_one_event_share_their_template_and_name_their_caller(caplog: pytest.LogCaptureFixture) -> None:
    for name in "a", "b":
        log_event(logging.WARNING, "lost", name=name)
    assert {record.msg for record in caplog.records} == {"event=lost name=%s"}
    assert {record.filename for record in caplog.records} == {"test_log.py"}


def test_a_level_that_is_off_formats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError

    with caplog.at_level(logging.WARNING, "django_redislock"):
        log_event(logging.DEBUG, "acquired", name=Costly())
    assert not caplog.records


def test_acquired_and_released_are_logged_for_who_wants_to_see_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "django_redislock"), Lock("a b") as lock:
        fence = str(lock.fence)
    ((acquired,), (released,)) = messages(caplog, "acquired"), messages(caplog, "released")
    assert (acquired["name"], acquired["fence"], released["name"], released["fence"]) == ("a b", fence, "a b", fence)
    assert 0 <= float(acquired["waited"]) < 10
    assert 0 <= float(released["held"]) < 10


def test_a_loss_and_who_forced_it_are_logged_and_signalled_alike(
    caplog: pytest.LogCaptureFixture, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    heard: list[tuple[str, str]] = []

    def on_lost(*, name: str, fence: int, reason: str, **more: object) -> None:
        heard.append((name, reason))

    def on_forced(*, name: str, by: str, **more: object) -> None:
        heard.append((name, by))

    lock = Lock("a b")
    lock.acquire()
    lock_lost.connect(on_lost)
    lock_force_released.connect(on_forced)
    try:
        force_release("a b", by="jo from ops")
        with pytest.raises(LockLost):
            lock.release()
        eventually(lambda: len(heard) == 2)  # the loss is told by a thread of its own
    finally:
        lock_lost.disconnect(on_lost)
        lock_force_released.disconnect(on_forced)
    ((forced,), (lost,)) = messages(caplog, "force-released"), messages(caplog, "lost")
    assert set(heard) == {("a b", "jo from ops"), ("a b", lost["reason"])}
    assert (forced["name"], forced["by"]) == ("a b", "jo from ops")
    assert " " in forced["owner"] or forced["owner"].count(":") >= 2


def test_every_message_of_the_package_goes_through_the_one_logger() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        assert ("getLogger" in text) == (path.name == "log.py"), path
        assert path.name == "log.py" or not re.search(r"\blogger\.(?!isEnabledFor)", text), path


def test_the_readme_lists_every_event_with_its_level_and_keys() -> None:
    table = README.read_text("utf-8")
    rows = dict(re.findall(r"^``([a-z-]+)`` +(.+)$", table, re.M))
    assert len(calls()) > 10
    for level, event, keys in calls():
        row = rows[event]
        assert level in row
        assert set(keys) <= set(re.findall(r"``(\w+)``", row)), (event, keys)
    assert {event for event, row in rows.items() if re.match("(DEBUG|INFO|WARNING|ERROR)", row)} == {
        event for _, event, _ in calls()
    }
