"""``redislocks run``: how a program ends: by signals, when the lock is lost, when the command is killed."""

from __future__ import annotations

import errno
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_redislock import force_release, get_lock, lock_acquired
from redisserver import RedisServer
from tests.cli.conftest import NAME, Background, Eventually, InProcess, fails, sh
from tests.helpers.actors import GENEROUS
from tests.helpers.processes import ROOT
from tests.inside import guard_programs_by

pytestmark = pytest.mark.usefixtures("no_terminal")
FOREVER = "while :; do sleep 0.02; done"
SIGNALS = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"]
TERMINATED = 128 + signal.SIGTERM

AsItStarts = Callable[[Callable[[], Any]], None]


def is_running(pid: int) -> bool:
    """Whether the process runs; zombies do not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def number_in(path: Path) -> int:
    """The number in the file, as soon as a script has written it."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else 0


def until(path: Path) -> str:
    """A shell command that waits for a file."""
    return f"until [ -s {path} ]; do sleep 0.02; done"


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_to_the_command_reaches_the_program_and_its_handler_is_restored(name: str) -> None:
    before = [signal.getsignal(getattr(signal, f"SIG{each}")) for each in SIGNALS]
    assert sh(f"trap 'exit 7' {name}; kill -{name} $PPID; {FOREVER}") == 7
    assert [signal.getsignal(getattr(signal, f"SIG{each}")) for each in SIGNALS] == before


def test_a_program_without_a_handler_dies_of_the_signal() -> None:
    assert sh(f"kill -TERM $PPID; {FOREVER}") == TERMINATED


def test_signals_reach_the_programs_children_and_the_lock_is_held_until_they_have_ended(tmp_path: Path) -> None:
    child = f"trap 'sleep 0.3; echo cleaned > {tmp_path}/out; exit' TERM; echo > {tmp_path}/ready; {FOREVER}"
    assert sh(f'sh -c "{child}" & {until(tmp_path / "ready")}; kill -TERM $PPID; {FOREVER}') == TERMINATED
    assert (tmp_path / "out").read_text() == "cleaned\n"


def test_background_children_of_an_ended_program_are_not_waited_for(tmp_path: Path) -> None:
    assert sh(f"sleep 600 & echo $! > {tmp_path}/pid") == 0
    child = number_in(tmp_path / "pid")
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


def test_process_1_of_a_container_does_not_wait_for_zombies_that_are_its_own(process_1: None, tmp_path: Path) -> None:
    outlive = "while kill -0 $PPID; do sleep 0.02; done; exit"
    child = f"trap '{outlive}' TERM; echo > {tmp_path}/ready; {FOREVER}".replace("$", "\\$")
    assert sh(f'sh -c "{child}" & {until(tmp_path / "ready")}; kill -TERM $PPID; {FOREVER}') == TERMINATED


@pytest.mark.parametrize(
    ("number", "script"), [(signal.SIGHUP, "kill -HUP $PPID; kill -HUP $$; exit 5"), (signal.SIGCHLD, "exit 5")]
)
def test_signals_that_were_ignored_stay_so_and_change_no_exit_status(number: int, script: str) -> None:
    before = signal.signal(number, signal.SIG_IGN)  # as nohup does
    try:
        assert sh(script) == 5
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_signal_before_the_program_starts_ends_the_command_and_releases_the_lock(
    eventually: Eventually, tmp_path: Path
) -> None:
    def strike(**facts: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    lock_acquired.connect(strike)
    try:
        assert sh(f"touch {tmp_path}/ran") == TERMINATED
    finally:
        lock_acquired.disconnect(strike)
    eventually(lambda: get_lock(NAME) is None)
    assert not (tmp_path / "ran").exists()


def test_a_signal_that_comes_while_the_program_is_being_started_reaches_it(as_it_starts: AsItStarts) -> None:
    as_it_starts(lambda: signal.raise_signal(signal.SIGTERM))
    assert sh(FOREVER) == TERMINATED


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Programs belong to another user. Returns a shell command that waits until the n-th signal was refused."""
    kill = os.kill
    refused: list[int] = []

    def forbidden(pid: int, number: int) -> None:
        kill(pid, 0)
        if number:
            refused.append(number)
            (tmp_path / str(len(refused))).write_text("refused")
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "kill", forbidden)
    return until(tmp_path / "$n")


@pytest.mark.parametrize(("name", "warns"), [("USR1", False), ("TERM", True)])
def test_a_program_of_another_user_cannot_be_ended_and_that_is_reported_once(
    name: str, warns: bool, foreign: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sh(f"for n in 1 2; do kill -{name} $PPID; {foreign}; done; exit 7") == 7
    assert len(re.findall(r"^Cannot end the program \(process \d+\): .*\n", capfd.readouterr().err, re.M)) == warns


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "full"])
def test_it_is_not_reported_where_stderr_is_closed_or_full(
    closed: bool, foreign: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(handle: int, data: bytes) -> int:
        if handle == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data)

    if closed:  # another file may have its number by now
        monkeypatch.setattr(sys, "stderr", None)
    else:
        monkeypatch.setattr(os, "write", full)
    assert sh(f"n=1; kill -TERM $PPID; {foreign}; exit 7") == 7
    assert capfd.readouterr().err == ""


# -- a lock that is lost ----------------------------------------------------------------------------------------------


@pytest.fixture
def lost_when_ready(background: Background, eventually: Eventually, tmp_path: Path) -> str:
    """The lock is lost after the shell command that this returns."""

    def lose() -> None:
        eventually((tmp_path / "ready").exists)
        force_release(NAME)

    background(lose)
    return f"touch {tmp_path}/ready"


def test_the_program_is_ended_when_the_lock_is_lost(lost_when_ready: str, tmp_path: Path) -> None:
    script = f"trap 'echo ended > {tmp_path}/out; exit 0' TERM; {lost_when_ready}; {FOREVER}"
    fails(76, rf"The lock '{NAME}' was lost .*force-released", "run", NAME, "--", "sh", "-c", script)
    assert (tmp_path / "out").read_text() == "ended\n"


@pytest.mark.parametrize("inherits", [False, True], ids=["ordinary", "process 1 of a container"])
def test_a_program_that_ignores_sigterm_is_killed_with_all_its_children(
    inherits: bool, request: pytest.FixtureRequest, lost_when_ready: str, tmp_path: Path
) -> None:
    if inherits:  # it would wait for zombies that are its own
        request.getfixturevalue("process_1")
    child = f"trap '' TERM; echo \\$\\$ > {tmp_path}/pid; {lost_when_ready}; {FOREVER}"
    assert sh(f'sh -c "{child}" & {FOREVER}', "--kill-after", "0.3") == 76
    assert not is_running(number_in(tmp_path / "pid"))


def test_a_stopped_program_is_ended_too(lost_when_ready: str) -> None:
    assert sh(f"{lost_when_ready}; kill -STOP $$; {FOREVER}", "--kill-after", "600") == 76


def test_a_lock_that_was_lost_before_the_program_started_ends_it_at_once(
    as_it_starts: AsItStarts, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    def lose() -> None:
        force_release(NAME)
        eventually(lambda: "event=lost" in caplog.text)

    as_it_starts(lose)
    assert sh(FOREVER, "--ttl", "1") == 76


# -- a Redis that is out of reach -------------------------------------------------------------------------------------


@pytest.fixture
def gone_when_ready(own: RedisServer, background: Background, eventually: Eventually, tmp_path: Path) -> str:
    """The server is stopped after the shell command that this returns, and writes the file ``stopped``."""

    def stop() -> None:
        eventually((tmp_path / "ready").exists)
        own.stop()
        (tmp_path / "stopped").write_text("stopped")

    background(stop)
    return f"touch {tmp_path}/ready"


@pytest.mark.complete
def test_the_program_is_ended_when_the_lock_cannot_be_renewed(gone_when_ready: str) -> None:
    assert sh(f"{gone_when_ready}; {FOREVER}", "--ttl", "0.6") == 76


def test_redis_out_of_reach_at_the_end_does_not_change_the_programs_status(
    gone_when_ready: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert sh(f"{gone_when_ready}; {until(tmp_path / 'stopped')}; exit 3", "--ttl", "60") == 3
    assert "event=not-released" in caplog.text


# -- kill -9 of the command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stubborn", [False, True], ids=["ordinary", "ignores SIGTERM"])
def test_the_program_and_its_children_end_when_the_command_is_killed(
    stubborn: bool, in_process: InProcess, eventually: Eventually, tmp_path: Path
) -> None:
    ignores = "trap '' TERM;" if stubborn else ""
    child = f"{ignores} sh -c 'trap \"\" USR1; echo $$ > {tmp_path}/child; {FOREVER}' &"
    parent = f"trap ': > {tmp_path}/told' USR1; {child} {until(tmp_path / 'child')}; echo $$ > {tmp_path}/parent"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = in_process("run", NAME, "--kill-after=1", "--", "sh", "-c", f"{parent}; {FOREVER}", **quiet)
    pids = [eventually(lambda name=name: number_in(tmp_path / name)) for name in ("parent", "child")]

    def guarded() -> bool:
        """The program already runs for a short time in which its guard does not know of it yet."""
        process.send_signal(signal.SIGUSR1)  # again and again: dash loses a signal while it starts a command
        return (tmp_path / "told").exists()

    eventually(guarded)
    process.kill()
    eventually(lambda: not any(map(is_running, pids)))
    assert get_lock(NAME) is not None  # until its TTL


@pytest.mark.parametrize("shell", ["/no/such/shell", "/bin/true"], ids=["none", "gone"])
def test_without_a_guard_programs_run_all_the_same(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard_programs_by(shell, monkeypatch)
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


@pytest.mark.parametrize("controls", [True, False])
def test_from_a_terminal_that_it_controls_only_the_program_is_signalled(
    controls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def group(handle: int) -> int:
        if controls:
            return os.getpgrp()
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))

    monkeypatch.setattr(os, "isatty", lambda handle: True)
    monkeypatch.setattr(os, "tcgetpgrp", group)
    # such a terminal has already sent SIGINT to both; here nobody has, so the program does not get it
    script = f"trap 'exit 8' INT; trap 'exit 7' TERM; kill -INT $PPID; kill -TERM $PPID; {FOREVER}"
    assert sh(script) == (7 if controls else 8)
