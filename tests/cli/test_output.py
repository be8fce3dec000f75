"""Where the command prints: encodings, texts that would steer a terminal, streams that are full or closed; Ctrl-C."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_redislock import Lock, LockPool, get_lock
from tests.cli.conftest import Answer, InProcess, Terminal, WaitFor, fails, held, main, redislocks
from tests.helpers.actors import GENEROUS, until
from tests.helpers.processes import Full
from tests.helpers.state import hold
from tests.inside import PREFIX

INTERRUPTED = 128 + signal.SIGINT


def test_a_terminal_of_another_encoding_gets_escapes() -> None:
    hold("größe:鍵")
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="latin-1", write_through=True) as out:
        call_command("redislocks", "list", stdout=out)
        assert "größe:\\u9375  ".encode("latin-1") in raw.getvalue()


@pytest.mark.parametrize(
    "text", ["a\nb\r\n\ttab", "\x1b[2J\x1b]0;owned\x07", "\u202egpj.exe", "a\0b", "\u3164"], ids=ascii
)
def test_texts_are_shown_harmlessly_and_as_they_are_to_programs(text: str, wait_for: WaitFor, client: Any) -> None:
    client.set(f"{PREFIX}lock:foreign\u2028", f"{'x' * 22} c c 1 1 - {text}owner\u202e", px=60_000)
    client.zadd(f"{PREFIX}index", {"foreign\u2028": 9e15})
    pool: LockPool = LockPool("accounts")
    pool.assign([text])
    with Lock("a", note=text, purpose=text), pool.acquire(blocking_timeout=0) as member:
        waiting = wait_for("a", note=text)
        commands = ["list", "show a", "show foreign\u2028", "clear --all --dry-run", "pool accounts"]
        shown = [redislocks(*command.split(" ")) for command in commands]
        told = json.loads(redislocks("show", "a", "--format", "json"))
        listed = redislocks("list", "--format", "json")
    assert all(line.isprintable() for line in "".join(shown).split("\n"))
    assert not any(text in one for one in shown)
    assert len(shown[0].splitlines()) == 4
    assert member.name[:13] in shown[4]
    assert told["note"] == told["queue"][0]["note"] == text
    assert listed.isascii()
    assert waiting.result(GENEROUS)


@pytest.mark.parametrize("command", [["show"], ["clear", "--noinput"], ["run"], ["pool"]], ids=" ".join)
@pytest.mark.parametrize("name", ["a\x1b[2J", "x" * 608, ""], ids=lambda name: ascii(name)[:20])
def test_an_invalid_name_is_refused_with_a_short_error(command: list[str], name: str) -> None:
    with pytest.raises(CommandError) as caught:
        redislocks(*command, name, *(["--", "true"] if command == ["run"] else []))
    assert re.search(r"contains '\\x1b'|has 608 bytes; at most|must not be empty", str(caught.value))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize(("make", "status"), [(closed_pipe, 128 + signal.SIGPIPE), (full_disk, 74)])
def test_an_output_that_cannot_be_written_has_a_status_of_its_own(make: Any, status: int, monkeypatch: Any) -> None:
    hold("a", "b", "c")
    monkeypatch.setattr(sys, "stderr", errors := io.StringIO())
    with os.fdopen(make(), "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main("clear", "--all", "--noinput") == status
    assert not held("abc")
    told = "CommandError: Could not write the output: No space left on device\n"
    assert errors.getvalue().endswith(told) == (status == 74)


@pytest.mark.parametrize(("make", "error"), [(closed_pipe, BrokenPipeError), (full_disk, OSError)])
def test_in_a_call_from_code_the_error_itself_propagates(make: Any, error: type[Exception]) -> None:
    with os.fdopen(make(), "wb", buffering=0) as raw:
        out = io.TextIOWrapper(raw, write_through=True)
        with pytest.raises(error):
            call_command("redislocks", "list", stdout=out)
        out.detach()


@pytest.mark.parametrize("stderr", [None, Full()], ids=["closed", "full"])
def test_streams_that_are_closed_or_full_change_no_exit_status(stderr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hold("a")
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(sys, "stdout", None)
    assert main("list", "--using=memory") == 0  # which warns
    if stderr is None:
        fails(1, r"^Nothing was force-released: nobody is there to confirm it\. Give --noinput\.$", "clear", "a")
    assert held("a")
    assert main("clear", "a", "--noinput") == 0
    assert not held("a")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_busy_lock_is_reported_only_on_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", errors := Terminal() if terminal else io.StringIO())
    told = "LockBusy: Could not acquire the lock 'a' at once: held by "
    hold("a")
    assert main("run", "a", "--", "true") == 75
    assert errors.getvalue()[: len(told)] == told * terminal
    assert main("run", "a", "-v2", "--", "true") == 75
    assert told in errors.getvalue()


def interrupt(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str]:
    process.send_signal(number)
    _, err = process.communicate(timeout=GENEROUS)
    return process.returncode, err


HUNG = """
from tests.settings import *
CACHES["default"]["LOCATION"] = "redis://127.0.0.1:{0}/0?socket_timeout=600"
DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", "NAME": "x", "HOST": "127.0.0.1", "PORT": {0}}}}}
"""


@pytest.mark.parametrize(
    "arguments",
    ["list", "show a", "pool a", "pool", "clear a --noinput", "fences prune --older-than=1d", "run a -- true"],
)
def test_ctrl_c_ends_every_subcommand_while_a_server_hangs(arguments: str, in_process: Any, tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hung:
        hung.settimeout(GENEROUS)
        (tmp_path / "hung.py").write_text(HUNG.format(hung.getsockname()[1]))
        command, *words = arguments.split()
        process = in_process(command, f"--pythonpath={tmp_path}", "--settings=hung", *words)
        connection, _ = hung.accept()
        with connection:
            assert connection.recv(1)  # it waits for the reply from now on
            assert interrupt(process) == (INTERRUPTED, "")


def test_ctrl_c_at_the_question_clears_nothing(answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    hold("a")
    answer("yes", before=lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # a caller from code gets the interrupt itself
        redislocks("clear", "a")
    assert main("clear", "a") == INTERRUPTED
    assert capsys.readouterr().err.endswith("\nNothing was force-released.\n")
    assert held("a")


def test_a_signal_while_it_waits_leaves_no_place_in_the_queue(in_process: InProcess) -> None:
    hold("a")
    process = in_process("run", "a", "--blocking-timeout=600", "--", "true")
    until(lambda: (info := get_lock("a")) and info.waiters)
    assert interrupt(process, signal.SIGTERM) == (128 + signal.SIGTERM, "")
    until(lambda: (info := get_lock("a")) and not info.waiters)
