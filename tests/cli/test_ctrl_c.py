"""Ctrl-C ends every subcommand with 130, as shells expect, and without a traceback."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import load_command_class

from django_redislock import Lock, get_lock
from tests.cli.conftest import Eventually, InProcess, hold, redislocks
from tests.helpers.actors import GENEROUS

INTERRUPTED = 128 + signal.SIGINT

HUNG = """
from tests.settings import *

CACHES["default"]["LOCATION"] = "redis://127.0.0.1:{port}/0?socket_timeout=600"
DATABASES["default"] = {{
    "ENGINE": "django.db.backends.postgresql", "NAME": "site", "HOST": "127.0.0.1", "PORT": {port}
}}
"""


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=GENEROUS)
    return process.returncode, err


@pytest.fixture
def hung() -> Iterator[socket.socket]:
    """A server, of whatever kind, that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(GENEROUS)
        yield listening


@pytest.mark.parametrize(
    "arguments",
    ["list", "show a", "pool a", "pool", "clear a --noinput", "fences prune --older-than=1d", "run a -- true"],
)
def test_while_a_server_hangs(arguments: str, hung: socket.socket, in_process: InProcess, tmp_path: Path) -> None:
    (tmp_path / "hung.py").write_text(HUNG.format(port=hung.getsockname()[1]))
    words = arguments.split()
    process = in_process(words[0], "--settings=hung", f"--pythonpath={tmp_path}", *words[1:])
    connection, _ = hung.accept()
    with connection:
        assert connection.recv(1)  # it waits for the reply from now on
        assert interrupt(process) == (INTERRUPTED, "")


def test_at_the_question_nothing_is_cleared(in_process: InProcess) -> None:
    hold("a")
    process = in_process("clear", "a", "--settings=tests.settings")
    assert process.stderr is not None
    asked = ""
    while not asked.endswith("[y/N] "):
        asked += process.stderr.read(1)
    assert interrupt(process) == (INTERRUPTED, "\nNothing was force-released.\n")
    assert Lock("a").locked()


def test_a_caller_from_code_gets_the_interrupt_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def strike() -> str:
        raise KeyboardInterrupt

    hold("a")
    monkeypatch.setattr("builtins.input", strike)
    with pytest.raises(KeyboardInterrupt):
        redislocks("clear", "a")
    with pytest.raises(SystemExit) as ended:  # called from a shell
        load_command_class("django_redislock", "redislocks").run_from_argv(["manage.py", "redislocks", "clear", "a"])
    assert ended.value.code == INTERRUPTED
    assert Lock("a").locked()


def test_while_it_waits_for_the_lock_it_leaves_the_queue(in_process: InProcess, eventually: Eventually) -> None:
    hold("a")
    process = in_process("run", "--settings=tests.settings", "a", "--blocking-timeout=600", "--", "true")
    eventually(lambda: (info := get_lock("a")) and info.waiters)
    assert interrupt(process) == (INTERRUPTED, "")
    eventually(lambda: (info := get_lock("a")) and not info.waiters)
