"""One logger, and messages that a program can take apart. (conftest.py compares all of them with docs/signals.rst.)"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import Lock, LockLost, force_release
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


def test_acquisitions_releases_and_losses_are_logged_and_signalled_alike(
    crowd: Crowd, caplog: pytest.LogCaptureFixture, heard: list[tuple[str, dict[str, Any]]],
    eventually: Callable[[Callable[[], Any]], Any],
) -> None:  # fmt: skip
    me, lock = crowd(), Lock("a b")
    with caplog.at_level(logging.DEBUG, "django_redislock"):
        me(lock, "acquire")
        fence = str(me.read(lambda: lock.fence))
        me(lock, "release")
    ((acquired,), (released,)) = messages(caplog, "acquired"), messages(caplog, "released")
    assert (acquired["name"], acquired["fence"], released["name"], released["fence"]) == ("a b", fence, "a b", fence)
    assert re.fullmatch(r"\d\.\d{6}", acquired["waited"])
    assert re.fullmatch(r"\d\.\d{6}", released["held"])
    me(lock, "acquire")
    force_release("a b", by="jo from ops")
    with pytest.raises(LockLost):
        me(lock, "release")
    eventually(lambda: {"force", "lost"} <= {which for which, _ in heard})  # the loss is told by a thread of its own
    ((forced,), (lost,)) = messages(caplog, "force-released"), messages(caplog, "lost")
    signals = dict(heard)
    assert forced["by"] == signals["force"]["by"] == "jo from ops"
    assert (lost["name"], lost["reason"]) == ("a b", signals["lost"]["reason"])
    assert forced["owner"].count(":") >= 2
