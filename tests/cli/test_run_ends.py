"""``redislocks run``: how a program ends: by signals, when the lock is lost, when the command is killed."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from django_redislock import force_release, get_lock, lock_acquired
from redisserver import RedisServer
from tests.cli.conftest import NAME, Background, Eventually, InProcess, fails, sh
from tests.inside import guard_programs_by

pytestmark = pytest.mark.usefixtures("no_terminal")
FOREVER = "while :; do sleep 0.02; done"
SIGNALS = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"]
TERMINATED = 128 + signal.SIGTERM


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


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_to_the_command_reaches_the_program_and_its_handler_is_restored(name: str) -> None:
    before = [signal.getsignal(getattr(signal, f"SIG{each}")) for each in SIGNALS]
    assert sh(f"trap 'exit 7' {name}; kill -{name} $PPID; {FOREVER}") == 7
    assert [signal.getsignal(getattr(signal, f"SIG{each}")) for each in SIGNALS] == before


def test_signals_reach_the_programs_children_and_the_lock_is_held_until_they_have_ended(tmp_path: Path) -> None:
    child = f"trap 'sleep 0.3; echo cleaned > {tmp_path}/out; exit' TERM; echo > {tmp_path}/ready; {FOREVER}"
    assert sh(f'sh -c "{child}" & {until(tmp_path / "ready")}; kill -TERM $PPID; {FOREVER}') == TERMINATED
    assert (tmp_path / "out").read_text() == "cleaned\n"


def test_background_children_of_an_ended_program_are_not_waited_for(tmp_path: Path) -> None:
    assert sh(f"sleep 600 & echo $! > {tmp_path}/pid") == 0
    child = number_in(tmp_path / "pid")
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


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


def test_a_signal_before_the_program_starts_ends_the_command_and_one_while_it_starts_reaches_it(
    eventually: Eventually, tmp_path: Path, as_it_starts: Any
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
    as_it_starts(strike)
    assert sh(FOREVER) == TERMINATED


@pytest.mark.parametrize(("name", "warns"), [("USR1", False), ("TERM", True)])
def test_a_program_of_another_user_cannot_be_ended_and_that_is_reported_once(
    name: str, warns: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kill = os.kill
    refused: list[int] = []

    def forbidden(pid: int, number: int) -> None:
        kill(pid, 0)
        if number:
            refused.append(number)
            (tmp_path / str(len(refused))).write_text("refused")
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "kill", forbidden)
    assert sh(f"for n in 1 2; do kill -{name} $PPID; {until(tmp_path / '$n')}; done; exit 7") == 7
    assert len(re.findall(r"^Cannot end the program \(process \d+\): .*\n", capfd.readouterr().err, re.M)) == warns


@pytest.fixture
def ready(background: Background, eventually: Any, tmp_path: Path) -> str:
    """The shell command after which the lock is lost."""

    def lose() -> None:
        eventually((tmp_path / "ready").exists)
        force_release(NAME)

    background(lose)
    return f"touch {tmp_path}/ready"


def test_the_program_is_ended_when_the_lock_is_lost(ready: str, tmp_path: Path) -> None:
    script = f"trap 'echo ended > {tmp_path}/out; exit 0' TERM; {ready}; {FOREVER}"
    fails(76, rf"The lock '{NAME}' was lost .*force-released", "run", NAME, "--", "sh", "-c", script)
    assert (tmp_path / "out").read_text() == "ended\n"


def test_a_stopped_program_is_ended_too(ready: str) -> None:
    assert sh(f"{ready}; kill -STOP $$; {FOREVER}", "--kill-after", "600") == 76


@pytest.mark.usefixtures("process_1")  # which must not wait for zombies that are its own
def test_a_program_that_ignores_sigterm_is_killed_with_all_its_children(ready: str, tmp_path: Path) -> None:
    child = f"trap '' TERM; echo \\$\\$ > {tmp_path}/pid; {ready}; {FOREVER}"
    assert sh(f'sh -c "{child}" & {FOREVER}', "--kill-after", "0.3") == 76
    assert not is_running(number_in(tmp_path / "pid"))


def test_a_lock_that_was_lost_before_the_program_started_ends_it_at_once(
    as_it_starts: Any, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    def lose() -> None:
        force_release(NAME)
        eventually(lambda: "event=lost" in caplog.text)

    as_it_starts(lose)
    assert sh(FOREVER, "--ttl", "1") == 76


@pytest.mark.parametrize(
    ("end", "ttl", "status"), [(FOREVER, "0.6", 76), ("exit 3", "60", 3)], ids=["lease ends", "program ends"]
)
def test_redis_out_of_reach_ends_the_program_with_its_lease_and_changes_no_status(
    end: str, ttl: str, status: int, own: RedisServer, background: Background, eventually: Any, tmp_path: Path
) -> None:
    def stop() -> None:
        eventually((tmp_path / "ready").exists)
        own.stop()
        (tmp_path / "stopped").write_text("stopped")

    background(stop)
    assert sh(f"touch {tmp_path}/ready; {until(tmp_path / 'stopped')}; {end}", "--ttl", ttl) == status


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


@pytest.mark.parametrize("controls", [True, False])
def test_from_a_terminal_that_it_controls_only_the_program_is_signalled(controls: bool, monkeypatch: Any) -> None:
    def group(handle: int) -> int:
        if controls:
            return os.getpgrp()
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))

    monkeypatch.setattr(os, "isatty", lambda handle: True)
    monkeypatch.setattr(os, "tcgetpgrp", group)
    # such a terminal has already sent SIGINT to both; here nobody has, so the program does not get it
    script = f"trap 'exit 8' INT; trap 'exit 7' TERM; kill -INT $PPID; kill -TERM $PPID; {FOREVER}"
    assert sh(script) == (7 if controls else 8)
