"""``redislocks run``: a lock that is lost while the program runs, and a Redis that is out of reach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_redislock import force_release
from django_redislock.cli.program import Relay
from redisserver import RedisServer
from tests.cli.conftest import NOWHERE, Eventually, InProcess
from tests.cli.programs import FOREVER, NAME, Background, is_running, number_in, sh
from tests.helpers.actors import GENEROUS

pytestmark = pytest.mark.usefixtures("no_terminal")


def lose_when(ready: Path, eventually: Eventually) -> Callable[[], None]:
    def lose() -> None:
        eventually(ready.exists)
        force_release(NAME)

    return lose


def test_the_program_is_ended_when_the_lock_is_lost(
    background: Background, eventually: Eventually, tmp_path: Path
) -> None:
    background(lose_when(tmp_path / "ready", eventually))
    script = f"trap 'echo ended > {tmp_path}/out; exit 0' TERM; touch {tmp_path}/ready; {FOREVER}"
    with pytest.raises(CommandError, match=rf"The lock '{NAME}' was lost .*force-released") as caught:
        call_command("redislocks", "run", NAME, "--", "sh", "-c", script)
    assert caught.value.returncode == 76
    assert (tmp_path / "out").read_text() == "ended\n"


def test_a_program_that_ignores_sigterm_is_killed_with_all_its_children(
    background: Background, eventually: Eventually, tmp_path: Path
) -> None:
    background(lose_when(tmp_path / "ready", eventually))
    child = f"trap '' TERM; echo \\$\\$ > {tmp_path}/pid; touch {tmp_path}/ready; {FOREVER}"
    assert sh(f'sh -c "{child}" & {FOREVER}', "--kill-after", "0.3") == 76
    assert not is_running(number_in(tmp_path / "pid"))


def test_process_1_of_a_container_does_not_wait_for_zombies_that_are_its_own(
    process_1: None, background: Background, eventually: Eventually, tmp_path: Path
) -> None:
    background(lose_when(tmp_path / "ready", eventually))
    child = f"trap '' TERM; touch {tmp_path}/ready; {FOREVER}"
    assert sh(f'sh -c "{child}" & {FOREVER}', "--kill-after", "0.3") == 76


def test_a_stopped_program_is_ended_too(background: Background, eventually: Eventually, tmp_path: Path) -> None:
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


# -- a Redis that is out of reach -----------------------------------------------------------------------------------


def stop_when(ready: Path, eventually: Eventually, server: RedisServer) -> Callable[[], None]:
    def stop() -> None:
        eventually(ready.exists)
        server.stop()
        (ready.parent / "stopped").touch()

    return stop


@pytest.mark.complete
def test_the_program_is_ended_when_the_lock_cannot_be_renewed(
    own: RedisServer, background: Background, eventually: Eventually, tmp_path: Path
) -> None:
    background(stop_when(tmp_path / "ready", eventually, own))
    assert sh(f"touch {tmp_path}/ready; {FOREVER}", "--ttl", "0.6") == 76


def test_redis_out_of_reach_at_the_end_does_not_change_the_programs_status(
    own: RedisServer,
    background: Background,
    eventually: Eventually,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    background(stop_when(tmp_path / "ready", eventually, own))
    script = f"touch {tmp_path}/ready; while [ ! -e {tmp_path}/stopped ]; do sleep 0.02; done; exit 3"
    assert sh(script, "--ttl", "60") == 3
    assert "event=not-released" in caplog.text


def test_redis_out_of_reach_at_the_start_has_a_status_of_its_own(tmp_path: Path) -> None:
    with override_settings(CACHES=NOWHERE):
        assert sh(f"touch {tmp_path}/ran") == 69
    assert not (tmp_path / "ran").exists()


def test_an_unreachable_redis_is_reported_once(run_in_process: InProcess) -> None:
    environment = {"REDISLOCK_TEST_URL": "redis://127.0.0.1:1/0"}
    process = run_in_process(NAME, "--", "true", environment=environment)
    _, err = process.communicate(timeout=GENEROUS)
    assert err.startswith("CommandError: Redis cannot be reached")
    assert err.count("\n") == 1
