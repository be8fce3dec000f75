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
from tests.helpers.actors import Crowd, Ghost
from tests.helpers.state import NAME, TOKEN, holder
from tests.inside import limit
from tests.protocol.scene import HOLDER, LONG, MEMBER, POOL, WAITER, Eventually, joiner, lapse, listed, told

STRANGER = "stranger-stranger-st-1"


@pytest.fixture
def root(own: RedisServer) -> Iterator[redis.Redis]:
    """A client of a server for this test alone."""
    with own.client() as client:
        LockPool("accounts").extend(["alice"])
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
    return ghost.acquire(ghost.request(id, name=name, ttl=LONG, **more), wait).state


def release(ghost: Ghost, id: str, name: str, *, unknown: bool = False) -> None:
    ghost.release(ghost.request(id, name=name), unknown=unknown)


def renew(ghost: Ghost, id: str, name: str, how: str = "keep") -> Any:
    return ghost.renew(ghost.request(id, name=name, ttl=LONG), how, LONG)


AT_THE_END: dict[str, Callable[[Ghost, str], object]] = {  # calls that find the lock free while somebody waits
    "acquire": lambda ghost, name: take(ghost, STRANGER, name),
    "withdraw": lambda ghost, name: release(ghost, STRANGER, name),
    "renew": lambda ghost, name: renew(ghost, HOLDER, MEMBER if name == POOL else name),
}
CALLS: dict[str, Callable[[Ghost, str], object]] = {
    **AT_THE_END,
    "release": lambda ghost, name: release(ghost, HOLDER, MEMBER if name == POOL else name),
    "force": lambda ghost, name: ghost.force(MEMBER if name == POOL else name),
    "seize": lambda ghost, name: take(ghost, STRANGER, name, inside.SEIZING),
    "adopt": lambda ghost, name: take(ghost, STRANGER, name, token=TOKEN),
    "members": lambda ghost, name: LockPool("accounts").extend(["bob"]),
}
OF_ONE_LOCK, OF_POOLS = ("seize", "adopt"), ("members",)


@pytest.mark.parametrize(
    ("name", "by"),
    [
        (name, by)
        for name in (NAME, MEMBER, POOL)
        for by in CALLS
        if by not in (OF_ONE_LOCK if name == POOL else OF_POOLS)
    ],
)
def test_a_script_that_may_not_write_publishes_nothing(
    by: str, name: str, root: redis.Redis, ghosts: tuple[Ghost, Ghost]
) -> None:
    first, second = ghosts
    assert take(first, HOLDER, name, token=None if name == POOL else TOKEN) == inside.GRANTED
    second.queue(WAITER, name=name)
    if by in AT_THE_END:
        lapse(root, name)
    if by == "adopt":
        first.renew(first.request(HOLDER, name=name, token=TOKEN), "detach", LONG)
    root.config_set("min-replicas-to-write", 1)
    with pytest.raises(LockUnavailable, match="Not enough good replicas"):
        CALLS[by](second, name)
    assert told(first) + told(second) == []
    root.config_set("min-replicas-to-write", 0)
    CALLS[by](second, name)
    assert {"seize": ["f", HOLDER], "adopt": ["a", HOLDER]}.get(by, ["g", WAITER]) in told(first) + told(second)


@pytest.mark.parametrize("unknown", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("name", [NAME, MEMBER], ids=["key", "member"])
def test_a_holder_can_renew_release_and_hand_over_when_redis_is_out_of_memory(
    name: str, unknown: bool, root: redis.Redis, ghosts: tuple[Ghost, Ghost]
) -> None:
    """The first write of a script is one that Redis allows at its limit of memory."""
    first, second = ghosts
    assert take(first, HOLDER, name) == inside.GRANTED
    second.queue(WAITER, name=name)
    root.config_set("maxmemory", 1)
    with pytest.raises(LockUnavailable, match="maxmemory"):
        Lock("other").acquire()
    assert {renew(first, HOLDER, name, how).state for how in ("keep", "confirm", "set")} == {inside.HELD}
    release(first, HOLDER, name, unknown=unknown)
    assert told(second) == [["g", WAITER]]
    for how in ("confirm", "keep", "set", "detach"):
        renewed = renew(second, WAITER, name, how)
        assert renewed.state == inside.HELD
        assert renewed.ends - monotonic() > LONG / 2 or how == "confirm"
    assert take(first, STRANGER, name, inside.SEIZING) == inside.GRANTED
    assert told(second) == [["f", WAITER]]
    root.config_set("maxmemory", 0)


@pytest.mark.parametrize("right", ["publish", "pubsub"])
def test_a_holder_without_the_right_to_tell_or_to_ask_can_still_hand_over(
    right: str,
    allow_only: Callable[..., str],
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A waiter that cannot be told keeps its place and finds the lock; an error is not a 0, and nobody is dropped."""
    limit(monkeypatch, look_every=1.0 if right == "publish" else LONG)
    lock = Lock(
        NAME, ttl=LONG, using=allow_only(*["resetchannels"] if right == "publish" else ["allchannels", "-pubsub"])
    )
    lock.acquire()
    threads = Crowd(tasks=False)
    waiting = joiner(threads, client, eventually)(Lock(NAME))
    ((id, _),) = listed(client)
    lock.release()
    assert not Lock(NAME).acquire(blocking=False), "somebody overtook the waiter"
    assert holder(client) == id
    assert waiting.result()
    threads.close()
