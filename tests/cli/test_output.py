"""Where the command prints: other encodings, texts that would steer the terminal, streams that are full or closed, and
Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from django_redislock import Lock, LockPool, get_lock
from tests.cli.conftest import (
    Answer,
    Done,
    Eventually,
    InProcess,
    Terminal,
    WaitFor,
    fails,
    held,
    hold,
    main,
    redislocks,
)
from tests.helpers.actors import GENEROUS
from tests.helpers.streams import Full
from tests.inside import PREFIX
from tests.lock.texts import ENCODABLE


def test_a_terminal_of_another_encoding_gets_escapes() -> None:
    hold("größe:鍵")
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="latin-1", write_through=True) as out:
        call_command("redislocks", "list", stdout=out)
        assert "größe:\\u9375  ".encode("latin-1") in raw.getvalue()


# -- malicious names, notes, patterns and values ----------------------------------------------------------------------


def harmless(printed: str) -> bool:
    return all(line.isprintable() for line in printed.split("\n"))


@pytest.mark.parametrize("text", ENCODABLE, ids=ascii)
def test_notes_purposes_and_members_are_shown_harmlessly_and_as_they_are_to_programs(
    text: str, wait_for: WaitFor
) -> None:
    pool: LockPool = LockPool("accounts")
    pool.assign([text])
    with Lock("a", note=text, purpose=text), pool.acquire(blocking_timeout=0) as member:
        waiting = wait_for("a", note=text)
        shown = [redislocks(*arguments) for arguments in (["list", "a"], ["show", "a"], ["pool", "accounts"])]
        told = json.loads(redislocks("show", "a", "--format", "json"))
    assert harmless("".join(shown))
    assert [len(printed.splitlines()) for printed in shown[:1]] == [2]
    assert member.name[:13] in shown[2]
    assert told["note"] == told["queue"][0]["note"] == text
    assert waiting.result(GENEROUS)


def test_foreign_values_cannot_control_the_terminal(client: redis.Redis) -> None:
    names = ["a\u202eb", "\u2066x", "soft\u00adhyphen", "\u2028next"]
    for name in names:
        value = f"\x1b[2J{'x' * 22} c c 1 1 - \x1b[2Jowner\u202e\r\n\x07note"
        client.set(f"{PREFIX}lock:{name}", value, px=60_000)
        client.zadd(f"{PREFIX}index", {name: 9e15})
    listed = redislocks("list")
    assert len(listed.splitlines()) == 1 + len(names)
    assert harmless(listed + redislocks("clear", "--all", "--dry-run"))
    assert harmless("".join(redislocks("show", name) for name in names))
    text = redislocks("list", "--format", "json")
    assert text.isascii()
    assert sorted(lock["name"] for lock in json.loads(text)) == sorted(names)
    assert harmless(redislocks("clear", "--all", "--noinput"))


@pytest.mark.parametrize("command", [["show"], ["clear", "--noinput"], ["run"], ["pool"]], ids=" ".join)
@pytest.mark.parametrize("name", ["a\x1b[2J", "x" * 608, "", "\ud800", "a\nb"], ids=lambda name: ascii(name)[:20])
def test_an_invalid_name_is_refused_with_a_short_error(command: list[str], name: str) -> None:
    with pytest.raises(CommandError) as caught:
        redislocks(*command, name, *(["--", "true"] if command == ["run"] else []))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


# -- a pipe that is closed, a disk that is full -----------------------------------------------------------------------


def closed_pipe(_: ExitStack) -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full_pipe(stack: ExitStack) -> int:
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 65536)
    return writing


def full_disk(_: ExitStack) -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize(("make", "status"), [(closed_pipe, 128 + signal.SIGPIPE), (full_disk, 74)])
def test_an_output_that_cannot_be_written_has_an_exit_status_of_its_own(
    make: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    with ExitStack() as stack, os.fdopen(make(stack), "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main("list") == status
    assert errors.getvalue() == (
        "" if status != 74 else "CommandError: Could not write the output: No space left on device\n"
    )


@pytest.mark.parametrize(
    ("make", "error"), [(closed_pipe, BrokenPipeError), (full_disk, OSError), (full_pipe, BlockingIOError)]
)
def test_in_a_call_from_code_the_error_itself_propagates(make: Any, error: type[Exception]) -> None:
    with ExitStack() as stack, os.fdopen(make(stack), "wb", buffering=0) as raw:
        out = io.TextIOWrapper(raw, write_through=True)
        with pytest.raises(error):
            call_command("redislocks", "list", stdout=out)
        out.detach()


def test_an_unbuffered_output_is_written_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sluggish(io.FileIO):
        def write(self, data: Any, /) -> int:
            return super().write(data[:100])

    hold("order:1", note="ä" * 300)
    with tempfile.TemporaryFile() as file:
        out = io.TextIOWrapper(Sluggish(file.fileno(), "wb", closefd=False), encoding="utf-8", write_through=True)
        call_command("redislocks", "list", "--format", "json", stdout=out)
        file.seek(0)
        printed = file.read()
    assert printed.endswith(b"]\n")
    assert json.loads(printed)[0]["note"] == "ä" * 300


def test_a_closed_pipe_of_an_unbuffered_output_is_no_error(in_process: InProcess) -> None:
    """A single write to the pipe takes only a part of the output."""
    hold(*(f"order:{number}" for number in range(300)))
    process = in_process("list", "--format=json", environment={"PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    assert process.stderr is not None
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    assert (process.wait(GENEROUS), process.stderr.read()) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_full_disk_is_reported_once(unbuffered: str, done: Done) -> None:
    with open("/dev/full", "w") as full:
        status, _, err = done("list", stdout=full, environment={"PYTHONUNBUFFERED": unbuffered})
    assert (status, err) == (74, "CommandError: Could not write the output: No space left on device\n")


# -- streams that are closed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stderr", [None, Full()], ids=["closed", "full"])
def test_streams_that_are_closed_or_full_change_nothing_and_no_exit_status(
    stderr: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold("a")
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(sys, "stdout", None)
    assert main("show", "a", "--using=nowhere") == 2
    assert main("list", "--using=memory") == 0  # which warns
    assert main("list") == main("show", "a") == 0
    assert main("clear", "a", "--noinput") == 0
    assert not held("a")


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_nothing_happens_if_a_stream_needed_for_the_question_is_closed(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold("a")
    monkeypatch.setattr(sys, closed, None)
    problem = r"^Nothing was force-released: nobody is there to confirm it\. Give --noinput\.$"
    fails(1, problem, "clear", "a")
    assert held("a")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_busy_lock_is_reported_only_on_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    with Lock("a"):
        assert main("run", "a", "--", "true") == 75
    told = "LockBusy: Could not acquire the lock a: held by "
    assert errors.getvalue()[: len(told)] == told * terminal


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------

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
def test_ctrl_c_ends_every_subcommand_while_a_server_hangs(
    arguments: str, hung: socket.socket, in_process: InProcess, tmp_path: Path
) -> None:
    (tmp_path / "hung.py").write_text(HUNG.format(port=hung.getsockname()[1]))
    command, *words = arguments.split()
    process = in_process(command, f"--pythonpath={tmp_path}", *words, site="hung")
    connection, _ = hung.accept()
    with connection:
        assert connection.recv(1)  # it waits for the reply from now on
        assert interrupt(process) == (INTERRUPTED, "")


def test_ctrl_c_at_the_question_clears_nothing(in_process: InProcess, answer: Answer) -> None:
    hold("a")
    process = in_process("clear", "a")
    assert process.stderr is not None
    asked = ""
    while not asked.endswith("[y/N] "):
        asked += process.stderr.read(1)
    assert interrupt(process) == (INTERRUPTED, "\nNothing was force-released.\n")

    def strike() -> None:
        raise KeyboardInterrupt

    answer("yes", before=strike)
    with pytest.raises(KeyboardInterrupt):  # a caller from code gets the interrupt itself
        redislocks("clear", "a")
    assert main("clear", "a") == INTERRUPTED
    assert held("a")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_waits_for_the_lock_leaves_no_place_in_the_queue(
    number: int, in_process: InProcess, eventually: Eventually
) -> None:
    hold("a")
    process = in_process("run", "a", "--blocking-timeout=600", "--", "true")
    eventually(lambda: (info := get_lock("a")) and info.waiters)
    process.send_signal(number)
    assert (process.communicate(timeout=GENEROUS)[1], process.returncode) == ("", 128 + number)
    eventually(lambda: (info := get_lock("a")) and not info.waiters)
