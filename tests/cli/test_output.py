"""What the command does if streams cannot be written to, or are closed."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management.base import CommandError, OutputWrapper

from django_redislock.cli.output import UNWRITTEN, Output
from django_redislock.management.commands.redislocks import Command
from tests.helpers.streams import Full


def output(out: Any, err: Any = None) -> Output:
    """The output of a command that was called from a shell."""
    command: Any = SimpleNamespace(stdout=OutputWrapper(out), stderr=OutputWrapper(err), _called_from_command_line=True)
    return Output(command)


def test_a_full_disk_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[tuple[int, int]] = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(fileno=lambda: 1))
    monkeypatch.setattr(os, "dup2", lambda *files: left.append(files))
    with pytest.raises(CommandError, match=r"^Could not write the output: No space left on device$") as caught:
        output(Full()).say("much")
    assert caught.value.returncode == UNWRITTEN
    assert left[0][1] == 1
    os.close(left[0][0])


def test_nothing_is_written_to_closed_streams() -> None:
    closed = output(None)
    closed.say("a")
    closed.warn("b")
    err = io.StringIO()
    output(None, err).warn("c\n")
    assert err.getvalue() == "c\n"


def test_warnings_that_cannot_be_written_stop_nothing() -> None:
    output(io.StringIO(), Full()).warn("a")


@pytest.mark.parametrize("stderr", [None, Full()], ids=["closed", "full"])
def test_the_exit_status_stays_the_same_where_errors_cannot_be_written(
    stderr: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with pytest.raises(SystemExit) as caught:
        Command().run_from_argv(["manage.py", "redislocks", "show", "a", "--using=nowhere"])
    assert caught.value.code == 2


def test_a_closed_stream_means_that_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(EOFError):
        output(None).ask("Really?")
