"""No update is lost under a fenced lock, whatever happens; and bugs that are put into the fencing are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from redisserver import RedisServer

from . import booker
from .fencing import CLOCK, DATABASES, ONE_SERVER, Figures, Stage, book, flush
from .trial import Launcher

pytestmark = pytest.mark.complete

# the violations that each of them causes
FOUND = {
    "claim_nothing": {"lost", "unclaimed", "row"},
    "claim_after_the_first_read": {"lost"},
    "compare_the_wrong_way_round": {"lost", "overlap", "row"},
}


@pytest.fixture(scope="module")
def bookers() -> Iterator[Launcher]:
    made = Launcher(booker.__name__)
    yield made
    made.close()


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> dict[str, Any]:
    options: dict[str, Any] = request.getfixturevalue(request.param)
    return options


@pytest.fixture(autouse=True)
def _databases(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


def kinds(figures: Figures) -> set[str]:
    return {violation.kind for violation in figures.violations}


@pytest.mark.parametrize("stage", [ONE_SERVER, CLOCK], ids=["one server", "clock"])
def test_no_update_is_lost(stage: Stage, database: dict[str, Any], bookers: Launcher) -> None:
    with stage.server() as server:
        found = book(bookers, server, database, "fenced", stage.strikes, rest=30)
    assert found.violations == ()
    assert found.lost == 0
    assert found.sections > 100


def until_lost(
    launcher: Launcher, server: RedisServer, database: dict[str, Any], way: str, mutant: str | None = None
) -> Figures:
    """One run, or several: on a busy machine, a booker that has not read yet may be mistaken for one that waits."""
    for seed in range(5):
        found = book(launcher, server, database, way, [flush], seed=seed, mutant=mutant)
        if found.lost:
            break
    return found


@pytest.mark.parametrize("mutant", FOUND)
def test_a_bug_in_the_fencing_is_found(
    mutant: str, postgres: dict[str, Any], bookers: Launcher, bare_server: RedisServer
) -> None:
    """On databases where nothing else makes up for a claim that is missing or late."""
    found = until_lost(bookers, bare_server, postgres, "fenced", mutant)
    assert found.lost > 0
    assert kinds(found) >= FOUND[mutant]


def test_without_a_fence_updates_are_lost(
    postgres: dict[str, Any], bookers: Launcher, bare_server: RedisServer
) -> None:
    assert until_lost(bookers, bare_server, postgres, "unfenced").lost > 0
