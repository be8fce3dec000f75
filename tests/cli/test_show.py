"""``redislocks show`` shows one lock and its queue."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import redis
from django.core.management import CommandError

from django_redislock import Lock, LockPool, WaiterInfo, get_lock
from django_redislock.cli.formats import portrait
from tests.cli.conftest import WaitFor, hold, redislocks
from tests.helpers.actors import Ghost

KEY = "redislock{0}:lock:order:42"


def test_it_tells_all_about_a_lock_and_its_queue(wait_for: WaitFor) -> None:
    with Lock("order:42", ttl=600) as lock:
        for _ in range(2):
            wait_for("order:42")
        fence, text = lock.fence, redislocks("show", "order:42")
    top, queue = text.split("\n\n")
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in top.splitlines())
    assert list(facts) == ["NAME", "OWNER", "SINCE", "HELD FOR", "LEASE LEFT", "FENCE", "TOKEN", "WAITERS"]
    assert (facts["NAME"], facts["FENCE"], facts["WAITERS"]) == ("order:42", str(fence), "2")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+", facts["SINCE"])
    head, *rows = [re.split(r" {2,}", line) for line in queue.splitlines()]
    assert head == ["#", "WAITER", "WAITED"]
    assert [row[0] for row in rows] == ["1", "2"]
    assert all(f":{os.getpid()}:" in row[1] for row in rows)


def test_without_waiters_only_the_lock_is_shown() -> None:
    hold("order:42")
    assert redislocks("show", "order:42").endswith("WAITERS     0\n")


def test_notes_are_shown_if_there_are_any() -> None:
    hold("order:42", note="of the year")
    info = get_lock("order:42")
    assert info is not None
    assert "NOTE        of the year\n" in redislocks("show", "order:42")
    queue = (WaiterInfo("host:2:Main", 3.0, "first\nsecond"), WaiterInfo("host:3:Main", 2.0))
    head, *rows = portrait(replace(info, waiters=2, queue=queue)).splitlines()[-3:]
    assert re.split(r" {2,}", head) == ["#", "WAITER", "WAITED", "NOTE"]
    assert [re.split(r" {2,}", row)[3:] for row in rows] == [[r"'first\nsecond'"], []]


def test_waiters_whose_process_was_killed_are_marked(ghost: Callable[..., Ghost]) -> None:
    hold("order:42")
    ghost(alive=False).queue("1" * 22, name="order:42", age=2)
    ghost().queue("2" * 22, name="order:42")
    head, *rows = redislocks("show", "order:42").splitlines()[-3:]
    assert re.split(r" {2,}", head) == ["#", "WAITER", "WAITED", "PROCESS"]
    assert [re.split(r" {2,}", row)[3:] for row in rows] == [["gone"], []]


def test_it_says_how_many_more_wait_than_it_lists() -> None:
    hold("order:42")
    info = get_lock("order:42")
    assert info is not None
    lines = portrait(replace(info, waiters=1234, queue=(WaiterInfo("host:2:Main \x1b[2J", 3.0),))).splitlines()
    assert lines[-1] == "... and 1233 more"
    assert re.split(r" {2,}", lines[-2])[-1] == "3.0 s"
    assert "\\x1b[2J" in lines[-2]


def test_for_a_pools_member_waiters_for_any_member_are_counted_and_shown_below(
    ghost: Callable[..., Ghost],
) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    name = pool.acquire(ttl=600).name
    there = ghost()
    there.queue("1" * 22, name=name, age=9)
    for waiter in "23":
        there.queue(waiter * 22, name="pool:accounts:", age=60)
    shown = redislocks("show", name)
    assert re.search(r"^WAITERS +1\nFOR ANY +2 for any member of the pool$", shown, re.M)
    queue, rest = shown.split("\n\n")[1:]
    assert re.fullmatch(r"#  .*\n1  .* 9\.\d s", queue)
    assert re.fullmatch(r"For any member of the pool:\n#  .*\n1  .* 1 min .*\n2  .* 1 min .*\n", rest)
    told = json.loads(redislocks("show", name, "--format=json"))
    assert (told["waiters"], told["pool_waiters"]) == (1, 2)
    assert [len(told["queue"]), len(told["pool_queue"])] == [1, 2]
    assert re.search(rf"^{name} .* 3$", redislocks("list"), re.M)
    assert re.search(rf"^{name} .* 1$", redislocks("pool", "accounts"), re.M), "the pool's are counted above"
    assert redislocks("clear", name, "--noinput").endswith(", 3 waiting.\n")


def test_it_fails_for_a_free_lock() -> None:
    with pytest.raises(CommandError, match=r"^Not held: order:42$") as caught:
        redislocks("show", "order:42")
    assert caught.value.returncode == 1


def test_as_json_it_has_the_queue_too(wait_for: WaitFor) -> None:
    with Lock("order:42"):
        wait_for("order:42")
        lock = json.loads(redislocks("show", "order:42", "--format=json"))
    assert (lock["name"], lock["waiters"]) == ("order:42", 1)
    ((waiter),) = lock["queue"]
    assert set(waiter) == {"owner", "waited", "note", "gone"}


def test_a_name_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(CommandError, match="control characters"):
        redislocks("show", "a\x1b")


# -- locks that never end -------------------------------------------------------------------------------------------


def test_a_lock_without_expiry_is_shown_as_such_and_has_no_end_in_json(client: redis.Redis) -> None:
    hold("order:42", ttl=100)
    client.persist(KEY)
    shown = redislocks("show", "order:42")
    assert re.search(r"^LEASE LEFT +without end$", shown, re.M)
    assert re.search(r"^STATE +somebody else has written it, or removed its expiry$", shown, re.M)
    told = json.loads(redislocks("show", "order:42", format="json"))
    assert (told["lease_left"], told["expires"]) == (None, None)


@pytest.mark.parametrize("milliseconds", [None, 60_000])
def test_what_somebody_else_has_written_is_shown_and_cleared_like_a_lock(
    milliseconds: int | None, client: redis.Redis
) -> None:
    client.set(KEY, "of somebody else", px=milliseconds)
    facts = [re.split(r" {2,}", line) for line in redislocks("show", "order:42").splitlines()]
    assert [name for name, _ in facts] == ["NAME", "STATE", "OWNER", "LEASE LEFT", "WAITERS"]
    assert facts[2][1] == "?"
    redislocks("clear", "order:42", "--noinput")
    assert not client.exists(KEY)


def test_so_is_what_somebody_else_has_written_over_a_member_of_a_pool(client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.assign(["a:b"])
    name = pool.acquire().name
    client.hset("redislock{0}:held:pool:accounts:", "a%3Ab", "of somebody else")
    assert "OWNER       ?\n" in redislocks("show", name)
    redislocks("clear", name, "--noinput")
    pool.acquire(blocking_timeout=0)
