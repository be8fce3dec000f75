"""Processes of the last release and of this version share their locks: see docs/releases.rst.

Under load they do so in tests/faults/test_versions.py.
"""

from __future__ import annotations

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import django_redislock
from django_redislock.store.scripts import Script
from tests.protocol.machine import QUIETLY, Change, must_find_a_fault, prepared
from tests.protocol.released import released, translate

# versions that are incompatible with the others
STRANGERS: dict[str, list[Change]] = {
    "handoffs have another flag": [
        ("pieces/hand_over.lua", "'h', lease", "'n', lease"),
        ("pieces/lease_key.lua", "flag == 'h'", "flag == 'n'"),
        ("renew.lua", "flag == 'h' or", "flag == 'n' or"),
    ],
    "the mark of a handoff has another name": [
        ("pieces/hand_over.lua", "KEYS.waiters, '!'", "KEYS.waiters, '#'"),
        ("pieces/lease_key.lua", "KEYS.waiters, '!'", "KEYS.waiters, '#'"),
        ("pieces/pass_on.lua", "HMGET', waiters, '!'", "HMGET', waiters, '#'"),
    ],
    "grants are told by another word": [("pieces/handoff.lua", "'g ' ..", "'G ' ..")],
}


def test_the_released_scripts_are_those_of_a_version_before_or_of_this_one() -> None:
    def numbers(version: str) -> list[int]:
        return [int(number) for number in version.split(".")]

    assert numbers(released()["version"]) <= numbers(django_redislock.__version__)


@pytest.mark.complete
def test_processes_of_two_versions_do_together_what_the_reference_says(client: redis.Redis) -> None:
    with prepared(client, released=[]) as machine:
        run_state_machine_as_test(machine, settings=settings(QUIETLY, max_examples=30, derandomize=True))


@pytest.mark.complete
@pytest.mark.parametrize("name", STRANGERS)
def test_a_version_that_is_incompatible_with_the_others_is_found(name: str, client: redis.Redis) -> None:
    with prepared(client, released=STRANGERS[name]) as machine:
        must_find_a_fault(machine, 1)


def test_a_call_is_translated_by_the_names_of_keys_and_arguments() -> None:
    now, then = Script("info"), Script("info")
    now.keys, now.args = ("lock", "queue", "news"), ("name", "news", "most")
    then.keys, then.args = ("queue", "lock", "gone"), ("most", "name")
    command = translate(now, then, ["l", "q", "n"], ["order:42", "n", 3, "more"])
    assert [*command] == ["EVALSHA", then.sha, "2", "q", "l", 3, "order:42", "more"]
