"""Forged or outdated messages cause only a limited number of requests by a process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockPool
from tests.helpers.state import NAME, QUEUE, count
from tests.inside import heard, limit, looks_due, own_channel, pending_releases

WAITERS = 200
STRAYS = 8 * 100  # messages to nobody that are answered, in the seconds that this takes
ID = "i" * 22
AEventually = Callable[..., Awaitable[Any]]


def grants(number: int, to: str = "", name: str = NAME) -> list[str]:
    """Of leases that are over."""
    return [f"g {to or secrets.token_urlsafe(16)} 7 1 1000 {name}" for _ in range(number)]


async def wait_for_it() -> None:
    await Lock(NAME).aacquire()


FOREIGN = [
    *("", "p", "hello", f"w {ID}", f"x {ID} {NAME}", f"w short {NAME}", f"w {ID} ", f"w {ID} a\nb"),
    *(f"w {ID} {'n' * 513}", f"g {ID} {NAME}", f"g {ID} 1 2 {NAME}", f"g {ID} {'9' * 17} 1 1 {NAME}"),
    f"w {ID} a".encode() + b"\xff",
]


@pytest.mark.parametrize(
    ("messages", "least", "most"),
    [
        (lambda last: FOREIGN, 0, 0),
        (lambda last: grants(20, last), WAITERS, 1.5 * WAITERS + 20),
        (lambda last: grants(2000, last), WAITERS, 1.5 * WAITERS + 2000),
        (lambda last: grants(20), WAITERS, 1.5 * WAITERS + 20),
        (lambda last: grants(2000), WAITERS, 1.5 * WAITERS + STRAYS),
        (lambda last: grants(20, name="another"), 0, 20 + WAITERS / 4),
        (lambda last: grants(2000, name="another"), 0, STRAYS),
        (lambda last: [f"w {secrets.token_urlsafe(16)} another" for _ in range(2000)], 0, STRAYS),
    ],
    ids=["foreign", "known", "known, many", "unknown", "unknown, many", "other lock", "other lock, many", "wakes"],
)
async def test_messages_cause_no_more_than_so_many_requests(
    messages: Callable[[str], list[str | bytes]],
    least: float,
    most: float,
    client: redis.Redis,
    aeventually: AEventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(monkeypatch, doubt_every=1000.0)
    lock = Lock(NAME)
    await lock.aacquire()
    tasks = [asyncio.create_task(wait_for_it()) for _ in range(WAITERS)]
    await aeventually(lambda: client.zcard(QUEUE) == WAITERS and not looks_due() and not pending_releases())
    (last,) = list[Any](client.zrange(QUEUE, -1, -1))
    before, heard_before, forged = count(client, "evalsha"), heard(), messages(last.decode())
    for message in forged:
        client.publish(own_channel(), message)
        if len(forged) < 100:  # one after the other: those that come together make all look once anyway
            await aeventually(lambda: not looks_due())
    await aeventually(lambda: heard() >= heard_before + len(forged) and not looks_due())
    await lock.aextend(30)  # one connection or another has answered what came before
    assert least <= count(client, "evalsha") - before - 1 <= most
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await aeventually(lambda: not pending_releases())


async def test_a_late_grant_of_a_member_makes_those_look_who_want_any(
    client: redis.Redis, aeventually: AEventually
) -> None:
    pool, queue = LockPool("accounts"), "redislock{0}:queue:pool:accounts:"
    await pool.aextend(["alice"])
    member = await pool.aacquire()
    task = asyncio.create_task(LockPool("accounts").aacquire())
    await aeventually(lambda: client.zcard(queue) == 1 and not looks_due())
    client.delete(queue, "redislock{0}:waiters:pool:accounts:")  # it was dropped
    client.publish(own_channel(), grants(1, name="pool:accounts:alice")[0])
    await aeventually(lambda: client.zcard(queue) == 1, within=4)
    await member.arelease()
    assert (await task).key == "alice"
