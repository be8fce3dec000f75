"""R2: a script publishes nothing before Redis has accepted one of its writes, and an error of PUBLISH does not mean
0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockPool, LockUnavailable
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import Ghost
from tests.helpers.state import LOCK, NAME, TOKEN, holder, value
from tests.inside import limit
from tests.protocol.scene import LONG, MEMBER, Line, listed, vanish

HOLDER, WAITER, STRANGER = "holder-holder-holder-1", "waiter-waiter-waiter-1", "stranger-stranger-st-1"
POOL = "pool:accounts:"

NAMES = pytest.mark.parametrize("name", [NAME, MEMBER], ids=["key", "member"])


@pytest.fixture
def root(own: RedisServer) -> Iterator[redis.Redis]:
    """A client of a server for this test alone."""
    with own.client() as client:
        yield client


@pytest.fixture
def ghosts(root: redis.Redis) -> Iterator[tuple[Ghost, Ghost]]:
    """Two simulated processes, of a holder and a waiter."""
    pair = Ghost(root, alive=True), Ghost(root, alive=True)
    yield pair
    for one in pair:
        one.close()


def take(ghost: Ghost, id: str, name: str, wait: str = inside.NOT_AT_ALL, **more: Any) -> int:
    """Ask for the lock; returns the state."""
    request = ghost.request(id, name=name, ttl=LONG, **more)
    return ghost.acquire(request, wait).state


def told(ghost: Ghost) -> list[list[str]]:
    """The messages to the process so far: kinds and ids."""
    ghost.client.publish(ghost.channel, "end")
    messages: list[list[str]] = []
    while messages[-1:] != [["end"]]:
        messages.append(ghost.hear()[:2])
    return messages[:-1]


def release(ghost: Ghost, id: str, name: str, *, unknown: bool = False) -> None:
    ghost.release(ghost.request(id, name=name), unknown=unknown)


LATER: dict[str, Callable[[Ghost, str], object]] = {  # calls that find the lock free while somebody waits
    "acquire": lambda ghost, name: take(ghost, STRANGER, name),
    "withdraw": lambda ghost, name: release(ghost, STRANGER, name),
    "renew": lambda ghost, name: ghost.renew(ghost.request(HOLDER, name=name), "keep", LONG),
}
CALLS: dict[str, Callable[[Ghost, str], object]] = {
    **LATER,
    "release": lambda ghost, name: release(ghost, HOLDER, name),
    "force": lambda ghost, name: ghost.force(name),
    "seize": lambda ghost, name: take(ghost, STRANGER, name, inside.SEIZING),
    "adopt": lambda ghost, name: take(ghost, STRANGER, name, token=TOKEN),
}


@NAMES
@pytest.mark.parametrize("by", CALLS)
def test_a_script_that_may_not_write_publishes_nothing(
    by: str, name: str, root: redis.Redis, ghosts: tuple[Ghost, Ghost]
) -> None:
    LockPool("accounts").extend(["alice"])
    first, second = ghosts
    assert take(first, HOLDER, name, token=TOKEN) == inside.GRANTED
    second.queue(WAITER, name=name)
    if by in LATER:
        vanish(root, name)
    if by == "adopt":
        first.renew(first.request(HOLDER, name=name, token=TOKEN), "detach", LONG)
    root.config_set("min-replicas-to-write", 1)
    with pytest.raises(LockUnavailable, match="Not enough good replicas"):
        CALLS[by](second, name)
    assert told(first) + told(second) == []
    root.config_set("min-replicas-to-write", 0)
    CALLS[by](second, name)
    assert {"seize": ["f", HOLDER], "adopt": ["a", HOLDER]}.get(by, ["g", WAITER]) in told(first) + told(second)


POOL_CALLS: dict[str, Callable[[Ghost], object]] = {
    "checkout": lambda ghost: take(ghost, STRANGER, POOL),
    "leave": lambda ghost: release(ghost, HOLDER, POOL),
    "release": lambda ghost: release(ghost, HOLDER, MEMBER),
    "members": lambda ghost: LockPool("accounts").extend(["bob"]),
}


@pytest.mark.parametrize("by", POOL_CALLS)
def test_a_script_that_may_not_write_hands_over_no_member_of_a_pool(
    by: str, root: redis.Redis, ghosts: tuple[Ghost, Ghost]
) -> None:
    LockPool("accounts").extend(["alice"])
    first, second = ghosts
    assert take(first, HOLDER, POOL) == inside.GRANTED
    second.queue(WAITER, name=POOL)
    if by == "checkout":
        root.zadd("redislock{0}:busy:pool:accounts:", {"alice": 1})  # its lease has ended
    root.config_set("min-replicas-to-write", 1)
    with pytest.raises(LockUnavailable, match="Not enough good replicas"):
        POOL_CALLS[by](second)
    assert told(second) == []
    root.config_set("min-replicas-to-write", 0)
    POOL_CALLS[by](second)
    assert told(second) == [["g", WAITER]]


# -- at the limit of memory -------------------------------------------------------------------------------------------


@NAMES
@pytest.mark.parametrize("unknown", [False, True], ids=["known", "unknown"])
def test_a_holder_can_release_and_hand_over_when_redis_is_out_of_memory(
    unknown: bool, name: str, root: redis.Redis, ghosts: tuple[Ghost, Ghost]
) -> None:
    """Passing on is DEL, then SET: the first write of a script is one that Redis allows at its limit of memory."""
    first, second = ghosts
    assert take(first, HOLDER, name) == inside.GRANTED
    second.queue(WAITER, name=name)
    root.config_set("maxmemory", 1)
    with pytest.raises(LockUnavailable, match="maxmemory"):
        Lock("other").acquire()
    release(first, HOLDER, name, unknown=unknown)
    assert second.hear()[:2] == ["g", WAITER]
    root.config_set("maxmemory", 0)
    assert take(second, WAITER, name) == inside.ALREADY


@NAMES
@pytest.mark.parametrize("handed", [False, True])
@pytest.mark.parametrize("how", ["keep", "confirm", "set", "detach"])
def test_a_holder_keeps_its_lock_when_redis_is_out_of_memory(
    how: str, handed: bool, name: str, root: redis.Redis, ghosts: tuple[Ghost, Ghost]
) -> None:
    first, second = ghosts
    assert take(first, HOLDER, name) == inside.GRANTED
    id, ghost = (WAITER, second) if handed else (HOLDER, first)
    if handed:
        second.queue(WAITER, name=name)
        release(first, HOLDER, name)
    root.config_set("maxmemory", 1)
    renewed = ghost.renew(ghost.request(id, name=name, ttl=LONG), how, 2 * LONG)
    root.config_set("maxmemory", 0)
    assert renewed.state == inside.HELD
    assert renewed.ends - monotonic() > LONG / 2


@NAMES
def test_a_lock_can_be_seized_when_redis_is_out_of_memory(
    name: str, root: redis.Redis, ghosts: tuple[Ghost, Ghost]
) -> None:
    first, second = ghosts
    assert take(first, HOLDER, name) == inside.GRANTED
    root.config_set("maxmemory", 1)
    assert take(second, STRANGER, name, inside.SEIZING) == inside.GRANTED
    assert first.hear()[:2] == ["f", HOLDER]
    root.config_set("maxmemory", 0)


# -- who may not tell, or not ask -------------------------------------------------------------------------------------


def test_a_holder_without_the_right_to_publish_can_still_hand_over(
    allow_only: Callable[..., str], threads: Line, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiter keeps its place, and finds the free lock by itself."""
    allow_only("resetchannels")
    limit(monkeypatch, look_every=1.0)
    lock = Lock(NAME, using="other")
    lock.acquire()
    waiting = threads.join(Lock(NAME))
    ((id, _),) = listed(client)
    lock.release()
    assert not Lock(NAME).acquire(blocking=False), "somebody overtook the waiter"
    assert holder(client) == id
    assert waiting.result()
    assert waiting.fence == int(value(client)[3])


@pytest.mark.usefixtures("nobody_looks")
def test_a_holder_without_the_right_to_count_subscribers_can_still_hand_over(
    allow_only: Callable[..., str], threads: Line, client: redis.Redis
) -> None:
    """An error is not a 0, so no waiter is dropped because of it."""
    allow_only("allchannels", "-pubsub")
    lock = Lock(NAME, ttl=LONG, using="other")
    lock.acquire()
    waiting = threads.join(Lock(NAME))
    ((id, _),) = listed(client)
    lock.release()
    assert holder(client) == id
    assert waiting.result()
    assert client.exists(LOCK)
