"""``redislocks run``: a program under a lock; its arguments, a busy lock, and how it ends."""

import errno
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from django_redislock import Lock, force_release, get_lock, lock_acquired, testing
from redisserver import RedisServer
from tests.cli.conftest import FOREVER, NAME, InProcess, fails, main, sh, written
from tests.helpers.actors import GENEROUS, Other, until
from tests.helpers.processes import ROOT
from tests.helpers.state import hold
from tests.inside import guard_programs_by
from tests.lock.conftest import receiving

pytestmark = pytest.mark.usefixtures("no_terminal")


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 128 + signal.SIGKILL)])
def test_the_programs_exit_status_is_passed_through(script: str, status: int, other: Callable[[], Other]) -> None:
    assert sh(script) == other()(lambda: sh(script)) == status  # from a thread, too
    assert main("run", NAME, "--", "env", "--", "sh", "-c", script) == status  # only the first -- is the command's


def test_the_program_holds_the_lock_and_knows_it_and_its_fence(server: RedisServer, tmp_path: Path) -> None:
    with Lock(NAME) as before:
        fence = before.fence or 0
    asks = f"redis-cli -p {server.port} get 'redislock{{0}}:lock:{NAME}'"
    assert sh(f'echo "$REDISLOCK_NAME $REDISLOCK_FENCE" > {tmp_path}/out; {asks} >> {tmp_path}/out') == 0
    known, value = (tmp_path / "out").read_text().rstrip().splitlines()
    assert known.split()[0] == NAME
    assert int(known.split()[1]) > fence
    assert value.endswith(f"{threading.current_thread().name} redislocks run sh")
    assert get_lock(NAME) is None


@pytest.mark.parametrize("options", [[], ["--stay"]], ids=str)
def test_the_settings_may_fence_its_name_though_it_can_make_no_claim(options: list[str], settings: Any) -> None:
    settings.REDISLOCK = {"FENCED": [NAME]}
    assert sh("exit 0", *options) == 0  # in the tests, a warning is an error


@pytest.mark.complete
def test_the_lock_is_renewed_while_the_program_runs(settings: Any) -> None:
    settings.REDISLOCK = {"AUTO_RENEW": False}  # applies only to locks in code
    assert sh("sleep 4.5", "--ttl", "3") == 0


@pytest.mark.parametrize(("name", "first"), [(NAME, []), ("-odd", ["--ttl", "60", "--"])])
def test_options_after_the_dashes_belong_to_the_program(name: str, first: list[str], tmp_path: Path) -> None:
    script = f'printf "%s|" "$REDISLOCK_NAME" "$@" > {tmp_path}/out'
    assert main("run", *first, name, "--", "sh", "-c", script, "sh", "--ttl", "-E", "--", "--settings=x", "-h") == 0
    assert (tmp_path / "out").read_text() == f"{name}|--ttl|-E|--|--settings=x|-h|"


def test_a_program_that_cannot_be_run_has_the_status_of_shells_and_keeps_no_lock(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program")
    run_it = ["run", NAME, "--at-least", "20", "--"]
    fails(127, r"^Cannot run no-such-program: No such file or directory\.$", *run_it, "no-such-program")
    fails(127, "No such file", "run", NAME, "--stay", "--", "no-such-program")  # which stands by no more
    fails(126, "Permission denied", *run_it, str(text))
    assert get_lock(NAME) is None


def test_a_busy_lock_has_a_status_of_its_own_and_the_program_is_not_run(tmp_path: Path) -> None:
    with testing.hold(NAME):
        assert sh(f"touch {tmp_path}/ran") == 75
        assert sh(f"touch {tmp_path}/ran", "-E", "0") == 0
        assert sh(f"touch {tmp_path}/ran", "--blocking-timeout", "0.2") == 75
        held_by = rf"^Could not acquire the lock '{NAME}' at once: held by another-host:1:MainThread\.$"
        fails(75, held_by, "run", NAME, "--", "true")
    assert not (tmp_path / "ran").exists()
    hold(NAME, ttl=0.5)
    assert sh("exit 4", "--blocking-timeout", "30") == 4


def test_at_least_keeps_the_lock_until_then() -> None:
    assert sh("sleep 0.3", "--at-least", "0.2") == 0
    assert get_lock(NAME) is None
    assert sh("exit 3", "--at-least", "40", "--ttl", "5") == 3
    info: Any = get_lock(NAME)
    assert 10 < info.lease_left <= 40
    assert sh("exit 3", "--at-least", "40") == 75


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([NAME], "must follow --"),
        ([NAME, "--", ""], "must follow --"),
        ([NAME, "echo", "hi"], "the program to run must follow --, as in: run nightly -- make report"),
        ([NAME, "--waiting", "5"], "unrecognized arguments: --waiting 5"),
        (["--", "true"], "NAME"),
        ([NAME, "--ttl", "0", "--", "true"], "at least 0.003 seconds"),
        ([NAME, "--ttl", "soon", "--", "true"], "'soon' is not a number of seconds"),
        ([NAME, "--blocking-timeout", "-1", "--", "true"], "0 or more seconds"),
        ([NAME, "-E", "256", "--", "true"], "from 0 to 255"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_runs(arguments: list[str], message: str) -> None:
    fails(1, re.escape(message), "run", *arguments)


def test_a_semaphore_may_be_named_as_lists_show_it_and_is_no_lock() -> None:
    assert sh("exit 3", "--limit", "2", name="semaphore:export") == 3
    for message, *words in [
        ("'semaphore:export' is a semaphore: say with --limit how many", "semaphore:export"),
        ("has 515 bytes; at most 512 are allowed", "x" * 505, "--limit", "3"),
    ]:
        fails(2, message, "run", *words, "--", "true")


def test_wrong_arguments_end_with_2_and_programs_inherit_the_streams(in_process: InProcess, capsys: Any) -> None:
    assert main("run", NAME, "true") == 2
    assert capsys.readouterr().err.startswith("usage: ")
    process = in_process("run", NAME, "--", "sh", "-c", "read line; echo out $line; echo err $line >&2")
    assert process.communicate("hello\n", timeout=2 * GENEROUS) == ("out hello\n", "err hello\n")


def test_the_program_is_not_run_if_the_lock_would_guard_nothing(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "memory"}
    fails(2, r"^Not run: the cache alias 'memory' is not Redis, ", "run", NAME, "--", "true")
    settings.DEBUG = True
    assert sh("exit 3") == 3


SIGNALS = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"]
TERMINATED = 128 + signal.SIGTERM


def state_of(pid: int) -> str:
    """As ps shows it, on Linux: T is stopped, Z is a zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_running(pid: int) -> bool:
    """Zombies do not."""
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return sys.platform != "linux" or state_of(pid) != "Z"
    return False


def number_in(path: Path) -> int:
    """0 until a script has written it."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else 0


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_to_the_command_reaches_the_program_and_its_handler_is_restored(name: str) -> None:
    before = [signal.getsignal(getattr(signal, f"SIG{each}")) for each in SIGNALS]
    assert sh(f"trap 'exit 7' {name}; kill -{name} $PPID; {FOREVER}") == 7
    assert [signal.getsignal(getattr(signal, f"SIG{each}")) for each in SIGNALS] == before


@pytest.mark.parametrize("busy", [False, True])
def test_a_stop_stops_the_program_if_it_runs_and_the_command_and_both_go_on(
    busy: bool, tmp_path: Path, other: Callable[[], Other]
) -> None:
    """What a terminal sends at Ctrl-Z. Where no shell could wake this process, the system stops it not."""

    def stop_while_it_waits() -> None:
        with Lock(NAME):
            held.set()
            until(lambda: get_lock(NAME).waiters)  # type: ignore[union-attr]
            os.kill(os.getpid(), signal.SIGTSTP)

    held = threading.Event()
    wakes = subprocess.Popen(["sh", "-c", f"while kill -CONT {os.getpid()}; do sleep 0.05; done"])
    try:
        if busy:
            other().start(stop_while_it_waits)
            assert held.wait(GENEROUS)
        stop = "" if busy else "kill -TSTP $PPID; "
        assert sh(f"{stop}echo on > {tmp_path}/out", "--blocking-timeout=60") == 0
    finally:
        wakes.kill()
        wakes.wait()
    assert (tmp_path / "out").read_text() == "on\n"


def test_a_signal_that_another_thread_takes_reaches_the_program_too(once_ready: Callable[..., str]) -> None:
    """As it may be when two come at once: then nothing interrupts the main thread."""
    ready = once_ready(lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
    assert sh(f"{ready}; {FOREVER}", "--ttl=900") == TERMINATED


def test_signals_reach_the_programs_children_and_the_lock_is_held_until_they_have_ended(tmp_path: Path) -> None:
    child = f"trap 'sleep 0.3; echo cleaned > {tmp_path}/out; exit' TERM; echo > {tmp_path}/ready; {FOREVER}"
    assert sh(f'sh -c "{child}" & {written(tmp_path / "ready")}; kill -TERM $PPID; {FOREVER}') == TERMINATED
    assert (tmp_path / "out").read_text() == "cleaned\n"


def test_background_children_of_an_ended_program_are_not_waited_for(tmp_path: Path) -> None:
    assert sh(f"sleep 600 & echo $! > {tmp_path}/pid") == 0
    child = number_in(tmp_path / "pid")
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


def test_where_no_thread_can_be_started_the_program_runs_under_the_lock_all_the_same(monkeypatch: Any) -> None:
    with Lock("warm-up"):
        pass

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert sh("sleep 0.1; exit 3") == 3
    assert get_lock(NAME) is None


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


def test_a_signal_before_the_program_starts_ends_the_command_and_one_then_reaches_it(
    tmp_path: Path, as_it_starts: Any
) -> None:
    def strike(**facts: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    with receiving(strike, lock_acquired):
        assert sh(f"touch {tmp_path}/ran") == TERMINATED
    until(lambda: get_lock(NAME) is None)
    assert not (tmp_path / "ran").exists()
    as_it_starts(strike)
    assert sh(FOREVER) == TERMINATED


def test_a_program_of_another_user_that_cannot_be_ended_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kill = os.kill

    def forbidden(pid: int, number: int) -> None:
        kill(pid, 0)
        if number:
            (tmp_path / "refused").write_text("refused")
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "kill", forbidden)
    assert sh(f"kill -TERM $PPID; {written(tmp_path / 'refused')}; exit 7") == 7


@pytest.mark.parametrize("then", ["", "kill -STOP $$"], ids=["runs", "is stopped"])
def test_the_program_is_ended_when_the_lock_is_lost(then: str, once_ready: Callable[..., str], tmp_path: Path) -> None:
    def lose_it() -> None:
        until(lambda: not then or state_of(number_in(tmp_path / "pid")) == "T")
        force_release(NAME)

    ready = f"echo $$ > {tmp_path}/pid; {once_ready(lose_it)}"
    script = f"trap 'echo ended > {tmp_path}/out; exit 0' TERM; {ready}\n{then}\n{FOREVER}"
    lost = rf"The lock '{NAME}' was lost .*force-released"
    fails(76, lost, "run", NAME, "--kill-after=600", "--", "sh", "-c", script)
    assert (tmp_path / "out").read_text() == "ended\n"


@pytest.mark.usefixtures("process_1")  # that of the command, which never asks for orphans
def test_zombies_that_nobody_asks_for_are_not_waited_for_but_the_living_are(in_process: Any, tmp_path: Path) -> None:
    living = f"trap 'sleep 0.3; echo cleaned > {tmp_path}/out; exit' TERM; echo > {tmp_path}/ready; {FOREVER}"
    ready = f"{written(tmp_path / 'ready')}; echo $$ > {tmp_path}/pid"
    script = f'sh -c "{FOREVER}" & sh -c "{living}" & {ready}; {FOREVER}'
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = in_process("run", NAME, "--", "sh", "-c", script, **quiet)
    program = until(lambda: number_in(tmp_path / "pid"))
    process.terminate()
    assert process.wait(GENEROUS) == TERMINATED
    assert (tmp_path / "out").read_text() == "cleaned\n"
    assert os.waitpid(-program, os.WNOHANG)[0]  # there is one
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-program, 0)


@pytest.mark.usefixtures("process_1")  # which must not wait for zombies that are its own
def test_a_program_that_ignores_sigterm_is_killed_with_all_its_children(once_ready: Any, tmp_path: Path) -> None:
    ready = once_ready(lambda: force_release(NAME))
    child = f"trap '' TERM; echo \\$\\$ > {tmp_path}/pid; {ready}; {FOREVER}"
    assert sh(f'sh -c "{child}" & {FOREVER}', "--kill-after", "0.3") == 76
    assert not is_running(number_in(tmp_path / "pid"))


def test_a_lock_lost_before_the_program_started_ends_it(as_it_starts: Any, caplog: Any) -> None:
    def lose() -> None:
        force_release(NAME)
        until(lambda: "event=lost" in caplog.text)

    as_it_starts(lose)
    assert sh(FOREVER, "--ttl", "1") == 76


@pytest.mark.parametrize(
    ("end", "ttl", "status"), [pytest.param(FOREVER, "3", 76, marks=pytest.mark.complete), ("exit 3", "60", 3)]
)
def test_redis_out_of_reach_ends_the_program_with_its_lease_and_changes_no_status(
    end: str, ttl: str, status: int, own: RedisServer, once_ready: Callable[..., str], tmp_path: Path
) -> None:
    def stop() -> None:
        own.stop()
        (tmp_path / "stopped").write_text("stopped")

    assert sh(f"{once_ready(stop)}; {written(tmp_path / 'stopped')}; {end}", "--ttl", ttl) == status


@pytest.mark.parametrize("stubborn", [False, True], ids=["ordinary", "ignores SIGTERM"])
def test_the_program_and_its_children_end_when_the_command_is_killed(
    stubborn: bool, in_process: InProcess, tmp_path: Path
) -> None:
    ignores = "trap '' TERM;" if stubborn else ""
    child = f"{ignores} sh -c 'trap \"\" USR1; echo $$ > {tmp_path}/child; {FOREVER}' &"
    parent = f"trap ': > {tmp_path}/told' USR1; {child} {written(tmp_path / 'child')}; echo $$ > {tmp_path}/parent"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = in_process("run", NAME, "--kill-after=1", "--", "sh", "-c", f"{parent}; {FOREVER}", **quiet)
    pids = [until(lambda name=name: number_in(tmp_path / name)) for name in ("parent", "child")]

    def guarded() -> bool:
        """The program already runs for a short time in which its guard does not know of it yet."""
        process.send_signal(signal.SIGUSR1)  # again and again: dash loses a signal while it starts a command
        return (tmp_path / "told").exists()

    until(guarded)
    os.killpg(process.pid, signal.SIGKILL)
    until(lambda: not any(map(is_running, pids)))
    assert get_lock(NAME) is not None  # until its TTL


@pytest.mark.parametrize("shell", ["/no/such/shell", "/bin/true"], ids=["none", "gone"])
def test_without_a_guard_programs_run_all_the_same(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard_programs_by(shell, monkeypatch)
    assert sh("sleep 0.2; exit 3") == 3


class Typist:
    """Runs a command at a terminal, types, and reads what is printed there."""

    def __init__(self, *command: str) -> None:
        self.terminal, self.end = pty.openpty()
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        # the terminal becomes that of a session whose first process opens it
        opens_it = ["sh", "-c", 'exec "$@" < "$0" > "$0" 2>&1', os.ttyname(self.end)]
        self.process = subprocess.Popen([*opens_it, *command], cwd=ROOT, env=environment, start_new_session=True)

    def type(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def see(self, printed: bytes) -> None:
        seen = b""
        while printed not in seen:
            seen += os.read(self.terminal, 1024)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.end)


RUN = [sys.executable, "-m", "django", "redislocks", "run", NAME, "--", "sh", "-c"]


def test_at_a_terminal_the_program_stays_in_the_foreground_and_may_read() -> None:
    script = f"trap 'echo interrupted; exit 9' INT; read line < /dev/tty; echo got $line; {FOREVER}"
    with closing(Typist(*RUN, script)) as typist:
        for keys, printed in ((b"hello\n", b"got hello"), (b"\x03", b"interrupted")):
            typist.type(keys)
            typist.see(printed)
        assert typist.process.wait(GENEROUS) == 9
    assert get_lock(NAME) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/<pid>/stat")
@pytest.mark.parametrize("redirected", ["", " < /dev/null"], ids=["", "its input is redirected"])
def test_a_terminal_stops_the_program_with_the_command_and_both_go_on(redirected: str, tmp_path: Path) -> None:
    run = shlex.join([*RUN, f"echo $$ > {tmp_path}/pid; echo begun; exec sleep 600"])
    with closing(Typist("sh", "-mc", f"{run}{redirected}; echo stopped; read line; fg")) as typist:
        typist.see(b"begun")
        program = number_in(tmp_path / "pid")
        typist.type(b"\x1a")
        typist.see(b"stopped")
        until(lambda: state_of(program) == "T")
        typist.type(b"\n")
        until(lambda: state_of(program) == "S")
        typist.type(b"\x03")
        assert typist.process.wait(GENEROUS) == 128 + signal.SIGINT
    assert get_lock(NAME) is None


@pytest.mark.parametrize("controls", [True, False])
def test_from_a_terminal_that_it_controls_only_the_program_is_signalled(controls: bool, monkeypatch: Any) -> None:
    def group(handle: int) -> int:
        if controls:
            return os.getpgrp()
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))

    monkeypatch.setattr(os, "isatty", lambda handle: True)
    monkeypatch.setattr(os, "tcgetpgrp", group)
    # such a terminal has already sent SIGINT to both; here nobody has, so the program does not get it
    terminates = "kill -TERM $PPID;" if controls else ""  # else it might get both at once
    script = f"trap 'exit 8' INT; trap 'exit 7' TERM; kill -INT $PPID; {terminates} {FOREVER}"
    assert sh(script) == (7 if controls else 8)
