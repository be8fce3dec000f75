"""The exhaustive model of the protocol keeps its guarantees, and violates them without its rules."""

from __future__ import annotations

import os

import pytest

from .search import search
from .world import Scene

FAULTS = int(os.environ.get("REDISLOCK_TEST_FAULTS", "1"))

TWO, THREE = (0, 0, 1), (0, 1, 2)  # the process of each attempt
SCENES = [(TWO, "abc"), (THREE, "abc")]
# a restarted job: in the same process, in another one, and with another attempt beside it
AGAIN = [(TWO, "aab"), ((0, 1, 1), "aab"), (THREE, "aab")]


def name(scene: Scene) -> str:
    return f"{''.join(map(str, scene.homes))}-{scene.tokens}-{scene.faults}"


@pytest.mark.timeout(0 if FAULTS > 1 else 180)
@pytest.mark.parametrize(
    "scene",
    [
        *(Scene(homes, tokens, faults=0) for homes, tokens in [*SCENES, *AGAIN]),
        *(
            pytest.param(Scene(homes, tokens, faults=FAULTS), marks=pytest.mark.complete)
            for homes, tokens in [*SCENES, *AGAIN]
        ),
    ],
    ids=name,
)
def test_no_order_of_events_breaks_a_promise(scene: Scene) -> None:
    all_promises_are_kept(scene)


def all_promises_are_kept(scene: Scene) -> None:
    found = search(scene)
    print(found)
    assert not found.violation, str(found)
    assert found.states > 100


@pytest.mark.parametrize(
    ("rule", "scene", "violation", "action"),
    [
        # a stopped process continues and enters because of an old message
        ("R1", (TWO, "abc"), "two holders: ", "go_on"),
        ("R6", (TWO, "abc"), "forgotten: 1 waits and is not queued", "subscribe"),
        ("R7", (TWO, "abc"), "orphan: ", "leave_unheard"),
        ("R9", (TWO, "abc"), "refused: ", "expire"),
        ("R16", (TWO, "aab"), "two holders: ", "send_pending"),  # a late release frees the lock of a later attempt
        ("R16", ((0, 1, 1), "aab"), "two holders: ", "send_pending"),
    ],
)
def test_a_promise_is_broken_when_a_rule_is_left_out(
    rule: str, scene: tuple[tuple[int, ...], str], violation: str, action: str
) -> None:
    found = search(Scene(*scene, faults=1, without=rule))
    print(found)
    assert found.violation.startswith(violation), str(found)
    assert any(action in step for step in found.trace)
