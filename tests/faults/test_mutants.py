"""The histories of real workers: nothing is wrong with them, and every fault that is put into the scripts shows."""

from __future__ import annotations

import pytest

from redisserver import RedisServer

from .mutants import MUTANTS
from .trial import Launcher, trial


@pytest.mark.complete
def test_workers_that_nobody_disturbs_do_nothing_wrong(launcher: Launcher, bare_server: RedisServer) -> None:
    with trial(launcher, bare_server) as run:
        run.obtained(100)
        assert run.finish() == []
        assert run.history.count("released") > 200


@pytest.mark.complete
@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_the_scripts_is_found(name: str, launcher: Launcher, bare_server: RedisServer) -> None:
    mutant = MUTANTS[name]
    with trial(launcher, bare_server, mutant=name, ttl=mutant.ttl) as run:
        run.until(lambda: run.shows(mutant.found) or run.enough(mutant.sections))
        assert run.shows(mutant.found) or {wrong.kind for wrong in run.finish()} & mutant.found
