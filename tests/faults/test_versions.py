"""A rolling deployment: processes of the version that was released last, and of this one, share their locks."""

from __future__ import annotations

import pytest

from redisserver import RedisServer

from .trial import Launcher, trial


@pytest.mark.complete
def test_processes_of_two_versions_share_their_locks_under_load(launcher: Launcher, bare_server: RedisServer) -> None:
    """The old ones are killed and replaced, one after the other, in the end by an old one: a step back."""
    with trial(launcher, bare_server, workers=0) as run:
        processes = [run.add(released=True) for _ in range(3)]
        for process, released in zip(processes, (False, False, True), strict=True):
            run.obtained(30)
            run.kill(process)
            run.add(released=released)
        run.obtained(30)
        assert run.finish() == []
