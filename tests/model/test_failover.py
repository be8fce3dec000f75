"""The guarantees hold across a failover, and are violated without the rules for it."""

from __future__ import annotations

from typing import Any

import pytest

from .search import search
from .test_model import all_promises_are_kept
from .world import Scene

HELD = "begin 0, serve 0, begin 1, serve 1, begin 2, serve 2"  # one attempt holds the lock, and two wait
MOVED = f"{HELD}, fail_over 0, moved 1, subscribe 1"  # then process 1 finds the new master
WOKEN = f"{MOVED}, leave 0"
CUT = f"{HELD}, cut 1"  # then Redis takes process 1 for dead
# then process 0 has not read the message about a handoff that is lost
TOLD = f"{CUT}, fall_behind 0, leave 0, stop 0, fail_over 0"
LATE = "begin 0, begin 1, serve 1, begin 2, stop 1, serve 2"  # an answer has arrived, and is not read yet


def make_scene(homes: str, tokens: str = "abc", faults: int = 0, lost: int = 0, **more: Any) -> Scene:
    return Scene(tuple(map(int, homes)), tokens, faults, lost=lost, **more)


def name(scene: Scene) -> str:
    words = [
        scene.clock,
        "acknowledged" * scene.acknowledged,
        "together" * scene.together,
        "wakes" * scene.wakes,
        scene.only,
    ]
    return "-".join(["".join(map(str, scene.homes)), scene.tokens, f"lost{scene.lost}", *filter(None, words)])


@pytest.mark.parametrize(
    "scene",
    [
        make_scene("01", "ab"),
        make_scene("01", "ab", clock="ahead"),
        make_scene("01", "ab", clock="behind"),
        make_scene("01", "ab", lost=1),
        make_scene("01", "ab", lost=1, clock="ahead"),
        make_scene("01", "ab", lost=1, acknowledged=True),
        make_scene("01", "ab", lost=1, acknowledged=True, clock="behind"),
        make_scene("01", "aa", lost=1, together=True),
        make_scene("01", "aa", lost=1, together=True, acknowledged=True),
        make_scene("011", "aab", lost=1),
        make_scene("000", lost=1, clock="behind", story=HELD),
        make_scene("001", lost=2, story=HELD),
        make_scene("012", lost=1, story=HELD),
        make_scene("012", lost=1, acknowledged=True, story=HELD),
        make_scene("001", lost=1, story="begin 0, serve 0"),
        make_scene("010", faults=1, only="cut", lost=1, story=CUT),
        make_scene("01", "ab", faults=1, lost=1),
        make_scene("01", "ab", faults=1, lost=1, acknowledged=True),
        make_scene("010", faults=1, only="stop", clock="ahead", story=MOVED),
        make_scene("011", faults=1, only="stop", clock="behind", story=f"{HELD}, leave 0"),
        make_scene("011", "aab", faults=1, only="stop", together=True, story=LATE),
        make_scene("01", "ab", wakes=True),
        make_scene("01", "ab", lost=1, wakes=True),
        make_scene("010", wakes=True, story=MOVED),
        make_scene("011", faults=1, only="stop", wakes=True, story=MOVED),
    ],
    ids=name,
)
@pytest.mark.complete
def test_a_failover_breaks_no_promise(scene: Scene) -> None:
    all_promises_are_kept(scene)


@pytest.mark.parametrize(
    ("rule", "scene", "violation", "action"),
    [
        # a handoff by the old master is judged by the new one's clock; one by the new master by the old one's
        (
            "C2",
            make_scene("011", faults=1, only="stop", clock="behind", story=f"{HELD}, leave 0"),
            "two holders: ",
            "go_on",
        ),
        ("C2 look", make_scene("010", faults=1, only="stop", clock="ahead", story=WOKEN), "two holders: ", "go_on"),
        # a process that stays subscribed at the old master is dropped by each script that frees the lock
        ("C3", make_scene("01", "ab"), "forgotten: 1 waits, and is taken for dead", "fail_over"),
        ("C3 all", make_scene("001"), "forgotten: 1 waits and is not queued", "subscribe"),
        # the same handoff, through the old master
        ("C3 close", make_scene("010", faults=1, only="stop", clock="ahead", story=WOKEN), "two holders: ", "go_on"),
        # the old master was paused, and hands over when it wakes up
        ("C3 signed", make_scene("01", "ab", wakes=True), "two holders: ", "wake_up"),
        # and it answers what was asked of it before
        ("C7", make_scene("01", "ab", wakes=True), "two holders: ", "answer_late"),
        # a late answer of the old master ends the subscription at the new one: a holder seems dead, and loses its lock
        ("C3 late", make_scene("011", "aab", 1, only="stop", together=True, story=LATE), "two holders: ", "read"),
        ("C6", make_scene("001", lost=1, acknowledged=True, story=HELD), "two holders: ", "wake"),
        ("C6 repeat", make_scene("01", "ab", lost=1, acknowledged=True), "two holders: ", "serve"),
        ("C6 renewal", make_scene("01", "ab", lost=1, acknowledged=True), "two holders: ", "renew"),
        ("known", make_scene("00", "ab", lost=1, clock="behind"), "fences: ", "fail_over"),
        ("known wakes", make_scene("000", lost=1, clock="behind", story=HELD), "fences: ", "wake"),
        ("adopt", make_scene("01", "aa", together=True), "two holders: ", "fail_over"),
        # a waiter whose handoff was lost is in the queue again, and is handed the lock again after another one had it
        (
            "renewal",
            make_scene("010", faults=1, lost=1, only="cut", story=f"{CUT}, fall_behind 0"),
            "not told: 2 ",
            "renew",
        ),
        # so is one that was told of the first handoff, and confirms the second
        ("renewal", make_scene("010", faults=2, lost=1, acknowledged=True, story=TOLD), "fences: 2 enters", "wake"),
    ],
)
@pytest.mark.complete
def test_a_promise_is_broken_when_a_rule_is_left_out(rule: str, scene: Scene, violation: str, action: str) -> None:
    found = search(scene._replace(without=rule))
    print(found)
    assert found.violation.startswith(violation), str(found)
    assert any(f" {action} " in step for step in found.trace)


@pytest.mark.parametrize(
    ("scene", "violation"),
    [
        # the new master's clock is ahead, and ends a lease that its holder believes, acknowledged or not
        (make_scene("01", "ab", clock="ahead", acknowledged=True), "two holders: "),
        # it is behind, the last fence is lost, and the caller does not know that fence
        (make_scene("01", "ab", lost=1, clock="behind"), "fences: "),
    ],
)
def test_no_rule_helps_against_clocks_that_differ_too_much(scene: Scene, violation: str) -> None:
    found = search(scene)
    print(found)
    assert found.violation.startswith(violation), str(found)
