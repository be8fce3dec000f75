"""R13 and R17: adopting or releasing a lock with its token, and how its former holder learns of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, force_release
from tests import inside
from tests.helpers.actors import Crowd, Ghost
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, holder, value
from tests.inside import PREFIX, leases
from tests.protocol.scene import LONG, Eventually, lapse, receivers

ADOPTER = "adopter-adopter-adopte"


class Former:
    """A user that holds the lock with TOKEN, and is told of its loss."""

    def __init__(self, person: Any, eventually: Eventually, **options: Any) -> None:
        self.losses: list[LockLost] = []
        self.person = person
        self.lock = Lock(NAME, token=TOKEN, on_lost=self.losses.append, **options)
        self.eventually = eventually
        assert person(self.lock, "acquire")
        eventually(lambda: all(lease.seen and not lease.urgent for lease in leases()))

    def has_lost(self, reason: str) -> None:
        """Whether it was told, once, and reports the loss from then on."""
        self.eventually(lambda: self.losses)
        assert [error.reason for error in self.losses] == [reason]
        assert self.person.read(lambda: self.lock.lost)
        with pytest.raises(LockLost) as caught:
            self.person(self.lock, "release")
        assert caught.value.reason == reason


@pytest.fixture
def former(crowd: Crowd, eventually: Eventually, listening: Callable[..., object]) -> Former:
    listening()
    return Former(crowd(), eventually, ttl=LONG)


def adopt(ghost: Ghost) -> inside.AcquireReply:
    return ghost.acquire(ghost.request(ADOPTER, name=NAME, token=TOKEN), inside.NOT_AT_ALL)


def test_a_lock_is_adopted_only_if_nobody_uses_it_and_keeps_its_fence(
    former: Former, ghost: Callable[..., Ghost], crowd: Crowd, client: redis.Redis
) -> None:
    before, new = client.get(LOCK), ghost()
    assert not crowd()(Lock(NAME, token=TOKEN), "acquire", blocking=False)
    assert adopt(new).state == inside.BUSY
    assert client.get(LOCK) == before
    fence = int(value(client)[3])
    assert former.person(former.lock, "detach") == TOKEN
    taken = adopt(new)
    assert (taken.state, taken.number) == (inside.ALREADY, fence)
    assert value(client)[:3] == [ADOPTER, new.channel, "a"]
    assert former.losses == []


@pytest.mark.parametrize("then", ["it is told", "it releases", "the adopter dies"])
def test_adoption_from_a_process_that_seems_dead_draws_a_new_fence_and_ends_what_that_has(
    then: str,
    crowd: Crowd,
    ghost: Callable[..., Ghost],
    network: Proxy,
    listening: Callable[..., object],
    client: redis.Redis,
    eventually: Eventually,
) -> None:
    """If it is alive after all, its writes are outdated from now on. Renewals and releases go by the id of the attempt,
    not by the token."""
    listening("other")
    former = Former(crowd(), eventually, ttl=30, using="other")
    network.cut()
    _, channel, _, fence, *_ = value(client)
    eventually(lambda: receivers(client, channel) == 0)
    taken = adopt(ghost())
    assert (taken.state, taken.number) == (inside.ALREADY, int(value(client)[3]))
    assert taken.number > int(fence)
    if then == "the adopter dies":
        client.pexpire(LOCK, 1000)
    network.mend()
    if then == "it is told":
        former.has_lost(inside.WAS_ADOPTED)  # at its next renewal, as no message could tell it
    elif then == "it releases":
        with pytest.raises(LockLost):
            former.person(former.lock, "release")
        assert holder(client) == ADOPTER
    else:
        eventually(lambda: not holder(client), within=10)  # nobody renews it


def released_elsewhere(client: redis.Redis) -> None:
    bearer = Ghost(client, alive=True)
    bearer.release(bearer.request(holder(client), name=NAME), how=inside.BEARER)
    bearer.close()


def told_of_an_adoption(client: redis.Redis) -> None:
    """As one that is subscribed again at the moment of the adoption."""
    id, channel, *_ = value(client)
    client.publish(channel, f"a {id} {NAME}")


BY_MESSAGE: dict[str, tuple[Callable[[redis.Redis], object], str]] = {
    "force": (lambda client: force_release(NAME), inside.WAS_FORCED),
    "seize": (lambda client: Lock(NAME).seize(), inside.WAS_FORCED),
    "release elsewhere": (released_elsewhere, inside.WAS_RELEASED),
    "release here": (lambda client: Lock(NAME, token=TOKEN).release(), inside.WAS_RELEASED),
    "adoption": (told_of_an_adoption, inside.WAS_ADOPTED),
}
AT_THE_NEXT_RENEWAL: dict[str, tuple[Callable[[redis.Redis], object], str]] = {
    "expiry": (lapse, inside.HAS_VANISHED),
    "flush": (lambda client: client.flushall(), inside.HAS_VANISHED),
    "overwritten": (
        lambda client: client.set(LOCK, f"{'x' * 22} {PREFIX}c c 1 1 - owner", px=60_000),
        inside.WAS_TAKEN,
    ),
}


@pytest.mark.parametrize("how", [*BY_MESSAGE, *AT_THE_NEXT_RENEWAL])
def test_every_end_of_a_lease_from_outside_is_told_once(
    how: str,
    former: Former,
    client: redis.Redis,
    renew_all: Callable[..., None],
    heard: list[tuple[str, dict[str, Any]]],
) -> None:
    """R17: ``lost`` is False only for a live lease that is ours."""
    end, reason = {**BY_MESSAGE, **AT_THE_NEXT_RENEWAL}[how]
    fence = former.person.read(lambda: former.lock.fence)
    end(client)
    if how in AT_THE_NEXT_RENEWAL:
        renew_all()
    former.has_lost(reason)
    assert [facts for which, facts in heard if which == "lost"] == [
        {"name": NAME, "template": NAME, "fence": fence, "reason": reason, "expired": False}
    ]
