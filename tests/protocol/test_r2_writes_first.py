"""R2: a script publishes nothing before Redis has accepted one of its writes, and an error of PUBLISH is not a 0."""

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
from tests.helpers.state import NAME, TOKEN, holder
from tests.protocol.scene import LONG, MEMBER, POOL, Join, lapse, listed, told

HOLDER, WAITER, STRANGER = "holder-holder-holder-1", "waiter-waiter-waiter-1", "stranger-stranger-st-1"


@pytest.fixture
def ghosts(own: RedisServer) -> Iterator[tuple[redis.Redis, Ghost, Ghost]]:
    """A client of a server for this test alone, and two simulated processes, of a holder and a waiter."""
    with own.client() as root:
        LockPool("accounts").extend(["alice"])
        pair = Ghost(root, alive=True), Ghost(root, alive=True)
        yield root, *pair
        for one in pair:
            one.close()


def take(ghost: Ghost, id: str, name: str, wait: str = inside.NOT_AT_ALL, **more: Any) -> int:
    """Ask for the lock; returns the state."""
    return ghost.acquire(ghost.request(id, name=name, ttl=LONG, **more), wait).state


def renew(ghost: Ghost, id: str, name: str, how: str = "keep") -> Any:
    return ghost.renew(ghost.request(id, name=name, ttl=LONG), how, LONG)


def release(ghost: Ghost, id: str, name: str) -> Any:
    return ghost.release(ghost.request(id, name=name))


AT_THE_END: dict[str, Callable[[Ghost, str], object]] = {  # calls that find the lock free while somebody waits
    "acquire": lambda ghost, name: take(ghost, STRANGER, name),
    "withdraw": lambda ghost, name: release(ghost, STRANGER, name),
    "renew": lambda ghost, name: renew(ghost, HOLDER, name),
}
CALLS: dict[str, Callable[[Ghost, str], object]] = {
    **AT_THE_END,
    "release": lambda ghost, name: release(ghost, HOLDER, name),
    "force": lambda ghost, name: ghost.force(name),
    "seize": lambda ghost, name: take(ghost, STRANGER, name, inside.SEIZING),
    "adopt": lambda ghost, name: take(ghost, STRANGER, name, token=TOKEN),
    "members": lambda ghost, name: LockPool("accounts").extend(["bob"]),
}
OF_POOLS = [(POOL, "acquire"), (POOL, "withdraw"), (POOL, "members")]


@pytest.mark.parametrize(
    ("name", "by"), [*((name, by) for name in (NAME, MEMBER) for by in CALLS if by != "members"), *OF_POOLS]
)
def test_a_script_that_may_not_write_publishes_nothing(
    by: str, name: str, ghosts: tuple[redis.Redis, Ghost, Ghost]
) -> None:
    root, first, second = ghosts
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


@pytest.mark.parametrize("name", [NAME, MEMBER], ids=["key", "member"])
def test_a_holder_can_renew_release_and_hand_over_when_redis_is_out_of_memory(
    name: str, ghosts: tuple[redis.Redis, Ghost, Ghost]
) -> None:
    """The first write of a script is one that Redis allows at its limit of memory."""
    root, first, second = ghosts
    assert take(first, HOLDER, name) == inside.GRANTED
    second.queue(WAITER, name=name)
    root.config_set("maxmemory", 1)
    with pytest.raises(LockUnavailable, match="maxmemory"):
        Lock("other").acquire()
    assert {renew(first, HOLDER, name, how).state for how in ("keep", "confirm", "set")} == {inside.HELD}
    first.release(first.request(HOLDER, name=name), unknown=True)
    assert told(second) == [["g", WAITER]]
    for how in ("confirm", "keep", "set", "detach"):
        renewed = renew(second, WAITER, name, how)
        assert renewed.state == inside.HELD
        assert renewed.ends - monotonic() > LONG / 2
    assert take(first, STRANGER, name, inside.SEIZING) == inside.GRANTED
    assert told(second) == [["f", WAITER]]
    root.config_set("maxmemory", 0)


@pytest.mark.usefixtures("look_soon")
@pytest.mark.parametrize("rules", [("resetchannels",), ("allchannels", "-pubsub")], ids=["to tell", "to ask"])
def test_a_holder_without_the_right_to_tell_or_to_ask_can_still_hand_over(
    rules: tuple[str, ...], allow_only: Callable[..., str], threads: Join, client: redis.Redis
) -> None:
    """A waiter that cannot be told keeps its place and finds the lock; an error is not a 0, and nobody is dropped."""
    lock = Lock(NAME, ttl=LONG, using=allow_only(*rules))
    lock.acquire()
    waiting = threads(Lock(NAME))
    ((id, _),) = listed(client)
    lock.release()
    assert not Lock(NAME).acquire(blocking=False), "somebody overtook the waiter"
    assert holder(client) == id
    assert waiting.result()
