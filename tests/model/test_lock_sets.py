"""The model of sets of locks keeps its promises, and breaks them without its rules."""

import pytest

from .lock_sets import read_scene, search

SCENES = [
    "ab ba 1",
    "ab+ ba+ 1",
    "ab ba+ ab 1",
    "ab+ ba+ ab+ 1",
    "ab bc ca 1",
    "ab+ bc+ ca+ 1",
    "abc cab bca+ 1",
    "abc+ cab+ bca+ 1",
    "abc+ b bc 2",
    "ab+ ba bc+ ca 0",
    "abc+ cba+ ab bc+ 0",
    pytest.param("abcd+ dbca+ bd cab+ 1", marks=pytest.mark.complete),
    pytest.param("ab+ ba+ bc+ ca+ ab 0", marks=pytest.mark.complete),
]


@pytest.mark.parametrize("scene", SCENES)
def test_sets_never_wait_in_a_circle_and_leave_nothing(scene: str) -> None:
    found = search(read_scene(scene.split()))
    assert not found.violation, str(found)
    assert found.states > 50


@pytest.mark.parametrize(
    ("scene", "violation", "action"),
    [
        ("ab ba 0 order", "circle: ", "ask"),
        ("ab bc ca 0 order", "circle: ", "ask"),
        ("ab+ bc+ ca+ b 0 order", "circle: ", "ask"),
        # it waits for b, and has kept c, for which the holder of b waits
        ("abc+ bc b 0 behind", "circle: ", "ask"),
        ("abc+ b 0 behind", "all or none: 0 has left", "leave"),
        ("ab b 0 back", "all or none: 0 has left", "give_up"),
        ("ab+ ab 0 back", "all or none: 1 has left", "give_up"),
        ("ab ab 0 handed", "all or none: ", "give_up"),
    ],
)
def test_a_rule_that_is_left_out_is_missed(scene: str, violation: str, action: str) -> None:
    found = search(read_scene(scene.split()))
    assert found.violation.startswith(violation), str(found)
    assert any(step.startswith(f"{action} ") for step in found.trace), str(found)
