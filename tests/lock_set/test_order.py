"""Locks that are acquired in both orders, one inside the other: logged, since so deadlocks begin."""

import asyncio
import secrets
from typing import Any

import pytest

from django_redislock import Lock, LockSet, Semaphore, locked
from tests.inside import limit


@pytest.fixture
def names() -> tuple[str, str]:
    """Names that no other test of this process has, in their order."""
    unique = secrets.token_hex(8)
    return f"{unique}:a", f"{unique}:b"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Any:
    return lambda: [record.getMessage() for record in caplog.records if "order-inverted" in record.msg]


def nest(person: Any, outer: Any, *inner: Any, **options: Any) -> None:
    person(outer, "acquire")
    for lock in inner:
        person(lock, "acquire", **options)
    for lock in (*inner[::-1], outer):
        person(lock, "release")


def test_two_locks_in_both_orders_are_logged_once(crowd: Any, names: Any, logged: Any) -> None:
    me, you, (a, b) = crowd(), crowd(), map(Lock, names)
    for _ in range(2):
        nest(me, b, a)
    assert logged() == []
    for _ in range(2):
        nest(you, a, b)
        nest(me, b, a)
    assert logged() == [f"event=order-inverted name={b.name} held={a.name}"]


def test_it_does_not_matter_how_many_others_are_held(me: Any, names: Any, logged: Any) -> None:
    for number in range(40):
        nest(me, *(Lock(f"{names[0]}:{letter}{'x' * number}") for letter in "ab"))
        nest(me, *(Lock(f"{names[0]}:{letter}{'x' * number}") for letter in "ba"))
        assert len(logged()) == number + 1
        me(Lock(f"{names[1]}:{'x' * number}"), "acquire")


def test_names_of_the_same_templates_count_as_the_same(me: Any, names: Any, logged: Any) -> None:
    orders, users = ([Lock(f"{name}:{pk}", template=f"{name}:{{pk}}") for pk in range(3)] for name in names)
    nest(me, orders[0], users[0])
    nest(me, orders[1], users[2])
    nest(me, users[1], orders[2])
    assert logged() == [f"event=order-inverted name={orders[2].name} held={users[1].name}"]
    nest(me, users[0], orders[1])
    nest(me, users[0], users[1])  # of two with the same template, the names count
    nest(me, users[1], users[2])
    assert len(logged()) == 1
    nest(me, users[2], users[0])
    assert logged()[1:] == [f"event=order-inverted name={users[0].name} held={users[2].name}"]


def test_locks_of_the_same_names_in_another_store_are_others(me: Any, names: Any, logged: Any) -> None:
    (a, b), (c, d) = map(Lock, names), (Lock(name, using="memory") for name in names)
    nest(me, a, b)
    nest(me, d, c)
    nest(me, b, c)
    assert logged() == []
    nest(me, c, b)
    assert logged() == [f"event=order-inverted name={b.name} held={c.name}"]


def test_what_cannot_deadlock_is_not_logged(me: Any, names: Any, logged: Any) -> None:
    a, b = map(Lock, names)
    nest(me, a, b, blocking=False)  # it does not wait
    nest(me, b, a)
    first, second = (Semaphore(name, limit=2) for name in names)
    nest(me, first, second)
    nest(me, second, first)
    nest(me, a, first)
    nest(me, first, a)
    both = LockSet(*names)
    me(both, "acquire")
    me(both, "release")
    swapped = locked([f"{names[0][:-1]}{{x}}", f"{names[0][:-1]}{{y}}"])(lambda x, y: None)
    swapped("a", "b")
    swapped("b", "a")
    assert logged() == []
    me(a, "acquire")
    me(a, "release")
    nest(me, b, a)  # that one is held no longer
    assert logged() == []
    third = Lock(f"{names[1]}:c")
    nest(me, both, third)
    nest(me, third, both)
    assert len(logged()) == 2


def test_who_enters_again_waits_for_nothing(me: Any, names: Any, logged: Any) -> None:
    a, b = (Lock(name, reentrant=True) for name in names)
    nest(me, a, b, a)
    both = LockSet(*names, reentrant=True)
    nest(me, both, both)
    nest(me, a, both, both)
    assert logged() == []
    nest(me, b, a)
    assert logged() == [f"event=order-inverted name={a.name} held={b.name}"]


async def test_what_a_parent_holds_is_not_the_childs(names: Any, logged: Any) -> None:
    async def use(lock: Lock) -> None:
        async with lock:
            pass

    a, b = map(Lock, names)
    async with a:
        await asyncio.create_task(use(b))
    async with b:
        await use(a)
    assert logged() == []


def test_only_so_many_pairs_are_remembered(me: Any, names: Any, logged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = map(Lock, names)
    c, d = (Lock(f"{name}:more") for name in names)
    limit(monkeypatch, orders=2)
    nest(me, a, b)
    nest(me, c, d)
    nest(me, a, b)  # used again, it is kept
    nest(me, b, d)
    nest(me, d, c)
    assert logged() == []
    nest(me, b, a)  # which has made room for the two latest
    assert logged() == []
    nest(me, a, b)
    assert len(logged()) == 1
