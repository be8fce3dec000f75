"""``redislocks run``: a program under a lock; its arguments, and a busy lock."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_redislock import Lock, get_lock
from redisserver import RedisServer
from tests.cli.conftest import NAME, InProcess, fails, main, sh
from tests.helpers.actors import GENEROUS, Other

pytestmark = pytest.mark.usefixtures("no_terminal")


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 75", 75), ("exit 255", 255), (f"kill -{int(signal.SIGKILL)} $$", 128 + signal.SIGKILL)],
)
def test_the_programs_exit_status_is_passed_through(script: str, status: int, other: Callable[[], Other]) -> None:
    assert sh(script) == other()(lambda: sh(script)) == status  # from a thread, too


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


@pytest.mark.complete
def test_the_lock_is_renewed_while_the_program_runs(settings: Any) -> None:
    settings.REDISLOCK = {"AUTO_RENEW": False}  # applies only to locks in code
    assert sh("sleep 1.5", "--ttl", "1") == 0


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
    fails(126, "Permission denied", *run_it, str(text))
    assert get_lock(NAME) is None


def test_a_busy_lock_has_a_status_of_its_own_and_the_program_is_not_run(tmp_path: Path) -> None:
    with Lock(NAME):
        assert sh(f"touch {tmp_path}/ran") == 75
        assert sh(f"touch {tmp_path}/ran", "-E", "0") == 0
        assert sh(f"touch {tmp_path}/ran", "--blocking-timeout", "0.2") == 75
        held_by = rf"^Could not acquire the lock {NAME}: held by \S+:{os.getpid()}:\S+ for \d+(\.\d)? s\.$"
        fails(75, held_by, "run", NAME, "--", "true")
    assert not (tmp_path / "ran").exists()


@pytest.mark.complete
def test_a_crontab_on_many_machines_runs_a_job_once(in_process: InProcess, tmp_path: Path) -> None:
    job = ["run", NAME, "--at-least=60", "--", "sh", "-c", f"echo ran >> {tmp_path}/out"]
    crowd = [in_process(*job) for _ in range(4)]
    assert {process.communicate(timeout=2 * GENEROUS) for process in crowd} == {("", "")}  # cron has nothing to mail
    assert sorted(process.returncode for process in crowd) == [0, 75, 75, 75]
    assert (tmp_path / "out").read_text() == "ran\n"


def test_at_least_keeps_the_lock_until_then() -> None:
    assert sh("sleep 0.3", "--at-least", "0.2") == 0
    assert get_lock(NAME) is None
    assert sh("exit 3", "--at-least", "40", "--ttl", "5") == 3
    info = get_lock(NAME)
    assert info is not None
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


def test_in_a_shell_wrong_arguments_end_with_2_and_programs_inherit_the_streams(
    in_process: InProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("run", NAME, "true") == 2
    assert capsys.readouterr().err.startswith("usage: ")
    process = in_process("run", NAME, "--", "sh", "-c", "read line; echo out $line; echo err $line >&2")
    assert process.communicate("hello\n", timeout=2 * GENEROUS) == ("out hello\n", "err hello\n")


def test_using_names_the_alias(settings: Any, server: RedisServer) -> None:
    other = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url, "KEY_PREFIX": "other"}
    settings.CACHES = {**settings.CACHES, "other": other}
    with Lock(NAME):
        assert sh("exit 3", "--using", "other") == 3
    fails(2, "Unknown cache alias 'nowhere'", "run", NAME, "--using", "nowhere", "--", "true")


def test_the_program_is_not_run_if_the_lock_would_guard_nothing(settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "memory"}
    fails(2, r"^Not run: the cache alias 'memory' is not Redis, ", "run", NAME, "--", "true")
    settings.DEBUG = True
    assert sh("exit 3") == 3
