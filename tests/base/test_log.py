"""One logger, and messages that a program can take apart."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import django_redislock
from django_redislock import Lock, LockLost, force_release
from django_redislock.base.log import in_form, log_event, logger
from tests.helpers.actors import Crowd
from tests.helpers.docs import page

SOURCE = Path(django_redislock.__file__).parent
PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?: |$)')


def parsed(message: str) -> dict[str, str]:
    """A message as a program parses it; it must consist of pairs only."""
    assert PAIR.sub("", message) == ""
    return {key: json.loads(value) if value.startswith('"') else value for key, value in PAIR.findall(message)}


def messages(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, str]]:
    ours = [record.getMessage() for record in caplog.records if record.name == "django_redislock"]
    return [facts for facts in map(parsed, ours) if facts["event"] == event]


# -- the form ----------------------------------------------------------------------------------------------------------


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


def test_what_a_filter_of_the_sites_raises_is_shown_on_stderr_and_ends_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError("of the site's own")

    logger.addFilter(broken)
    try:
        log_event(logging.WARNING, "lost", name="a")
    finally:
        logger.removeFilter(broken)
    assert "ZeroDivisionError: of the site's own" in capsys.readouterr().err


# -- what is logged ----------------------------------------------------------------------------------------------------


def test_acquired_and_released_are_logged_at_debug_level(crowd: Crowd, caplog: pytest.LogCaptureFixture) -> None:
    me, lock = crowd(), Lock("a b")
    with caplog.at_level(logging.DEBUG, "django_redislock"):
        me(lock, "acquire")
        fence = str(me.read(lambda: lock.fence))
        me(lock, "release")
    ((acquired,), (released,)) = messages(caplog, "acquired"), messages(caplog, "released")
    assert (acquired["name"], acquired["fence"], released["name"], released["fence"]) == ("a b", fence, "a b", fence)
    assert 0 <= float(acquired["waited"]) < 10
    assert 0 <= float(released["held"]) < 10


def test_a_loss_and_who_forced_it_are_logged_and_signalled_alike(
    crowd: Crowd,
    caplog: pytest.LogCaptureFixture,
    heard: list[tuple[str, dict[str, Any]]],
    eventually: Callable[[Callable[[], Any]], Any],
) -> None:
    me, lock = crowd(), Lock("a b")
    me(lock, "acquire")
    force_release("a b", by="jo from ops")
    with pytest.raises(LockLost):
        me(lock, "release")
    eventually(lambda: {"force", "lost"} <= {which for which, _ in heard})  # the loss is told by a thread of its own
    ((forced,), (lost,)) = messages(caplog, "force-released"), messages(caplog, "lost")
    signals = dict(heard)
    assert (
        (forced["name"], forced["by"]) == (signals["force"]["name"], signals["force"]["by"]) == ("a b", "jo from ops")
    )
    assert (lost["name"], lost["reason"]) == (signals["lost"]["name"], signals["lost"]["reason"])
    assert lost["name"] == "a b"
    assert forced["owner"].count(":") >= 2


def test_every_message_of_the_package_goes_through_the_one_logger() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        assert ("getLogger" in text) == (path.name == "log.py"), path
        assert path.name == "log.py" or not re.search(r"\blogger\.(?!isEnabledFor)", text), path


def calls() -> Iterator[tuple[str, str, set[str]]]:
    """Level, event and keys of every call in the package that logs."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            keys = {keyword.arg for keyword in node.keywords if keyword.arg is not None} - {"exc_info"}
            match [ast.unparse(argument) for argument in node.args]:
                case [level, event] if called == "log_event" or called.endswith("notifier.log"):
                    if level.isupper() and event.startswith("'"):  # not what passes on what it was given
                        yield level, ast.literal_eval(event), keys
                case [event] if called == "self._log":  # the listener's
                    yield "WARNING", ast.literal_eval(event), {"alias", *keys}


def test_the_page_of_signals_and_log_lists_every_event_with_its_level_and_keys() -> None:
    rows = dict(re.findall(r"^``([a-z-]+)`` +((?:DEBUG|INFO|WARNING|ERROR).+)$", page("signals"), re.M))
    found = list(calls())
    assert len(found) > 20
    wrong = [
        (level, event, keys)
        for level, event, keys in found
        if level not in rows.get(event, "") or not keys <= set(re.findall(r"``(\w+)``", rows[event]))
    ]
    assert wrong == []
    assert set(rows) == {event for _, event, _ in found}
