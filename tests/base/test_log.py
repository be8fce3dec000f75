"""One logger, and messages that a program can take apart. (conftest.py compares all of them with docs/signals.rst.)"""

from __future__ import annotations

import json
import logging
import re

import pytest

from django_redislock import Lock, force_release
from tests.helpers.actors import Crowd

PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?: |$)')


def messages(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, str]]:
    """As a program parses them; they must consist of pairs only."""
    found = []
    for message in [record.getMessage() for record in caplog.records if record.name == "django_redislock"]:
        assert PAIR.sub("", message) == ""
        pairs = {key: json.loads(text) if text[0] == '"' else text for key, text in PAIR.findall(message)}
        if pairs["event"] == event:
            found.append(pairs)
    return found


@pytest.mark.parametrize("value", ["order:42", "größe:鍵", "", "a b", 'a"b', "a=b", "a\nb event=lost", "\u202e"])
def test_a_plain_value_stands_as_it_is_and_one_that_could_be_misread_is_a_json_string(
    value: str, caplog: pytest.LogCaptureFixture
) -> None:
    Lock("a").acquire()
    force_release("a", by=value)
    assert caplog.messages[-1].isprintable()
    assert [event["by"] for event in messages(caplog, "force-released")] == [value]
    assert (f" by={value} " in f"{caplog.messages[-1]} ") == (":" in value)


def test_what_a_filter_of_the_sites_raises_is_shown_on_stderr_and_ends_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("django_redislock"), "filters", [lambda record: 1 / 0])
    Lock("a").acquire()
    assert force_release("a")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_acquisitions_and_releases_are_logged_at_debug_level(crowd: Crowd, caplog: pytest.LogCaptureFixture) -> None:
    me, lock = crowd(), Lock("a b")
    with caplog.at_level(logging.DEBUG, "django_redislock"):
        me(lock, "acquire")
        fence = str(me.read(lambda: lock.fence))
        me(lock, "release")
    ((acquired,), (released,)) = messages(caplog, "acquired"), messages(caplog, "released")
    assert (acquired["name"], acquired["fence"], released["name"], released["fence"]) == ("a b", fence, "a b", fence)
    assert re.fullmatch(r"\d\.\d{6}", acquired["waited"])
