"""``seize()``: a lock is taken from whoever holds it, at once and ahead of the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from django_redislock import FairLock, Lock, LockError, LockLost, LockNotAcquired, LockUnavailable, scripts
from django_redislock.connection import get_backend
from django_redislock.steps import run
from redisserver import RedisServer

from .actors import GENEROUS, KEYS, NAME, TOKEN, Actor, Ghost, Other, flag, holder, queued, server_time
from .processes import Worker
from .proxy import proxy

Eventually = Callable[..., Any]
Start = Callable[..., Worker]
Heard = list[tuple[str, dict[str, Any]]]


def events(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(f"event={event} ")]


def test_a_seized_lock_has_a_higher_fence_and_its_old_holder_is_told(
    kind: type[Lock], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    losses: list[LockLost] = []
    thread, old = other(), kind(NAME, on_lost=losses.append)
    thread(old.acquire)
    eventually(lambda: client.pubsub_numsub(get_backend().channel)[0][1])  # it is held for long: the holder listens
    before = thread(lambda: old.fence)
    lock = kind(NAME)
    lock.seize()
    eventually(lambda: losses, within=5)  # long before its renewal
    assert (lock.fence or 0) > (before or 0)
    assert holder(client) == lock.token
    assert thread(lambda: old.lost)
    with pytest.raises(LockLost):
        thread(old.release)
    assert lock.owned()
    lock.release()
    assert holder(client) == ""


HOLDS = """
lock = Lock(name, on_lost=lambda error: say("lost", lock_held()))
def lock_held():
    return get_lock(name) is not None
lock.acquire()
say("held", lock.fence)
hear()
"""


def test_a_lock_is_seized_from_another_process(start: Start, client: redis.Redis, eventually: Eventually) -> None:
    worker = start(HOLDS, name=NAME)
    (fence,) = worker.expect("held")
    eventually(lambda: client.pubsub_channels("*wake:*"))
    lock = Lock(NAME)
    lock.seize()
    assert worker.expect("lost") == ["True"]
    assert (lock.fence or 0) > int(fence)


def test_a_free_lock_is_seized_ahead_of_the_queue_which_stays(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    waiting = ghost()
    backend = waiting.backend
    run(scripts.acquire(backend, KEYS, NAME, "h" * 22, ttl=30_000, mode="F", wait="0", ticket=None, owner="ghost"))
    waiting.queue(TOKEN, mode="F", age=5)
    client.delete(KEYS.lock)
    place = client.zrange(KEYS.queue, 0, -1, withscores=True)
    lock = FairLock(NAME)
    lock.seize()
    assert holder(client) == lock.token
    assert client.zrange(KEYS.queue, 0, -1, withscores=True) == place
    lock.release()
    assert holder(client) == TOKEN


def test_a_lock_that_nobody_holds_or_wants_is_just_acquired(caplog: pytest.LogCaptureFixture, heard: Heard) -> None:
    lock = Lock(NAME)
    lock.seize()
    assert lock.owned()
    assert events(caplog, "seized") == []
    assert [which for which, _ in heard] == ["acquired"]


def test_the_waiters_keep_their_places_when_the_lock_is_seized(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    got: list[int] = []

    def take(number: int) -> None:
        with FairLock(NAME):
            got.append(number)

    other()(FairLock(NAME).acquire)
    waiting = []
    for number in range(3):
        waiting.append(other().start(partial(take, number)))
        eventually(lambda number=number: queued(client) == number + 1)
    lock = FairLock(NAME)
    lock.seize()
    assert queued(client) == 3
    assert got == []
    lock.release()
    for one in waiting:
        one.result(GENEROUS)
    assert got == [0, 1, 2]


def test_a_repeated_request_does_not_seize_twice(server: RedisServer, settings: Any, client: redis.Redis) -> None:
    with proxy(server.port) as network:
        settings.CACHES = {
            **settings.CACHES,
            "other": {**settings.CACHES["default"], "LOCATION": network.url},
        }
        with Lock("warm-up", using="other"):
            pass
        old = Lock(NAME)
        old.acquire()
        lost = network.lose_answer(scripts._ACQUIRE.sha)
        lock = Lock(NAME, using="other")
        lock.seize()
        assert lost.over.is_set()
        value = client.get(KEYS.lock)
        assert isinstance(value, bytes)
        assert value.decode().split(" ")[3] == str(lock.fence)
        assert int(client.get(f"{get_backend().prefix}fence") or 0) == lock.fence  # no other was drawn after it
        lock.release()
        assert holder(client) == ""


async def test_a_coroutine_seizes(kind: type[Lock], actor: Callable[[], Actor], client: redis.Redis) -> None:
    await actor()(kind(NAME).aacquire)
    lock = kind(NAME)
    await lock.aseize()
    assert holder(client) == lock.token
    await lock.arelease()
    assert holder(client) == ""


def test_who_holds_a_lock_cannot_seize_it_from_itself(kind: type[Lock], client: redis.Redis) -> None:
    lock = kind(NAME)
    lock.acquire()
    for one in (lock, kind(NAME)):
        with pytest.raises(LockError, match="holds the lock 'order:42' itself") as caught:
            one.seize()
        assert caught.value.name == NAME
    assert lock.owned()
    lock.release()


def test_a_reentrant_lock_that_is_held_here_is_entered_once_more(client: redis.Redis) -> None:
    lock = Lock(NAME, reentrant=True)
    lock.acquire()
    fence = lock.fence
    lock.seize()
    assert lock.fence == fence
    lock.release()
    assert lock.owned()
    lock.release()
    assert holder(client) == ""


def test_a_handoff_that_is_seized_puts_its_process_under_no_suspicion(
    ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    old = FairLock(NAME)
    old.acquire()
    crowd = ghost()
    crowd.queue(TOKEN, mode="F", age=5)
    crowd.queue("b" * 22, mode="F", age=4)
    old.release()
    assert (holder(client), flag(client)) == (TOKEN, "h")
    lock = FairLock(NAME)
    lock.seize()
    words = [crowd.hear(), crowd.hear()]
    assert [word[0] for word in words] == ["g", "f"]
    lock.release()
    assert holder(client) == "b" * 22


def test_what_others_wrote_is_seized_too(client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    client.set(KEYS.lock, "of somebody else")
    lock = Lock(NAME)
    lock.seize()
    assert holder(client) == lock.token
    assert "owner=?" in events(caplog, "seized")[0]


def test_a_seizure_is_logged_and_signalled(
    other: Callable[[], Other], caplog: pytest.LogCaptureFixture, heard: Heard
) -> None:
    thread = other()
    thread(Lock(NAME, note="a note that is no owner").acquire)
    heard.clear()
    lock = Lock(NAME)
    lock.seize()
    (line,) = events(caplog, "seized")
    assert f"name={NAME} fence={lock.fence} by=" in line
    assert "no owner" not in line
    (which, facts), (then, _) = heard
    assert (which, facts["name"], then) == ("force", NAME, "acquired")
    assert facts["by"] in line
    assert any(record.levelno == logging.WARNING and record.getMessage() == line for record in caplog.records)


def test_a_token_that_was_released_seizes_nothing(client: redis.Redis) -> None:
    client.set(f"{get_backend().prefix}gone:{TOKEN}", "1", px=60_000)
    with pytest.raises(LockNotAcquired):
        Lock(NAME, token=TOKEN).seize()
    assert holder(client) == ""


def test_a_token_that_holds_the_lock_keeps_its_fence(client: redis.Redis) -> None:
    first = Lock(NAME)
    first.acquire()
    fence, token = first.fence, first.detach()
    lock = Lock(NAME, token=token)
    lock.seize()
    assert (lock.fence, lock.token) == (fence, token)


def test_a_seizure_works_when_redis_is_out_of_memory(own: RedisServer, other: Callable[[], Other]) -> None:
    other()(Lock(NAME).acquire)
    with own.client() as client:
        client.config_set("maxmemory", 1)
        lock = Lock(NAME)
        lock.seize()
        assert holder(client) == lock.token
        client.config_set("maxmemory", 0)


def test_a_server_that_may_not_write_tells_nobody_of_a_seizure(
    own: RedisServer, other: Callable[[], Other], retry_for: Callable[[float], None]
) -> None:
    with own.client() as client:
        thread, old = other(), Lock(NAME)
        thread(old.acquire)
        pubsub = client.pubsub(ignore_subscribe_messages=True)
        pubsub.psubscribe("redislock*")
        assert pubsub.get_message(timeout=GENEROUS) is None
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(LockUnavailable, match="Not enough good replicas"):
            Lock(NAME).seize()
        client.config_set("min-replicas-to-write", 0)
        assert thread(old.owned)
        assert pubsub.get_message(timeout=0.05) is None
        pubsub.close()


def test_a_seized_lock_can_be_listed_since_the_moment_of_its_seizure(
    other: Callable[[], Other], client: redis.Redis
) -> None:
    other()(Lock(NAME).acquire)
    before = server_time(client)
    lock = Lock(NAME)
    lock.seize()
    info = lock.info()
    assert info is not None
    assert info.since.timestamp() * 1e6 >= before - 1
