"""The exhaustive model of the protocol (tests/model) keeps its promises, and does not without its rules."""

from __future__ import annotations

import os

import pytest

from .model.search import search
from .model.world import Scene

FAULTS = int(os.environ.get("REDISLOCK_TEST_FAULTS", "1"))

TWO, THREE = (0, 0, 1), (0, 1, 2)  # the process of each client
MIXED = [("FFL", TWO), ("LFF", TWO), ("FLL", TWO), ("LLF", TWO), ("FFL", THREE), ("FLL", THREE)]
PURE = [("FFF", TWO), ("FFF", THREE), ("LLL", TWO), ("LLL", THREE)]
SHORT = [*PURE[:3], MIXED[0]]  # with faults; each takes seconds


def name(scene: Scene) -> str:
    return f"{scene.modes}-{''.join(map(str, scene.homes))}-{scene.faults}"


@pytest.mark.timeout(0 if FAULTS > 1 else 180)
@pytest.mark.parametrize(
    "scene",
    [
        *(Scene(modes, homes, faults=0) for modes, homes in [*PURE, *MIXED]),
        *(Scene(modes, homes, faults=FAULTS) for modes, homes in (SHORT if FAULTS == 1 else [*PURE, *MIXED])),
    ],
    ids=name,
)
def test_no_order_of_events_breaks_a_promise(scene: Scene) -> None:
    found = search(scene)
    print(found)
    assert not found.violation, str(found)
    assert found.states > 1000


@pytest.mark.parametrize("modes", ["FFF", "LLL"])
@pytest.mark.parametrize(
    ("rule", "violation", "action"),
    [
        ("R1", "two holders: ", "go_on"),  # one who stood still enters by what he reads then
        ("R6", "forgotten: 1 waits and is not queued", "subscribe"),
        ("R7", "orphan: ", "leave_unheard"),
        ("R9", "refused: ", "expire"),
    ],
)
def test_a_promise_is_broken_when_a_rule_is_left_out(rule: str, violation: str, action: str, modes: str) -> None:
    found = search(Scene(modes, TWO, faults=1, without=rule))
    print(found)
    assert found.violation.startswith(violation), str(found)
    assert any(action in step for step in found.trace)
