"""``redislocks run``: a program under a lock; its arguments, and a busy lock."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from django_redislock import Lock, get_lock
from django_redislock.jobs.locked_command import LockBusy
from redisserver import RedisServer
from tests.cli.conftest import Eventually, InProcess
from tests.cli.programs import NAME, Background, run, sh
from tests.helpers.actors import GENEROUS, Other

pytestmark = pytest.mark.usefixtures("no_terminal")


# -- what the program sees, and what it leaves ------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 1, 3, 75, 255])
def test_the_programs_exit_status_is_passed_through(status: int) -> None:
    assert sh(f"exit {status}") == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_program_killed_by_a_signal_has_the_exit_status_of_a_shell(number: int) -> None:
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


def test_the_program_inherits_input_output_and_errors(run_in_process: InProcess) -> None:
    process = run_in_process(NAME, "--", "sh", "-c", "read line; echo out $line; echo err $line >&2")
    out, err = process.communicate("hello\n", timeout=GENEROUS)
    assert (process.returncode, out, err) == (0, "out hello\n", "err hello\n")


@pytest.mark.complete
def test_the_lock_is_renewed_while_the_program_runs(settings: Any) -> None:
    settings.REDISLOCK = {"AUTO_RENEW": False}  # applies only to locks in code
    assert sh("sleep 2.5", "--ttl", "2") == 0


def test_options_after_the_dashes_belong_to_the_program(tmp_path: Path) -> None:
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
    with (
        Lock(NAME),
        pytest.raises(
            LockBusy, match=rf"^Could not acquire the lock {NAME}: held by \S+:{os.getpid()}:\S+ for \d+(\.\d)? s\.$"
        ),
    ):
        call_command("redislocks", "run", NAME, "--", "true")


def test_cron_has_nothing_to_mail_about_a_busy_lock(run_in_process: InProcess) -> None:
    with Lock(NAME):
        quiet, loud = run_in_process(NAME, "--", "true"), run_in_process(NAME, "-v2", "--", "true")
        assert (*quiet.communicate(timeout=GENEROUS), quiet.returncode) == ("", "", 75)
        out, err = loud.communicate(timeout=GENEROUS)
    assert (out, loud.returncode) == ("", 75)
    assert err.startswith(f"LockBusy: Could not acquire the lock {NAME}: held by ")


def test_it_waits_for_a_busy_lock_when_told_to(background: Background, eventually: Eventually) -> None:
    lock = Lock(NAME)
    lock.acquire()
    token = lock.detach()

    def let_go() -> None:
        eventually(lambda: (info := get_lock(NAME)) and info.waiters)
        Lock(NAME, token=token).release()

    background(let_go)
    assert sh("exit 4", "--blocking-timeout", "30") == 4


def test_it_waits_no_longer_than_told() -> None:
    with Lock(NAME):
        begin = monotonic()
        assert sh("exit 4", "--blocking-timeout", "0.2") == 75
        assert 0.2 <= monotonic() - begin < 10


@pytest.mark.complete
def test_a_crontab_on_many_machines_runs_a_job_once(run_in_process: InProcess, tmp_path: Path) -> None:
    job = [NAME, "--at-least=20", "--", "sh", "-c", f"echo ran >> {tmp_path}/out"]
    crowd = [run_in_process(*job) for _ in range(4)]
    for process in crowd:
        process.communicate(timeout=2 * GENEROUS)
    assert sorted(process.returncode for process in crowd) == [0, 75, 75, 75]
    assert (tmp_path / "out").read_text() == "ran\n"


def test_at_least_keeps_the_lock_when_the_program_has_ended_before() -> None:
    assert sh("exit 3", "--at-least", "20", "--ttl", "5") == 3
    info = get_lock(NAME)
    assert info is not None
    assert 10 < info.lease_left <= 20
    assert sh("exit 3", "--at-least", "20") == 75


def test_at_least_keeps_nothing_when_the_program_took_longer() -> None:
    assert sh("sleep 0.3", "--at-least", "0.2") == 0
    assert get_lock(NAME) is None


def test_a_program_that_never_started_keeps_no_lock() -> None:
    assert run(NAME, "--at-least", "20", "--", "no-such-program") == 127
    assert get_lock(NAME) is None


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([NAME], "must follow --"),
        ([NAME, "--"], "must follow --"),
        ([NAME, "--", ""], "must follow --"),
        ([NAME, "echo", "hi"], "the program to run must follow --, as in: run nightly -- make report"),
        ([NAME, "echo", "--", "hi"], "unrecognized arguments: echo"),
        ([NAME, "--waiting", "5"], "unrecognized arguments: --waiting 5"),
        ([NAME, "--fair", "--", "true"], "unrecognized arguments: --fair"),
        (["--", "true"], "NAME"),
        (["a\x1b", "--", "true"], "control characters"),
        ([NAME, "--ttl", "0", "--", "true"], "at least 0.003 seconds"),
        ([NAME, "--ttl", "soon", "--", "true"], "'soon' is not a number of seconds"),
        ([NAME, "--blocking-timeout", "-1", "--", "true"], "0 or more seconds"),
        ([NAME, "--blocking-timeout", "nan", "--", "true"], "finite"),
        ([NAME, "-E", "256", "--", "true"], "from 0 to 255"),
        ([NAME, "-E", "busy", "--", "true"], "from 0 to 255"),
        ([NAME, "--using", "nowhere", "--", "true"], "Unknown cache alias 'nowhere'"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_runs(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=re.escape(message)):
        call_command("redislocks", "run", *arguments)


@pytest.mark.parametrize("options", [[], ["--ttl", "60"]], ids=" ".join)
def test_a_name_that_begins_with_a_dash_follows_dashes_of_its_own(options: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(*options, "--", "-odd", "--", "sh", "-c", f'echo "$REDISLOCK_NAME" -- >{out}') == 0
    assert out.read_text() == "-odd --\n"


def test_wrong_arguments_end_with_2(run_in_process: InProcess) -> None:
    process = run_in_process(NAME, "true")
    _, err = process.communicate(timeout=GENEROUS)
    assert process.returncode == 2
    assert "usage: " in err
    assert "Traceback" not in err


def test_the_help_lists_the_exit_statuses(run_in_process: InProcess) -> None:
    process = run_in_process("--help")
    out, _ = process.communicate(timeout=GENEROUS)
    text = " ".join(out.split())
    assert "[OPTIONS] NAME -- PROGRAM [ARGUMENT ...]" in text
    for status in ("128 + n", "75 if", "76 if", "69 if", "127 if", "126 if"):
        assert status in text


def test_using_names_the_alias(settings: Any, server: RedisServer) -> None:
    other = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url, "KEY_PREFIX": "other"}
    settings.CACHES = {**settings.CACHES, "other": other}
    with Lock(NAME):
        assert sh("exit 3", "--using", "other") == 3
        assert sh("exit 3") == 75


# -- the memory mode --------------------------------------------------------------------------------------------------


def test_the_program_is_not_run_if_the_lock_would_guard_nothing(settings: Any, tmp_path: Path) -> None:
    settings.REDISLOCK = {"CACHE": "memory"}
    with pytest.raises(CommandError, match=r"^Not run: the cache alias 'memory' is not Redis, ") as caught:
        call_command("redislocks", "run", NAME, "--", "touch", f"{tmp_path}/ran")
    assert caught.value.returncode == 2
    assert not (tmp_path / "ran").exists()
    settings.DEBUG = True
    assert sh(f"touch {tmp_path}/ran") == 0
    assert (tmp_path / "ran").exists()
