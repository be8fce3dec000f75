"""One token, several processes: whoever has acquired with it last is the holder."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockNotOwned, get_lock

from .actors import KEYS, NAME, TOKEN, Actor, Other, holder
from .processes import Worker

Eventually = Callable[..., Any]
Start = Callable[..., Worker]

# A process that takes the lock with a token, and tells what it sees.
HOLDS = """
lock = Lock(name, ttl=ttl, token=token, on_lost=lambda error: say("lost"))
while order := hear():
    if order == "acquire":
        say("acquired", lock.acquire(blocking=False), lock.fence)
    elif order == "release":
        try:
            lock.release()
            say("released")
        except LockNotOwned as error:
            say("refused", error)
    elif order == "held":
        say("fence", lock.fence)
    else:
        say("owned", lock.owned(), lock.lost)
"""


@pytest.fixture(params=["to the constructor", "to acquire()"])
def first(request: pytest.FixtureRequest, start: Start) -> Worker:
    """A process that holds the lock. A mere bearer of its token could release it."""
    if request.param == "to the constructor":
        code = HOLDS
    else:
        code = HOLDS.replace("token=token, ", "").replace("blocking=False", "token=token")
    worker = start(code, **OPTIONS)
    worker.tell("acquire")
    worker.expect("acquired")
    return worker


OPTIONS = {"name": NAME, "ttl": 1.2, "token": TOKEN}


def test_a_process_that_was_started_again_takes_its_own_lock_again(
    first: Worker, start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    value = client.get(KEYS.lock)
    assert isinstance(value, bytes)
    again = start(HOLDS, **OPTIONS)
    again.tell("held")
    again.expect("fence")  # it has started: from here on it takes no time
    first.kill()
    again.tell("acquire")
    assert again.expect("acquired") == ["True", value.decode().split(" ")[3]]
    begin = monotonic()
    eventually(lambda: monotonic() - begin > 2)  # longer than the TTL: it is renewed
    again.tell("owned")
    assert again.expect("owned") == ["True", "False"]
    again.tell("release")
    again.expect("released")
    assert holder(client) == ""


def told(worker: Worker) -> bool:
    """Whether it knows that somebody else has the lock."""
    worker.tell("held")
    return worker.expect("fence") == ["None"]


@pytest.mark.parametrize("heard", [True, False])
def test_the_release_of_a_former_holder_leaves_the_lock_to_the_one_who_adopted_it(
    heard: bool, first: Worker, start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    """``heard``: it knows already, by a message or by its renewal."""
    second = start(HOLDS, **{**OPTIONS, "ttl": 1.2 if heard else 60})
    if heard:
        eventually(lambda: client.pubsub_channels("*wake:*"))
    second.tell("acquire")
    second.expect("acquired")
    if heard:
        eventually(lambda: told(first))
    first.tell("release")
    refusal = first.expect("refused")
    assert "with the same token" in " ".join(refusal)
    assert holder(client) == TOKEN
    second.tell("owned")
    assert second.expect("owned") == ["True", "False"]
    second.tell("release")
    second.expect("released")
    assert holder(client) == ""


def test_a_release_says_that_another_process_has_adopted_the_token(client: redis.Redis) -> None:
    losses: list[LockLost] = []
    lock = Lock(NAME, on_lost=losses.append)
    lock.acquire()
    value = client.get(KEYS.lock)
    assert isinstance(value, bytes)
    token, _, rest = value.decode().split(" ", 2)
    client.set(KEYS.lock, f"{token} elsewhere {rest}", px=30_000)
    with pytest.raises(LockNotOwned, match="another process or thread has taken it with the same token") as caught:
        lock.release()
    assert type(caught.value) is LockNotOwned
    assert lock.token is None
    assert holder(client) == token
    assert losses == []


async def test_the_farewell_of_a_former_holder_leaves_the_lock_to_the_one_who_adopted_it(
    client: redis.Redis, actor: Callable[[], Actor], aeventually: Callable[..., Any]
) -> None:
    from django_redislock.watchdog import watchdog

    lock = Lock(NAME)
    await lock.aacquire()
    value = client.get(KEYS.lock)
    assert isinstance(value, bytes)
    token, _, rest = value.decode().split(" ", 2)
    client.set(KEYS.lock, f"{token} elsewhere {rest}", px=30_000)
    lock._release_later(lock._lease())
    await aeventually(lambda: not watchdog._unsaid)
    assert holder(client) == token


def test_the_bearer_of_a_token_can_release_without_having_adopted_it(first: Worker, client: redis.Redis) -> None:
    Lock(NAME, token=TOKEN).release()
    assert holder(client) == ""


def test_a_thread_that_takes_its_lock_again_with_the_same_token_enters_once_more(
    kind: type[Lock], client: redis.Redis
) -> None:
    lock = kind(NAME)
    lock.acquire()
    again = kind(NAME, token=lock.token)
    assert again.acquire()
    assert again.fence == lock.fence
    again.release()
    assert lock.owned()
    lock.release()
    assert holder(client) == ""


def test_another_thread_with_the_token_is_the_holder_from_then_on(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis
) -> None:
    losses: list[LockLost] = []
    first, second = other(), other()
    lock, adopter = kind(NAME, token=TOKEN, on_lost=losses.append), kind(NAME, token=TOKEN)
    first(lock.acquire)
    second(adopter.acquire)
    assert second(adopter.owned)
    with pytest.raises(LockNotOwned):
        first(lock.release)
    assert second(adopter.owned)
    second(adopter.release)
    assert holder(client) == ""
    assert losses == []


@pytest.mark.parametrize("note", ["", "another"])
def test_whoever_adopts_a_lock_without_a_note_keeps_the_one_that_is_there(
    note: str, start: Start, client: redis.Redis
) -> None:
    lock = Lock(NAME, note="two\nlines ")
    lock.acquire()
    token = lock.detach()
    worker = start(HOLDS.replace("ttl=ttl", "ttl=ttl, note=note"), **{**OPTIONS, "token": token, "note": note})
    worker.tell("acquire")
    worker.expect("acquired")
    info = get_lock(NAME)
    assert info is not None
    assert info.note == (note or "two\nlines ")
    assert f":{worker.pid}:" in info.owner
