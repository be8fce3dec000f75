"""``redislocks run --stay``: of many machines one runs the program, and the next one takes over."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_redislock import Lock, force_release, get_lock
from redisserver import RedisServer
from tests.cli.conftest import FOREVER, NAME, fails, sh, written
from tests.helpers.actors import GENEROUS, until
from tests.helpers.state import hold, queued
from tests.inside import keys_of

pytestmark = pytest.mark.usefixtures("no_terminal")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where a program notes the fence of each run; the second one exits with 5."""
    return tmp_path / "runs"


def noted(runs: Path) -> str:
    return f"echo $REDISLOCK_FENCE >> {runs}; [ $(wc -l < {runs}) = 2 ] && exit 5"


def test_of_two_machines_one_runs_it_and_the_next_one_takes_over(in_process: Any, client: Any, tmp_path: Any) -> None:
    job = ["run", NAME, "--stay", "--", "sh", "-c", f"echo >> {tmp_path}/runs; {written(tmp_path / 'end')}; exit 3"]
    one = in_process(*job)
    until(lambda: len(lines(tmp_path / "runs")) == 1)
    two = in_process(*job)
    until(lambda: queued(client, NAME) == 1)
    (tmp_path / "end").write_text("end")
    assert one.communicate(timeout=GENEROUS) == ("", "")
    assert two.communicate(timeout=GENEROUS) == ("", "")  # it waits in silence
    assert (one.returncode, two.returncode, len(lines(tmp_path / "runs"))) == (3, 3, 2)
    assert get_lock(NAME) is None


def test_after_a_loss_it_ends_the_program_and_stands_by_again(once_ready: Callable[..., str], runs: Path) -> None:
    ready = once_ready(lambda: force_release(NAME))
    assert sh(f"{noted(runs)}; {ready}; {FOREVER}", "--stay", "--kill-after=600") == 5
    assert int(lines(runs)[0]) < int(lines(runs)[1])
    assert get_lock(NAME) is None


@pytest.mark.complete
def test_a_redis_that_is_away_ends_even_a_stubborn_program_before_the_lease_and_it_runs_again_later(
    own: RedisServer, once_ready: Callable[..., str], runs: Path, tmp_path: Path
) -> None:
    beat, ends = tmp_path / "beat", 0.0

    def stop() -> None:
        nonlocal ends
        with own.client() as client:
            ends = time.time() + int(client.pttl(keys_of(NAME).lock)) / 1000
        own.stop()
        until(lambda: time.time() > beat.stat().st_mtime + 5)  # it was killed
        own.start()

    script = f"trap '' TERM; {noted(runs)}; touch {beat}; {once_ready(stop)}; while :; do touch {beat}; done"
    assert sh(script, "--stay", "--ttl=12") == 5
    assert ends - 6 < beat.stat().st_mtime < ends


def test_it_stands_by_while_redis_is_away(own: RedisServer, other: Any, caplog: Any, settings: Any) -> None:
    settings.REDISLOCK = {"RETRY_FOR": 0.05}
    own.stop()
    back = other().start(lambda: until(lambda: "event=standby-cut-off" in caplog.text) and own.start())
    assert sh("exit 3", "--stay") == 3
    back.result(GENEROUS)


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]], ids=["one", "two"])
@pytest.mark.complete
def test_a_signal_ends_a_standby_and_takes_it_out_of_the_queue(numbers: list[int], other: Any, client: Any) -> None:
    hold(NAME)

    def strike() -> None:
        until(lambda: queued(client, NAME))
        for number in numbers:
            os.kill(os.getpid(), number)

    struck = other().start(strike)
    assert sh("exit 3", "--stay") in [128 + number for number in numbers]
    struck.result(GENEROUS)
    until(lambda: not queued(client, NAME))


@pytest.mark.complete
def test_a_signal_to_the_leader_is_the_programs_and_it_does_not_stand_by_again_even_if_the_lock_is_lost(
    once_ready: Callable[..., str], caplog: Any, tmp_path: Path
) -> None:
    assert sh(f"kill -TERM $PPID; {FOREVER}", "--stay") == 128 + signal.SIGTERM

    def lose() -> None:
        force_release(NAME)
        until(lambda: "event=lost" in caplog.text)
        (tmp_path / "lost").write_text("lost")

    on_term = f"{once_ready(lose)}; {written(tmp_path / 'lost')}; exit 0"
    assert sh(f'trap "{on_term}" TERM; kill -TERM $PPID; {FOREVER}', "--stay", "--kill-after=600") == 76


def test_a_hangup_that_the_program_survives_does_not_keep_it_from_standing_by_again(once_ready: Any, runs: Any) -> None:
    hung_up = f"trap 'touch {runs}-hup' HUP; kill -HUP $PPID; while [ ! -e {runs}-hup ]; do sleep 0.01; done"
    assert sh(f"{noted(runs)}; {hung_up}; {once_ready(lambda: force_release(NAME))}; {FOREVER}", "--stay") == 5


@pytest.mark.parametrize("option", ["--limit=2", "--blocking-timeout=5", "--at-least=60"])
def test_it_is_refused_with_options_that_contradict_it(option: str) -> None:
    with Lock(NAME):
        fails(2, re.escape("goes with none of --limit, "), "run", NAME, "--stay", option, "--", "true")
