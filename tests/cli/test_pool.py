"""``redislocks pool`` shows a pool: who holds its members, and who waits."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable

import pytest
from django.core.management import CommandError, call_command

from django_redislock import LockPool
from tests.cli.conftest import Eventually, redislocks
from tests.helpers.actors import GENEROUS, Other


@pytest.fixture
def pool() -> LockPool:
    return LockPool("proxies")


def test_it_tells_how_many_are_free_and_who_holds_the_others(pool: LockPool) -> None:
    pool.extend(["a", "b:c", "d"])
    with pool.acquire() as first, pool.acquire() as second:
        text = redislocks("pool", "proxies")
    facts, held = text.split("\n\n")
    assert dict(re.split(r" {2,}", line) for line in facts.splitlines()) == {
        "POOL": "proxies",
        "MEMBERS": "3",
        "FREE": "1",
        "WAITERS": "0",
    }
    assert [line.split()[0] for line in held.splitlines()] == ["NAME", *sorted([first.name, second.name])]


def test_of_an_unused_pool_only_numbers_are_shown(pool: LockPool) -> None:
    pool.extend(["a"])
    assert redislocks("pool", "proxies") == "POOL     proxies\nMEMBERS  1\nFREE     1\nWAITERS  0\n"


def test_it_shows_its_queue(pool: LockPool, other: Callable[[], Other], eventually: Eventually) -> None:
    pool.extend(["a"])
    with pool.acquire():
        waiting = other().start(lambda: pool.acquire(blocking_timeout=GENEROUS).release())
        eventually(lambda: pool.info().waiters == 1)
        text = redislocks("pool", "proxies")
        found = json.loads(redislocks("pool", "proxies", "--format=json"))
    waiting.result(GENEROUS)
    assert re.search(r"\n\n#  WAITER +WAITED\n1  \S.* s$", text.rstrip())
    assert found["alias"] == "default"
    assert (found["name"], found["members"], found["free"], found["waiters"]) == ("proxies", 1, 0, 1)
    assert [lock["name"] for lock in found["locks"]] == ["pool:proxies:a"]
    assert [set(waiter) for waiter in found["queue"]] == [{"owner", "waited", "note", "gone"}]


def fails() -> str:
    """The output for a pool without members."""
    out = io.StringIO()
    with pytest.raises(CommandError, match=r"^The pool proxies has no members\.$") as caught:
        call_command("redislocks", "pool", "proxies", stdout=out)
    assert caught.value.returncode == 1
    return out.getvalue()


def test_a_pool_without_members_fails() -> None:
    assert fails() == ""


def test_it_fails_too_if_somebody_waits_and_shows_the_waiters(
    pool: LockPool, other: Callable[[], Other], eventually: Eventually
) -> None:
    waiting = other().start(lambda: pool.acquire(blocking_timeout=GENEROUS).release())
    eventually(lambda: pool.info().waiters == 1)
    assert "WAITERS  1\n\n#  WAITER" in fails()
    pool.extend(["a"])
    waiting.result(GENEROUS)


def test_a_member_that_was_taken_out_is_shown_as_long_as_it_is_held(pool: LockPool) -> None:
    pool.extend(["a"])
    with pool.acquire() as member:
        pool.clear()
        assert re.search(rf"^{member.name} ", fails(), re.M)
        assert redislocks("pool") == "There are no pools.\n"


def test_without_a_name_it_lists_all_pools(pool: LockPool, other: Callable[[], Other], eventually: Eventually) -> None:
    assert redislocks("pool") == "There are no pools.\n"
    LockPool("accounts").extend(map(str, range(12)))
    pool.extend(["a"])
    with pool.acquire():
        waiting = other().start(lambda: pool.acquire(blocking_timeout=GENEROUS).release())
        eventually(lambda: pool.info().waiters == 1)
        text = redislocks("pool")
        found = json.loads(redislocks("pool", "--format=json"))
    waiting.result(GENEROUS)
    assert [line.split() for line in text.splitlines()] == [
        ["POOL", "MEMBERS", "HELD", "WAITERS"],
        ["accounts", "12", "0", "0"],
        ["proxies", "1", "1", "1"],
    ]
    accounts = {"name": "accounts", "alias": "default", "members": 12, "held": 0, "waiters": 0}
    assert found == [accounts, {**accounts, "name": "proxies", "members": 1, "held": 1, "waiters": 1}]


def test_a_name_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(CommandError, match="has 607 bytes"):
        redislocks("pool", " " * 200)
