"""Forged or outdated messages cause only a limited number of requests by a process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockPool
from django_redislock.engine.messages.listener import Listener
from django_redislock.engine.messages.strays import MOST_STRAYS
from tests.helpers.state import NAME, count
from tests.inside import listener, own_channel

WAITERS = 200
AEventually = Callable[..., Awaitable[Any]]


def is_quiet(ears: Listener) -> bool:
    """Whether all waiters that were told have looked, and nothing is left to send."""
    return not any(waiter.told or waiter.look or waiter.grant for waiter in ears.waiters.of())


async def wait_for_it() -> None:
    await Lock(NAME).aacquire()


async def calls_after(client: redis.Redis, aeventually: AEventually, messages: Callable[[Listener], list[str]]) -> int:
    """How many script calls these messages to this process cause, while WAITERS wait."""
    lock, ears = Lock(NAME), listener()
    await lock.aacquire()
    tasks = [asyncio.create_task(wait_for_it()) for _ in range(WAITERS)]
    await aeventually(lambda: client.zcard(f"redislock{{0}}:queue:{NAME}") == WAITERS and is_quiet(ears))
    before, heard, forged = count(client, "evalsha"), ears.heard, messages(ears)
    for message in forged:
        client.publish(own_channel(), message)
        if len(forged) < 100:  # one after the other: those that come together make all look once anyway
            await aeventually(lambda: is_quiet(ears))
    await aeventually(lambda: ears.heard >= heard + len(forged) and is_quiet(ears))
    await lock.aextend(30)  # one connection or another has answered what came before
    after = count(client, "evalsha")
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return after - before


def late_grants(number: int, name: str = NAME, id: str = "") -> list[str]:
    return [f"g {id or secrets.token_urlsafe(16)} 7 1 1000 {name}" for _ in range(number)]


@pytest.mark.parametrize("number", [20, 2000])
@pytest.mark.parametrize("known", [True, False], ids=["to one who waits", "to nobody"])
async def test_late_grants_make_each_waiter_look_once(
    number: int, known: bool, client: redis.Redis, aeventually: AEventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redislock.engine.messages.listener.DOUBT_EVERY", 1000.0)

    def messages(ears: Listener) -> list[str]:
        return late_grants(number, id=ears.waiters.of()[-1].id if known else "")

    calls = await calls_after(client, aeventually, messages)
    assert WAITERS <= calls <= 1.5 * WAITERS + (number if known else min(number, 8 * MOST_STRAYS))


async def test_late_grants_of_other_locks_make_no_waiter_look(client: redis.Redis, aeventually: AEventually) -> None:
    assert await calls_after(client, aeventually, lambda ears: late_grants(20, "another")) <= 20 + WAITERS / 4


@pytest.mark.parametrize("kind", ["g", "w"])
async def test_the_number_of_answered_messages_for_unknown_waiters_is_limited(
    kind: str, client: redis.Redis, aeventually: AEventually
) -> None:
    facts = " 7 1 1000" if kind == "g" else ""
    messages = [f"{kind} {secrets.token_urlsafe(16)}{facts} other" for _ in range(2000)]
    assert await calls_after(client, aeventually, lambda ears: messages) <= 8 * MOST_STRAYS


async def test_a_late_grant_of_a_member_makes_those_look_who_want_any(
    client: redis.Redis, aeventually: AEventually
) -> None:
    pool, ears = LockPool("accounts"), listener()
    await pool.aextend(["alice"])
    member = await pool.aacquire()
    task = asyncio.create_task(LockPool("accounts").aacquire())
    await aeventually(lambda: client.zcard("redislock{0}:queue:pool:accounts:") == 1 and is_quiet(ears))
    client.delete("redislock{0}:queue:pool:accounts:", "redislock{0}:waiters:pool:accounts:")  # it was dropped
    (message,) = late_grants(1, "pool:accounts:alice")
    client.publish(own_channel(), message)
    await aeventually(lambda: client.zcard("redislock{0}:queue:pool:accounts:") == 1, within=4)
    await member.arelease()
    assert (await task).key == "alice"
