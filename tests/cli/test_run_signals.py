"""``redislocks run``: signals, terminals, and a command that is killed."""

from __future__ import annotations

import errno
import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, get_lock
from django_redislock.cli import program as programs
from django_redislock.cli import run as runner
from django_redislock.cli.program import Relay
from django_redislock.management.commands.redislocks import Command
from tests.cli.conftest import ROOT, Eventually, InProcess
from tests.cli.programs import FOREVER, NAME, is_running, number_in, sh
from tests.helpers.actors import GENEROUS

pytestmark = pytest.mark.usefixtures("no_terminal")


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
def test_a_signal_to_the_command_reaches_the_program(name: str) -> None:
    assert sh(f"trap 'exit 7' {name}; kill -{name} $PPID; {FOREVER}") == 7


def test_a_program_without_a_handler_dies_of_the_signal() -> None:
    assert sh(f"kill -TERM $PPID; {FOREVER}") == 128 + signal.SIGTERM


def test_signals_reach_the_programs_children_and_the_lock_is_held_until_they_have_ended(
    tmp_path: Path,
) -> None:
    child = f"trap 'sleep 0.3; echo cleaned > {tmp_path}/out; exit' TERM; touch {tmp_path}/ready; {FOREVER}"
    script = f'sh -c "{child}" & while [ ! -e {tmp_path}/ready ]; do sleep 0.02; done; kill -TERM $PPID; {FOREVER}'
    assert sh(script) == 128 + signal.SIGTERM
    assert (tmp_path / "out").read_text() == "cleaned\n"


def test_background_children_of_an_ended_program_are_not_waited_for(tmp_path: Path) -> None:
    begin = monotonic()
    assert sh(f"sleep 30 & echo $! > {tmp_path}/pid") == 0
    assert monotonic() - begin < 20
    os.kill(number_in(tmp_path / "pid"), signal.SIGKILL)


def test_process_1_of_a_container_does_not_wait_for_zombies_that_are_its_own(process_1: None, tmp_path: Path) -> None:
    outlive = "while kill -0 $PPID; do sleep 0.02; done; exit"
    child = f"trap '{outlive}' TERM; touch {tmp_path}/ready; {FOREVER}".replace("$", "\\$")
    script = f'sh -c "{child}" & until [ -e {tmp_path}/ready ]; do sleep 0.02; done; kill -TERM $PPID; {FOREVER}'
    assert sh(script) == 128 + signal.SIGTERM


def test_signals_that_were_ignored_stay_so_for_the_program_too() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert sh("kill -HUP $PPID; kill -HUP $$; exit 5") == 5
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_exit_status_survives_an_ignored_sigchld() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert sh("exit 5") == 5
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_signal_handlers_are_restored_when_the_program_has_ended() -> None:
    before = [signal.getsignal(number) for number in programs.RELAYED]
    assert sh("exit 0") == 0
    assert [signal.getsignal(number) for number in programs.RELAYED] == before


def test_a_signal_ends_the_wait_for_the_lock_and_leaves_no_place_in_the_queue(
    run_in_process: InProcess, eventually: Eventually, client: redis.Redis
) -> None:
    # not in this process: an exception inside coverage's own code would leave its mutex locked
    queue = f"redislock{{0}}:queue:{NAME}"
    with Lock(NAME):
        process = run_in_process(NAME, "--blocking-timeout", "60", "--", "true")
        eventually(lambda: client.zcard(queue))
        process.send_signal(signal.SIGTERM)
        assert process.wait(GENEROUS) == 128 + signal.SIGTERM
        eventually(lambda: not client.zcard(queue))


def test_a_signal_before_the_program_starts_ends_the_command() -> None:
    def wait() -> None:
        with Relay():
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(GENEROUS)

    with pytest.raises(SystemExit) as caught:
        wait()
    assert caught.value.code == 128 + signal.SIGTERM


def test_a_signal_that_comes_while_the_program_is_being_started_reaches_it() -> None:
    got: list[int] = []

    class Started:
        signal = staticmethod(got.append)

    def make() -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return Started()

    with Relay() as relay:
        relay.start(make)
    assert got == [signal.SIGTERM]


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Programs belong to another user. Returns a shell command that waits until the n-th signal was refused."""
    kill = os.kill
    refused: list[int] = []

    def forbidden(pid: int, number: int) -> None:
        kill(pid, 0)
        if number:
            refused.append(number)
            (tmp_path / str(len(refused))).touch()
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "kill", forbidden)
    return f"until [ -e {tmp_path}/$n ]; do sleep 0.02; done"


@pytest.mark.parametrize(("name", "warns"), [("USR1", False), ("TERM", True)])
def test_a_program_of_another_user_cannot_be_ended_and_that_is_reported_once(
    name: str, warns: bool, foreign: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sh(f"for n in 1 2; do kill -{name} $PPID; {foreign}; done; exit 7") == 7
    assert len(re.findall(r"^Cannot end the program \(process \d+\): .*\n", capfd.readouterr().err, re.M)) == warns


def test_it_is_not_reported_into_another_file_that_has_the_number_of_a_closed_stderr(
    foreign: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert sh(f"n=1; kill -TERM $PPID; {foreign}; exit 7") == 7
    assert capfd.readouterr().err == ""


def test_it_is_not_reported_if_stderr_cannot_be_written(foreign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full(handle: int, data: bytes) -> int:
        if handle == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data)

    monkeypatch.setattr(os, "write", full)
    assert sh(f"n=1; kill -TERM $PPID; {foreign}; exit 7") == 7


# -- kill -9 of the command -------------------------------------------------------------------------------------------


TELLS = "trap ': > {folder}/told' USR1"


def kill_when_guarded(process: subprocess.Popen[str], folder: Path, eventually: Eventually) -> None:
    """kill -9, but not in the short time in which the program already runs and the guard does not know of it yet."""

    def is_told() -> bool:
        process.send_signal(signal.SIGUSR1)  # a command that passes it on has already told the guard
        return (folder / "told").exists()

    eventually(is_told)  # sent again, because dash loses a signal that it gets while it starts a command
    process.kill()


def test_the_program_and_its_children_end_when_the_command_is_killed(
    run_in_process: InProcess, eventually: Eventually, tmp_path: Path
) -> None:
    begun = f"{TELLS.format(folder=tmp_path)}; sh -c 'trap \"\" USR1; echo $$ > {tmp_path}/child; {FOREVER}'"
    script = f"{begun} & until [ -s {tmp_path}/child ]; do sleep 0.02; done; echo $$ > {tmp_path}/parent; {FOREVER}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = run_in_process(NAME, "--", "sh", "-c", script, **quiet)
    parent = eventually(lambda: number_in(tmp_path / "parent"))
    child = number_in(tmp_path / "child")
    kill_when_guarded(process, tmp_path, eventually)
    eventually(lambda: not is_running(parent) and not is_running(child))
    assert get_lock(NAME) is not None  # until its TTL


def test_the_guard_kills_a_program_that_ignores_sigterm(
    run_in_process: InProcess, eventually: Eventually, tmp_path: Path
) -> None:
    script = f"trap '' TERM; {TELLS.format(folder=tmp_path)}; echo $$ > {tmp_path}/pid; {FOREVER}"
    process = run_in_process(NAME, "--kill-after=1", "--", "sh", "-c", script)
    pid = eventually(lambda: number_in(tmp_path / "pid"))
    kill_when_guarded(process, tmp_path, eventually)
    eventually(lambda: not is_running(pid))


@pytest.mark.parametrize("shell", ["/no/such/shell", "/bin/true"], ids=["none", "gone"])
def test_without_a_guard_programs_run_all_the_same(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SHELL", shell)
    assert sh("sleep 0.2; exit 3") == 3


# -- at a terminal ----------------------------------------------------------------------------------------------------


# gives the terminal of its input to a process that has begun a session
AT_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "django", "redislocks", *sys.argv[1:]])
"""


def read_until(handle: int, word: bytes) -> None:
    seen = b""
    while word not in seen:
        seen += os.read(handle, 1024)


def test_at_a_terminal_the_program_stays_in_the_foreground_and_may_read() -> None:
    script = f"trap 'echo interrupted; exit 9' INT; read line < /dev/tty; echo got $line; {FOREVER}"
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", AT_TERMINAL, "run", NAME, "--", "sh", "-c", script],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        start_new_session=True,
        stdin=end,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    try:
        os.write(terminal, b"hello\n")
        read_until(terminal, b"got hello")
        os.write(terminal, b"\x03")
        read_until(terminal, b"interrupted")
        assert process.wait(GENEROUS) == 9
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert get_lock(NAME) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("errors", "told"), [(Terminal(), "LockBusy: Could not acquire the lock nightly: held by "), (io.StringIO(), "")]
)
def test_a_busy_lock_is_reported_only_on_a_terminal(errors: io.StringIO, told: str) -> None:
    with Lock(NAME), pytest.raises(SystemExit) as caught:
        Command(stderr=errors).run_from_argv(["manage.py", "redislocks", "run", NAME, "--", "true"])
    assert caught.value.code == 75
    assert errors.getvalue()[: len(told)] == told
    assert bool(errors.getvalue()) == bool(told)


def test_from_a_shared_process_group_only_the_program_is_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "has_terminal", lambda: True)
    # normally the terminal has already sent SIGINT to both; here nobody has, so the program does not get it
    assert sh(f"trap 'exit 8' INT; trap 'exit 7' TERM; kill -INT $PPID; kill -TERM $PPID; {FOREVER}") == 7


def test_there_is_no_terminal_where_input_comes_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not programs.has_terminal()
    monkeypatch.setattr(os, "isatty", lambda handle: True)
    assert not programs.has_terminal()  # a terminal that this process does not control
