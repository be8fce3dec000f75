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
QUEUE = r"\n\n#  WAITER +WAITED\n1  \S.* s$"
BY = rf"\S+:{os.getpid()}:MainThread"


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


def test_it_tells_all_about_a_lock_and_its_queue(wait_for: WaitFor) -> None:
    fails(1, r"^Not held: order:42$", "show", "order:42")
    with Lock("order:42", ttl=600, note="of the year") as lock:
        wait_for("order:42", note="first\nsecond")
        wait_for("order:42")
        fence, text = lock.fence, redislocks("show", "order:42")
        told = json.loads(redislocks("show", "order:42", "--format=json"))
        assert str(lock.token)[:8] not in text + str(told)
    top, queue = text.split("\n\n")
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in top.splitlines())
    assert list(facts) == ["NAME", "OWNER", "SINCE", "HELD FOR", "LEASE LEFT", "FENCE", "TOKEN", "WAITERS", "NOTE"]
    shown = [facts[which] for which in ("NAME", "FENCE", "WAITERS", "NOTE")]
    assert shown == ["order:42", str(fence), "2", "of the year"]
    head, *rows = map(cells, queue.splitlines())
    assert head == ["#", "WAITER", "WAITED", "NOTE"]
    assert [(row[0], row[3:]) for row in rows] == [("1", [r"'first\nsecond'"]), ("2", [])]
    assert all(f":{os.getpid()}:" in row[1] for row in rows)
    assert (told["name"], told["waiters"], [set(waiter) for waiter in told["queue"]]) == ("order:42", 2, [WAITER] * 2)


def test_waiters_whose_process_was_killed_are_marked_and_of_many_the_first_are_listed(
    ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    hold("order:42")
    ghost(alive=False).queue("1" * 22, name="order:42", age=2)
    ghost().queue("2" * 22, name="order:42")
    head, *rows = redislocks("show", "order:42").splitlines()[-3:]
    assert cells(head) == ["#", "WAITER", "WAITED", "PROCESS"]
    assert [cells(row)[3:] for row in rows] == [["gone"], []]
    put(client, "many", waiters=1234)
    lines = redislocks("show", "many").splitlines()
    assert (lines[-2].split()[0], lines[-1]) == ("100", "... and 1134 more")


def test_what_somebody_else_has_written_is_shown_without_end_and_cleared_like_a_lock(client: redis.Redis) -> None:
    hold("order:42", ttl=100)
    client.persist(KEY)
    shown = redislocks("show", "order:42")
    assert re.search(r"^LEASE LEFT +without end$", shown, re.M)
    assert re.search(r"^STATE +somebody else has written it, or removed its expiry$", shown, re.M)
    told = json.loads(redislocks("show", "order:42", format="json"))
    assert (told["lease_left"], told["expires"]) == (None, None)
    client.set(KEY, "of somebody else")
    facts = dict(cells(line) for line in redislocks("show", "order:42").splitlines())
    assert list(facts) == ["NAME", "STATE", "OWNER", "LEASE LEFT", "WAITERS"]
    assert facts["OWNER"] == "?"
    redislocks("clear", "order:42", "--noinput")
    assert not client.exists(KEY)


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
    assert (told["waiters"], told["pool_waiters"], len(told["queue"]), len(told["pool_queue"])) == (1, 2, 1, 2)
    assert re.search(rf"^{name} .* 3$", redislocks("list"), re.M)
    assert redislocks("clear", name, "--noinput").endswith(", 3 waiting.\n")


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
    with pool.acquire() as first, pool.acquire() as second:
        names = sorted([first.name, second.name])
        waiter()
        text, listed = redislocks("pool", "proxies"), redislocks("pool").splitlines()
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
    assert [" ".join(line.split()) for line in listed] == ["POOL MEMBERS HELD WAITERS", "proxies 2 2 1"]
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


def test_a_suspension_is_told_with_its_note_and_clear_ends_it(client: redis.Redis) -> None:
    token = hold("order:42")
    for note, shown in (("", ""), ("rate limited", ": rate limited")):
        Lock("order:42").suspend(3600, note=note)
        said = rf"SUSPENDED   as soon as nobody holds it, for another (1 h 0 min|59 min 5\d s), by {BY}{shown}\n"
        assert re.search(said, redislocks("show", "order:42"))
    Lock("order:42", token=token).release()
    text = redislocks("show", "order:42")
    assert re.search(rf"OWNER       nobody \(suspended by {BY}\)\n", text)
    assert "NOTE        rate limited\n" in text
    assert "SUSPENDED" not in text
    row = redislocks("list").splitlines()[1]
    assert re.match(rf"order:42  nobody \(suspended by {BY}\) .* (1 h 0|59 min 5\d s).* rate limited$", row)
    (told,) = json.loads(redislocks("list", format="json"))
    assert (told["held"], told["note"], told["suspension"]["note"]) == (False, *["rate limited"] * 2)
    assert 3500 < told["suspension"]["left"] <= 3600
    client.persist(KEY)
    (told,) = json.loads(redislocks("list", format="json"))
    assert told["suspension"]["left"] is None
    assert "by nobody (suspended by" in redislocks("clear", "order:42", "--noinput")
    assert not Lock("order:42").locked()
