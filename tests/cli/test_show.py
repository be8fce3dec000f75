"""``redislocks show`` and ``redislocks pool``: one lock and its queue, one pool or all, and suspended locks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator

import pytest
import redis

from django_redislock import Lock, LockPool
from tests.cli.conftest import Eventually, WaitFor, fails, hold, redislocks
from tests.helpers.actors import GENEROUS, Ghost, Other
from tests.helpers.state import put
from tests.inside import PREFIX

KEY = f"{PREFIX}lock:order:42"
WAITER = {"owner", "waited", "note", "gone"}


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


def test_it_tells_all_about_a_lock_and_its_queue(wait_for: WaitFor) -> None:
    with Lock("order:42", ttl=600, note="of the year") as lock:
        assert "WAITERS     0\n" in redislocks("show", "order:42")
        wait_for("order:42", note="first\nsecond")
        wait_for("order:42")
        fence, text = lock.fence, redislocks("show", "order:42")
        told = json.loads(redislocks("show", "order:42", "--format=json"))
    top, queue = text.split("\n\n")
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in top.splitlines())
    assert list(facts) == ["NAME", "OWNER", "SINCE", "HELD FOR", "LEASE LEFT", "FENCE", "TOKEN", "WAITERS", "NOTE"]
    assert [facts[which] for which in ("NAME", "FENCE", "WAITERS", "NOTE")] == [
        *("order:42", str(fence), "2", "of the year")
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+", facts["SINCE"])
    head, *rows = map(cells, queue.splitlines())
    assert head == ["#", "WAITER", "WAITED", "NOTE"]
    assert [(row[0], row[3:]) for row in rows] == [("1", [r"'first\nsecond'"]), ("2", [])]
    assert all(f":{os.getpid()}:" in row[1] for row in rows)
    assert (told["name"], told["waiters"], [set(waiter) for waiter in told["queue"]]) == ("order:42", 2, [WAITER] * 2)


def test_waiters_whose_process_was_killed_are_marked(ghost: Callable[..., Ghost]) -> None:
    hold("order:42")
    ghost(alive=False).queue("1" * 22, name="order:42", age=2)
    ghost().queue("2" * 22, name="order:42")
    head, *rows = redislocks("show", "order:42").splitlines()[-3:]
    assert cells(head) == ["#", "WAITER", "WAITED", "PROCESS"]
    assert [cells(row)[3:] for row in rows] == [["gone"], []]


def test_it_says_how_many_more_wait_than_it_lists(client: redis.Redis) -> None:
    put(client, "order:42", waiters=1234)
    lines = redislocks("show", "order:42").splitlines()
    assert (lines[-2].split()[0], lines[-1]) == ("100", "... and 1134 more")


def test_for_a_pools_member_waiters_for_any_member_are_counted_and_shown_below(ghost: Callable[..., Ghost]) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    name, there = pool.acquire(ttl=600).name, ghost()
    there.queue("1" * 22, name=name, age=9)
    for waiter in "23":
        there.queue(waiter * 22, name="pool:accounts:", age=60)
    shown = redislocks("show", name)
    assert re.search(r"^WAITERS +1\nFOR ANY +2 for any member of the pool$", shown, re.M)
    queue, rest = shown.split("\n\n")[1:]
    assert re.fullmatch(r"#  .*\n1  .* (9|1\d)(\.\d)? s", queue)
    assert re.fullmatch(r"For any member of the pool:\n#  .*\n1  .* 1 min .*\n2  .* 1 min .*\n", rest)
    told = json.loads(redislocks("show", name, "--format=json"))
    assert (told["waiters"], told["pool_waiters"]) == (1, 2)
    assert [len(told["queue"]), len(told["pool_queue"])] == [1, 2]
    assert re.search(rf"^{name} .* 3$", redislocks("list"), re.M)
    assert re.search(rf"^{name} .* 1$", redislocks("pool", "accounts"), re.M), "the pool's are counted above"
    assert redislocks("clear", name, "--noinput").endswith(", 3 waiting.\n")


def test_it_fails_for_a_free_lock() -> None:
    fails(1, r"^Not held: order:42$", "show", "order:42")


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
    facts = [cells(line) for line in redislocks("show", "order:42").splitlines()]
    assert [name for name, _ in facts] == ["NAME", "STATE", "OWNER", "LEASE LEFT", "WAITERS"]
    assert facts[2][1] == "?"
    redislocks("clear", "order:42", "--noinput")
    assert not client.exists(KEY)


# -- pools ------------------------------------------------------------------------------------------------------------

QUEUE = r"\n\n#  WAITER +WAITED\n1  \S.* s$"


@pytest.fixture
def pool() -> LockPool:
    return LockPool("proxies")


@pytest.fixture
def waiter(pool: LockPool, other: Callable[[], Other], eventually: Eventually) -> Iterator[Callable[[], None]]:
    """Let somebody wait for the pool, and get a member before the test ends."""
    waiting = []

    def waiter() -> None:
        waiting.append(other().start(lambda: pool.acquire(blocking_timeout=GENEROUS).release()))
        eventually(lambda: pool.info().waiters == 1)

    yield waiter
    pool.extend(["the last"])
    waiting[0].result(GENEROUS)


def test_a_pool_tells_how_many_are_free_who_holds_the_others_and_who_waits(
    pool: LockPool, waiter: Callable[[], None]
) -> None:
    pool.extend(["a", "b:c"])
    assert redislocks("pool", "proxies") == "POOL     proxies\nMEMBERS  2\nFREE     2\nWAITERS  0\n"
    with pool.acquire() as first:
        assert "\nFREE     1\n" in redislocks("pool", "proxies")
        with pool.acquire() as second:
            names = sorted([first.name, second.name])
            waiter()
            text, listed = redislocks("pool", "proxies"), redislocks("pool")
            found = json.loads(redislocks("pool", "proxies", "--format=json"))
            every = json.loads(redislocks("pool", "--format=json"))
    facts, members, _ = text.split("\n\n")
    assert dict(map(cells, facts.splitlines())) == {"POOL": "proxies", "MEMBERS": "2", "FREE": "0", "WAITERS": "1"}
    assert [line.split()[0] for line in members.splitlines()] == ["NAME", *names]
    assert re.search(QUEUE, text.rstrip())
    numbers = {"name": "proxies", "alias": "default", "members": 2, "waiters": 1}
    assert {**found, **numbers, "free": 0} == found
    assert [lock["name"] for lock in found["locks"]] == names
    assert [set(waiter) for waiter in found["queue"]] == [WAITER]
    assert [line.split() for line in listed.splitlines()] == [
        ["POOL", "MEMBERS", "HELD", "WAITERS"],
        ["proxies", "2", "2", "1"],
    ]
    assert every == [{**numbers, "held": 2}]


def test_a_pool_without_members_fails_and_shows_who_waits_and_who_holds_what_was_taken_out(
    pool: LockPool, waiter: Callable[[], None]
) -> None:
    arguments = (1, r"^The pool proxies has no members\.$", "pool", "proxies")
    assert fails(*arguments) == ""
    pool.extend(["a"])
    with pool.acquire() as member:
        pool.clear()
        assert re.search(rf"^{member.name} ", fails(*arguments), re.M)
        assert redislocks("pool") == "There are no pools.\n"
    waiter()
    assert re.search(QUEUE, fails(*arguments).rstrip())


# -- suspended locks --------------------------------------------------------------------------------------------------

BY = rf"\S+:{os.getpid()}:MainThread"


def test_list_says_that_nobody_holds_a_suspended_lock_and_why_and_clear_ends_it() -> None:
    hold("a")
    Lock("order:42").suspend(3600, note="rate limited")
    first, second = redislocks("list").splitlines()[1:]
    assert first.startswith("a ")
    assert re.match(rf"order:42  nobody \(suspended by {BY}\) .* (1 h 0|59 min 5\d s).* rate limited$", second)
    held, suspended = json.loads(redislocks("list", format="json"))
    assert (held["held"], held["suspension"]) == (True, None)
    assert (suspended["held"], suspended["note"], suspended["suspension"]["note"]) == (False, *["rate limited"] * 2)
    assert re.fullmatch(BY, suspended["suspension"]["owner"])
    assert 3500 < suspended["suspension"]["left"] <= 3600
    assert "by nobody (suspended by" in redislocks("clear", "order:42", "--noinput")
    assert not Lock("order:42").locked()


def test_a_suspension_that_never_ends_is_no_number_in_json(client: redis.Redis) -> None:
    Lock("order:42").suspend(3600)
    client.persist(KEY)
    printed = redislocks("list", format="json")
    assert "Infinity" not in printed  # not valid JSON
    assert json.loads(printed)[0]["suspension"]["left"] is None


def test_show_says_of_a_held_lock_that_it_is_suspended_afterwards() -> None:
    token = hold("order:42")
    assert "SUSPENDED" not in redislocks("show", "order:42")
    for note, shown in (("", ""), ("rate limited", ": rate limited")):
        Lock("order:42").suspend(3600, note=note)
        said = rf"SUSPENDED   as soon as nobody holds it, for another (1 h 0 min|59 min 5\d s), by {BY}{shown}\n"
        assert re.search(said, redislocks("show", "order:42"))
    Lock("order:42", token=token).release()
    text = redislocks("show", "order:42")
    assert re.search(rf"OWNER       nobody \(suspended by {BY}\)\n", text)
    assert "NOTE        rate limited\n" in text
    assert "SUSPENDED" not in text
