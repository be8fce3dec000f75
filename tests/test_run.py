"""``redislocks run``: a program under a lock."""

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_redislock import FairLock, Lock, force_release, get_lock
from django_redislock.cli import program as programs
from django_redislock.cli import run as runner
from django_redislock.cli.program import Relay
from django_redislock.commands import LockBusy
from django_redislock.management.commands.redislocks import Command
from redisserver import RedisServer, redis_server

from .actors import Other

Eventually = Callable[..., Any]

ROOT = Path(__file__).parent.parent
NAME = "nightly"
FOREVER = "while :; do sleep 0.02; done"


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tests are run from."""
    monkeypatch.setattr(runner, "has_terminal", lambda: False)


def run(*arguments: str) -> int:
    """Run it in this process; answers the exit status."""
    try:
        call_command("redislocks", "run", *arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except CommandError as error:
        return int(error.returncode)
    return 0


def sh(script: str, *options: str) -> int:
    return run(NAME, *options, "--", "sh", "-c", script)


def run_in_process(
    *arguments: str, environment: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> subprocess.Popen[str]:
    known = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(
        [sys.executable, "-m", "django", "redislocks", "run", "--settings=tests.settings", *arguments],
        text=True,
        cwd=ROOT,
        env={**known, "PYTHONPATH": str(ROOT), **environment},
        start_new_session=True,
        **options,
    )


@pytest.fixture
def in_process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command in a process of its own, away from any terminal."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        started.append(run_in_process(*arguments, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Do something while a program runs in the main thread."""
    threads: list[threading.Thread] = []

    def background(work: Callable[[], Any]) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield background
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def is_running(pid: int) -> bool:
    """Zombies do not run."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def number_in(path: Path) -> int:
    """The number that a script has written, once it has."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else 0


# -- what the program sees, and what it leaves ------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 1, 3, 75, 255])
def test_the_programs_exit_status_is_passed_through(status: int) -> None:
    assert sh(f"exit {status}") == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_program_killed_by_a_signal_is_told_as_a_shell_tells_it(number: int) -> None:
    assert sh(f"kill -{int(number)} $$") == 128 + number


def test_the_program_knows_the_lock_and_its_fence(tmp_path: Path) -> None:
    before = Lock(NAME)
    with before:
        fence = before.fence or 0
    assert sh(f'echo "$REDISLOCK_NAME $REDISLOCK_FENCE" > {tmp_path}/out') == 0
    name, told = (tmp_path / "out").read_text().split()
    assert name == NAME
    assert int(told) > fence


def test_the_lock_is_held_while_the_program_runs_and_free_afterwards(tmp_path: Path) -> None:
    with redis.Redis.from_url(os.environ["REDISLOCK_TEST_URL"]) as client:
        port = client.connection_pool.connection_kwargs["port"]
    assert sh(f"redis-cli -p {port} get 'redislock{{0}}:lock:{NAME}' > {tmp_path}/out") == 0
    value = (tmp_path / "out").read_text()
    assert value.rstrip().endswith(f"{threading.current_thread().name} redislocks run sh")
    assert get_lock(NAME) is None


def test_the_program_inherits_input_output_and_errors(in_process: Callable[..., subprocess.Popen[str]]) -> None:
    process = in_process(NAME, "--", "sh", "-c", "read line; echo out $line; echo err $line >&2")
    out, err = process.communicate("hello\n", timeout=30)
    assert (process.returncode, out, err) == (0, "out hello\n", "err hello\n")


def test_the_lock_is_renewed_while_the_program_runs(settings: Any) -> None:
    settings.REDISLOCK = {"AUTO_RENEW": False}  # which is for locks in code
    assert sh("sleep 1.2", "--ttl", "0.5") == 0


def test_options_behind_the_dashes_are_the_programs_own(tmp_path: Path) -> None:
    script = f'printf "%s|" "$@" > {tmp_path}/out'
    assert run(NAME, "--", "sh", "-c", script, "sh", "--ttl", "-E", "--", "--settings=x", "-h") == 0
    assert (tmp_path / "out").read_text() == "--ttl|-E|--|--settings=x|-h|"


def test_a_program_that_does_not_exist_ends_with_127() -> None:
    with pytest.raises(CommandError, match=r"^Cannot run no-such-program: No such file or directory\.$") as caught:
        call_command("redislocks", "run", NAME, "--", "no-such-program")
    assert caught.value.returncode == 127
    assert get_lock(NAME) is None


def test_a_program_that_cannot_be_executed_ends_with_126(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    with pytest.raises(CommandError, match="Permission denied") as caught:
        call_command("redislocks", "run", NAME, "--", str(tmp_path / "text"))
    assert caught.value.returncode == 126
    (tmp_path / "text").chmod(0o755)
    assert run(NAME, "--", str(tmp_path / "text")) == 126  # exec format error
    assert get_lock(NAME) is None


def test_it_runs_in_a_thread_too(other: Callable[[], Other]) -> None:
    assert other()(lambda: sh("exit 3")) == 3


# -- a busy lock ------------------------------------------------------------------------------------------------------


def test_a_busy_lock_has_a_status_of_its_own_and_the_program_is_not_run(tmp_path: Path) -> None:
    with Lock(NAME):
        assert sh(f"touch {tmp_path}/ran") == 75
        assert sh(f"touch {tmp_path}/ran", "-E", "0") == 0
        assert sh(f"touch {tmp_path}/ran", "--conflict-exit-code=9") == 9
    assert not (tmp_path / "ran").exists()


def test_from_code_a_busy_lock_is_an_error_that_says_who_holds_it() -> None:
    with Lock(NAME), pytest.raises(LockBusy, match=rf"^The lock {NAME} is held by \S+:{os.getpid()}:\S+ for 0\.\d s"):
        call_command("redislocks", "run", NAME, "--", "true")


def test_cron_has_nothing_to_mail_about_a_busy_lock(in_process: Callable[..., subprocess.Popen[str]]) -> None:
    with Lock(NAME):
        quiet, loud = in_process(NAME, "--", "true"), in_process(NAME, "-v2", "--", "true")
        assert (*quiet.communicate(timeout=30), quiet.returncode) == ("", "", 75)
        out, err = loud.communicate(timeout=30)
    assert (out, loud.returncode) == ("", 75)
    assert err.startswith(f"LockBusy: The lock {NAME} is held by ")


@pytest.mark.parametrize(("options", "fair"), [([], False), (["--fair"], True)])
def test_it_waits_for_a_busy_lock_when_told_to(
    options: list[str], fair: bool, background: Callable[..., None], eventually: Eventually
) -> None:
    lock, kinds = Lock(NAME), []
    lock.acquire()
    token = lock.detach()

    def let_go() -> None:
        queue = eventually(lambda: (info := get_lock(NAME)) and info.queue)
        kinds.append(queue[0].fair)
        Lock(NAME, token=token).release()

    background(let_go)
    assert sh("exit 4", "--wait", "30", *options) == 4
    assert kinds == [fair]


def test_it_waits_no_longer_than_told() -> None:
    with Lock(NAME):
        begin = monotonic()
        assert sh("exit 4", "--wait", "0.2") == 75
        assert 0.2 <= monotonic() - begin < 10


def test_a_crontab_on_many_machines_runs_a_job_once(
    in_process: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    crowd = [in_process(NAME, "--at-least=20", "--", "sh", "-c", f"echo ran >> {tmp_path}/out") for _ in range(4)]
    for process in crowd:
        process.communicate(timeout=60)
    assert sorted(process.returncode for process in crowd) == [0, 75, 75, 75]
    assert (tmp_path / "out").read_text() == "ran\n"


def test_at_least_keeps_the_lock_when_the_program_has_ended_before() -> None:
    assert sh("exit 3", "--at-least", "20", "--ttl", "1") == 3
    info = get_lock(NAME)
    assert info is not None
    assert 15 < info.lease_left <= 20
    assert sh("exit 3", "--at-least", "20") == 75


def test_at_least_keeps_nothing_when_the_program_took_longer() -> None:
    assert sh("sleep 0.3", "--at-least", "0.2") == 0
    assert get_lock(NAME) is None


def test_a_program_that_never_started_keeps_no_lock() -> None:
    assert run(NAME, "--at-least", "20", "--", "no-such-program") == 127
    assert get_lock(NAME) is None


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
def test_a_signal_to_the_command_reaches_the_program(name: str) -> None:
    assert sh(f"trap 'exit 7' {name}; kill -{name} $PPID; {FOREVER}") == 7


def test_a_program_without_a_handler_dies_of_the_signal() -> None:
    assert sh(f"kill -TERM $PPID; {FOREVER}") == 128 + signal.SIGTERM


def test_signals_reach_what_the_program_has_started_and_the_lock_is_held_until_that_has_ended(
    tmp_path: Path,
) -> None:
    child = f"trap 'sleep 0.3; echo cleaned > {tmp_path}/out; exit' TERM; touch {tmp_path}/ready; {FOREVER}"
    script = f'sh -c "{child}" & while [ ! -e {tmp_path}/ready ]; do sleep 0.02; done; kill -TERM $PPID; {FOREVER}'
    assert sh(script) == 128 + signal.SIGTERM
    assert (tmp_path / "out").read_text() == "cleaned\n"


def test_what_the_program_leaves_behind_on_purpose_is_not_waited_for(tmp_path: Path) -> None:
    begin = monotonic()
    assert sh(f"sleep 30 & echo $! > {tmp_path}/pid") == 0
    assert monotonic() - begin < 20
    os.kill(number_in(tmp_path / "pid"), signal.SIGKILL)


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


def test_handlers_are_what_they_were_when_the_program_has_ended() -> None:
    before = [signal.getsignal(number) for number in programs.RELAYED]
    assert sh("exit 0") == 0
    assert [signal.getsignal(number) for number in programs.RELAYED] == before


def test_a_signal_ends_the_wait_for_the_lock_and_leaves_no_place_in_the_queue(
    background: Callable[..., None], eventually: Eventually, client: redis.Redis
) -> None:
    def interrupt() -> None:
        eventually(lambda: client.zcard(f"redislock{{0}}:queue:{NAME}"))
        os.kill(os.getpid(), signal.SIGTERM)

    with Lock(NAME):
        background(interrupt)
        assert sh("exit 0", "--wait", "30") == 128 + signal.SIGTERM
        eventually(lambda: not client.zcard(f"redislock{{0}}:queue:{NAME}"))


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


def test_a_signal_to_a_program_that_is_another_users_or_gone_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = os.kill

    def forbidden(pid: int, number: int) -> None:
        kill(pid, number)
        if number == signal.SIGUSR1:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "kill", forbidden)
    assert sh(f"trap 'exit 7' USR1; kill -USR1 $PPID; {FOREVER}") == 7


# -- a lost lock ------------------------------------------------------------------------------------------------------


def lose_when(ready: Path, eventually: Eventually) -> Callable[[], None]:
    def lose() -> None:
        eventually(ready.exists)
        force_release(NAME)

    return lose


def test_the_program_is_ended_when_the_lock_is_lost(
    background: Callable[..., None], eventually: Eventually, tmp_path: Path
) -> None:
    background(lose_when(tmp_path / "ready", eventually))
    script = f"trap 'echo ended > {tmp_path}/out; exit 0' TERM; touch {tmp_path}/ready; {FOREVER}"
    with pytest.raises(CommandError, match=f"The lock '{NAME}' was lost .* released by force") as caught:
        call_command("redislocks", "run", NAME, "--", "sh", "-c", script)
    assert caught.value.returncode == 76
    assert (tmp_path / "out").read_text() == "ended\n"


def test_what_does_not_end_by_sigterm_is_killed_with_all_that_it_has_started(
    background: Callable[..., None], eventually: Eventually, tmp_path: Path
) -> None:
    background(lose_when(tmp_path / "ready", eventually))
    child = f"trap '' TERM; echo \\$\\$ > {tmp_path}/pid; touch {tmp_path}/ready; {FOREVER}"
    assert sh(f'sh -c "{child}" & {FOREVER}', "--kill-after", "0.3") == 76
    assert not is_running(number_in(tmp_path / "pid"))


def test_a_stopped_program_is_ended_too(
    background: Callable[..., None], eventually: Eventually, tmp_path: Path
) -> None:
    background(lose_when(tmp_path / "ready", eventually))
    assert sh(f"touch {tmp_path}/ready; kill -STOP $$; {FOREVER}", "--kill-after", "60") == 76


def test_a_lock_that_was_lost_before_the_program_started_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    start = Relay.start

    def late(relay: Relay, make: Any) -> Any:
        force_release(NAME)
        eventually(lambda: "event=lost" in caplog.text)
        return start(relay, make)

    monkeypatch.setattr(Relay, "start", late)
    assert sh(FOREVER, "--ttl", "1") == 76


@pytest.fixture
def own(settings: Any) -> Iterator[RedisServer]:
    """A server of this test alone, behind the alias of the locks."""
    with redis_server() as running:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": running.url}}
        yield running


def stop_when(ready: Path, eventually: Eventually, server: RedisServer) -> Callable[[], None]:
    def stop() -> None:
        eventually(ready.exists)
        server.stop()
        (ready.parent / "stopped").touch()

    return stop


def test_the_program_is_ended_when_the_lock_cannot_be_renewed(
    own: RedisServer, background: Callable[..., None], eventually: Eventually, tmp_path: Path
) -> None:
    background(stop_when(tmp_path / "ready", eventually, own))
    assert sh(f"touch {tmp_path}/ready; {FOREVER}", "--ttl", "0.6") == 76


def test_redis_out_of_reach_at_the_end_does_not_change_the_programs_status(
    own: RedisServer,
    background: Callable[..., None],
    eventually: Eventually,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    background(stop_when(tmp_path / "ready", eventually, own))
    script = f"touch {tmp_path}/ready; while [ ! -e {tmp_path}/stopped ]; do sleep 0.02; done; exit 3"
    assert sh(script, "--ttl", "60") == 3
    assert "event=not-released" in caplog.text


def test_redis_out_of_reach_at_the_start_has_a_status_of_its_own(tmp_path: Path) -> None:
    nowhere = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    with override_settings(CACHES={"default": nowhere}):
        assert sh(f"touch {tmp_path}/ran") == 69
    assert not (tmp_path / "ran").exists()


def test_redis_out_of_reach_is_said_once(in_process: Callable[..., subprocess.Popen[str]]) -> None:
    environment = {"REDISLOCK_TEST_URL": "redis://127.0.0.1:1/0"}
    _, err = in_process(NAME, "--", "true", environment=environment).communicate(timeout=30)
    assert err.startswith("CommandError: Redis cannot be reached")
    assert err.count("\n") == 1


# -- kill -9 of the command -------------------------------------------------------------------------------------------


TELLS = "trap ': > {folder}/told' USR1"


def kill_when_guarded(process: subprocess.Popen[str], folder: Path, eventually: Eventually) -> None:
    """kill -9, but not in the instant in which the program runs already and the guard has not heard of it."""
    process.send_signal(signal.SIGUSR1)  # passed on by one that has told the guard
    eventually((folder / "told").exists)
    process.kill()


def test_the_program_ends_with_all_that_it_has_started_when_the_command_is_killed(
    in_process: Callable[..., subprocess.Popen[str]], eventually: Eventually, tmp_path: Path
) -> None:
    begun = f"{TELLS.format(folder=tmp_path)}; sh -c 'trap \"\" USR1; echo $$ > {tmp_path}/child; {FOREVER}'"
    script = f"{begun} & until [ -s {tmp_path}/child ]; do sleep 0.02; done; echo $$ > {tmp_path}/parent; {FOREVER}"
    process = in_process(NAME, "--", "sh", "-c", script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    parent = eventually(lambda: number_in(tmp_path / "parent"))
    child = number_in(tmp_path / "child")
    kill_when_guarded(process, tmp_path, eventually)
    eventually(lambda: not is_running(parent) and not is_running(child))
    assert get_lock(NAME) is not None  # until its TTL


def test_the_guard_kills_what_does_not_end_by_sigterm(
    in_process: Callable[..., subprocess.Popen[str]], eventually: Eventually, tmp_path: Path
) -> None:
    script = f"trap '' TERM; {TELLS.format(folder=tmp_path)}; echo $$ > {tmp_path}/pid; {FOREVER}"
    process = in_process(NAME, "--kill-after=1", "--", "sh", "-c", script)
    pid = eventually(lambda: number_in(tmp_path / "pid"))
    kill_when_guarded(process, tmp_path, eventually)
    eventually(lambda: not is_running(pid))


@pytest.mark.parametrize("shell", ["/no/such/shell", "/bin/true"], ids=["none", "gone"])
def test_without_a_guard_programs_run_all_the_same(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SHELL", shell)
    assert sh("sleep 0.2; exit 3") == 3


# -- at a terminal ----------------------------------------------------------------------------------------------------


def test_at_a_terminal_the_program_stays_in_the_foreground_and_may_read() -> None:
    pid, terminal = pty.fork()
    if not pid:  # pragma: no cover
        command = [sys.executable, "-m", "django", "redislocks", "run", NAME, "--", "sh", "-c"]
        script = f"trap 'echo interrupted; exit 9' INT; read line < /dev/tty; echo got $line; {FOREVER}"
        os.chdir(ROOT)
        os.execve(sys.executable, [*command, script], {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"})
    try:
        os.write(terminal, b"hello\n")
        read_until(terminal, b"got hello")
        os.write(terminal, b"\x03")
        read_until(terminal, b"interrupted")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    finally:
        os.close(terminal)
    assert get_lock(NAME) is None


def read_until(handle: int, word: bytes) -> None:
    seen = b""
    while word not in seen:
        seen += os.read(handle, 1024)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("errors", "told"), [(Terminal(), "LockBusy: The lock nightly is held by "), (io.StringIO(), "")]
)
def test_a_busy_lock_is_told_at_a_terminal_only(errors: io.StringIO, told: str) -> None:
    with Lock(NAME), pytest.raises(SystemExit) as caught:
        Command(stderr=errors).run_from_argv(["manage.py", "redislocks", "run", NAME, "--", "true"])
    assert caught.value.code == 75
    assert errors.getvalue()[: len(told)] == told
    assert bool(errors.getvalue()) == bool(told)


def test_from_a_shared_process_group_only_the_program_is_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "has_terminal", lambda: True)
    # the terminal has sent SIGINT to both already; here nobody has, so it stays away
    assert sh(f"trap 'exit 8' INT; trap 'exit 7' TERM; kill -INT $PPID; kill -TERM $PPID; {FOREVER}") == 7


def test_there_is_no_terminal_where_input_comes_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not programs.has_terminal()
    monkeypatch.setattr(os, "isatty", lambda handle: True)
    assert not programs.has_terminal()  # one that we are not in control of


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([NAME], "must follow --"),
        ([NAME, "--"], "must follow --"),
        ([NAME, "echo", "hi"], "the program to run must follow --, as in: run nightly -- make report"),
        ([NAME, "echo", "--", "hi"], "unrecognized arguments: echo"),
        ([NAME, "--waiting", "5"], "unrecognized arguments: --waiting 5"),
        (["--", "true"], "NAME"),
        (["a\x1b", "--", "true"], "control characters"),
        ([NAME, "--ttl", "0", "--", "true"], "at least 0.001 seconds"),
        ([NAME, "--ttl", "soon", "--", "true"], "'soon' is no number of seconds"),
        ([NAME, "--wait", "-1", "--", "true"], "0 or more seconds"),
        ([NAME, "--wait", "nan", "--", "true"], "finite"),
        ([NAME, "-E", "256", "--", "true"], "from 0 to 255"),
        ([NAME, "-E", "busy", "--", "true"], "from 0 to 255"),
        ([NAME, "--using", "nowhere", "--", "true"], "no cache alias 'nowhere'"),
    ],
)
def test_wrong_arguments_are_told_before_anything_runs(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=re.escape(message)):
        call_command("redislocks", "run", *arguments)


def test_wrong_arguments_end_with_2(in_process: Callable[..., subprocess.Popen[str]]) -> None:
    process = in_process(NAME, "true")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "usage: " in err
    assert "Traceback" not in err


def test_the_help_tells_the_exit_statuses(in_process: Callable[..., subprocess.Popen[str]]) -> None:
    process = in_process("--help")
    out, _ = process.communicate(timeout=30)
    text = " ".join(out.split())
    assert "[OPTIONS] NAME -- PROGRAM [ARGUMENT ...]" in text
    for status in ("128 + n", "75 when", "76 when", "69 when", "127 when", "126 when"):
        assert status in text


def test_using_and_fair_locks_are_what_they_are_elsewhere(settings: Any, server: RedisServer, tmp_path: Path) -> None:
    other = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url, "KEY_PREFIX": "other"}
    settings.CACHES = {**settings.CACHES, "other": other}
    with FairLock(NAME):
        assert sh("exit 3", "--using", "other", "--fair") == 3
        assert sh("exit 3", "--fair") == 75
