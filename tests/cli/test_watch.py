"""``redislocks list --watch`` prints the list again and again."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_redislock.cli import watch as watching
from tests.cli.conftest import NOWHERE, InProcess, hold, redislocks
from tests.helpers.actors import GENEROUS

Pauses = Callable[..., list[float]]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    """Do these things between the lists, then interrupt."""

    def pauses(*deeds: Callable[[], Any]) -> list[float]:
        rest, taken = list(deeds), []

        def pause(seconds: float) -> None:
            taken.append(seconds)
            if not rest:
                raise KeyboardInterrupt
            rest.pop(0)()

        monkeypatch.setattr(watching, "pause", pause)
        return taken

    return pauses


def test_it_lists_again_and_again_until_interrupted(pauses: Pauses) -> None:
    taken = pauses(lambda: hold("order:42"))
    head = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, every 2 s\n"
    first, second = re.split(head, redislocks("list", "--watch"), flags=re.M)[1:]
    assert first == "No locks are held.\n\n"
    assert "order:42" in second
    assert taken == [2.0, 2.0]


def test_it_looks_as_often_as_told(pauses: Pauses) -> None:
    taken = pauses()
    assert "every 0.5 s" in redislocks("list", "order:*", "--watch", "0.5")
    assert taken == [0.5]


def test_as_json_it_is_a_line_each_time(pauses: Pauses) -> None:
    pauses(lambda: hold("order:42"))
    lines = redislocks("list", "--watch", "--format=json").splitlines()
    assert [[lock["name"] for lock in json.loads(line)] for line in lines] == [[], ["order:42"]]


@pytest.mark.complete
def test_it_goes_on_when_redis_is_out_of_reach(pauses: Pauses) -> None:
    pauses(lambda: None)
    with override_settings(CACHES=NOWHERE):
        assert redislocks("list", "--watch").count("Redis cannot be reached") == 2
        with pytest.raises(CommandError, match="cannot be reached"):
            redislocks("list", "--watch", "--format=json")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_name_leaves_room_for_the_rest_on_a_terminal(pauses: Pauses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    hold("order:" + "x" * 200)
    pauses()
    out = Terminal()
    call_command("redislocks", "list", "--watch", stdout=out, no_color=True)
    (row,) = [line.partition("\x1b")[0] for line in out.getvalue().splitlines() if line.startswith("order:")]
    assert len(row) <= 100
    assert row.endswith("  0")


def test_it_stays_in_place_on_a_terminal(pauses: Pauses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "6")
    for number in range(9):
        hold(f"order:{number}")
    pauses()
    out = Terminal()
    call_command("redislocks", "list", "--watch", stdout=out, no_color=True)
    text = out.getvalue()
    assert text.startswith("\x1b[H")
    assert text.count("\n") == 5  # the last line of the screen is for the cursor
    assert "order:1" in text
    assert "order:2" not in text
    assert "... and 7 more lines\x1b[K" in text
    call_command("redislocks", "list", "order:8", "--watch", stdout=out, no_color=True)
    assert out.getvalue().endswith("0\x1b[K\x1b[J\x1b[?7h\n")


def test_the_interval_must_be_seconds() -> None:
    with pytest.raises(CommandError, match=r"'order:\*' is not a number of seconds"):
        redislocks("list", "--watch", "order:*")
    with pytest.raises(CommandError, match=r"at least 0\.001"):
        redislocks("list", "--watch=0")


@pytest.fixture
def watched(in_process: InProcess) -> subprocess.Popen[str]:
    """A process with ``--watch`` that has begun to print."""
    process = in_process("list", "--watch", "0.05", "--settings=tests.settings", stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def test_ctrl_c_ends_it_silently(watched: subprocess.Popen[str]) -> None:
    assert watched.stdout is not None
    for _ in range(3):
        watched.stdout.readline()
    watched.send_signal(signal.SIGINT)
    _, err = watched.communicate(timeout=GENEROUS)
    assert (watched.returncode, err) == (0, "")


def test_a_closed_pipe_ends_it_silently(watched: subprocess.Popen[str]) -> None:
    assert watched.stdout is not None
    assert watched.stderr is not None
    watched.stdout.close()  # | head -n 1
    assert (watched.wait(GENEROUS), watched.stderr.read()) == (128 + signal.SIGPIPE, "")
