"""R13 and R17: adopting or releasing a lock with its token, and how its former holder learns of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockNotOwned, force_release
from tests import inside
from tests.helpers.actors import Crowd, Ghost
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, holder, value
from tests.inside import PREFIX, leases, listener
from tests.protocol.scene import LONG, Eventually, Line, receivers, vanish

ADOPTER = "adopter-adopter-adopte"


class Former:
    """A user that holds the lock with TOKEN, and is told of its loss."""

    def __init__(self, person: Any, eventually: Eventually, **options: Any) -> None:
        self.losses: list[LockLost] = []
        self.person = person
        self.lock = Lock(NAME, token=TOKEN, on_lost=self.losses.append, **options)
        self.eventually = eventually
        ears = listener(options.get("using"))
        ears.start()
        eventually(lambda: ears.ready)
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
def former(crowd: Crowd, eventually: Eventually) -> Former:
    return Former(crowd(), eventually, ttl=LONG)


@pytest.fixture
def cut_off(crowd: Crowd, network: Proxy, client: redis.Redis, eventually: Eventually) -> Iterator[Former]:
    """The same, but no message reaches its process, so that others must consider it dead."""
    one = Former(crowd(), eventually, ttl=30, using="other")
    network.cut()
    eventually(lambda: receivers(client, value(client)[1]) == 0)
    yield one
    network.mend()


def adopt(ghost: Ghost) -> inside.AcquireReply:
    request = ghost.request(ADOPTER, name=NAME, token=TOKEN)
    return ghost.acquire(request, inside.NOT_AT_ALL)


# -- who may ----------------------------------------------------------------------------------------------------------


def test_a_lock_in_use_is_busy_for_others_with_its_token(
    former: Former, ghost: Callable[..., Ghost], crowd: Crowd, client: redis.Redis
) -> None:
    """In the same process and in another one."""
    before = client.get(LOCK)
    assert not crowd()(Lock(NAME, token=TOKEN), "acquire", blocking=False)
    assert adopt(ghost()).state == inside.BUSY
    assert client.get(LOCK) == before
    assert former.losses == []


def test_adoption_of_a_detached_lock_writes_the_adopter_into_it_and_keeps_the_fence(
    former: Former, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    fence = int(value(client)[3])
    assert former.person(former.lock, "detach") == TOKEN
    new = ghost()
    taken = adopt(new)
    assert (taken.state, taken.number) == (inside.ALREADY, fence)
    id, channel, flag, *_ = value(client)
    assert (id, channel, flag) == (ADOPTER, new.channel, "a")
    assert former.losses == []


def test_adoption_from_a_process_that_seems_dead_draws_a_new_fence(
    cut_off: Former, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """If it is alive after all, its writes are outdated from now on."""
    fence = int(value(client)[3])
    taken = adopt(ghost())
    assert taken.state == inside.ALREADY
    assert taken.number > fence
    assert int(value(client)[3]) == taken.number


# -- what its former holder learns ------------------------------------------------------------------------------------


def test_a_holder_learns_that_its_lock_was_adopted_elsewhere(
    cut_off: Former, ghost: Callable[..., Ghost], network: Proxy
) -> None:
    """By its next renewal, if no message could tell it."""
    assert adopt(ghost()).state == inside.ALREADY
    network.mend()
    cut_off.has_lost(inside.WAS_ADOPTED)


def test_a_message_tells_a_holder_that_its_lock_was_adopted_elsewhere(former: Former, client: redis.Redis) -> None:
    """If it is subscribed again at the moment of the adoption."""
    id, channel, *_ = value(client)
    client.publish(channel, f"a {id} {NAME}")
    former.has_lost(inside.WAS_ADOPTED)


def test_a_lock_whose_adopter_died_is_not_renewed_by_its_former_holder(
    cut_off: Former, ghost: Callable[..., Ghost], network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    """Renewals go by the id of the attempt, not by the token."""
    assert adopt(ghost()).state == inside.ALREADY
    client.pexpire(LOCK, 1500)
    network.mend()
    eventually(lambda: not holder(client), within=10)


def test_a_former_holder_that_releases_late_leaves_the_lock_to_its_adopter(
    cut_off: Former, ghost: Callable[..., Ghost], network: Proxy, client: redis.Redis
) -> None:
    assert adopt(ghost()).state == inside.ALREADY
    network.mend()
    with pytest.raises(LockLost):
        cut_off.person(cut_off.lock, "release")
    assert holder(client) == ADOPTER


def test_a_holder_learns_that_somebody_with_its_token_has_released_the_lock(
    former: Former, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """A release from another process publishes to the channel that is recorded in the lock."""
    bearer = ghost()
    released = bearer.release(bearer.request(holder(client), name=NAME), how=inside.BEARER)
    assert released[:2] == (inside.RELEASED, False)
    former.has_lost(inside.WAS_RELEASED)


def test_a_holder_learns_that_somebody_else_in_its_process_has_released_the_lock(former: Former, crowd: Crowd) -> None:
    crowd()(Lock(NAME, token=TOKEN), "release")
    former.eventually(lambda: former.losses, within=3)
    former.has_lost(inside.WAS_RELEASED)


LOSSES: dict[str, tuple[Callable[[redis.Redis], object], str]] = {
    "force": (lambda client: force_release(NAME), inside.WAS_FORCED),
    "seize": (lambda client: Lock(NAME).seize(), inside.WAS_FORCED),
    "expiry": (lambda client: vanish(client, NAME), inside.HAS_VANISHED),
    "flush": (lambda client: client.flushall(), inside.HAS_VANISHED),
    "overwritten": (
        lambda client: client.set(LOCK, f"{'x' * 22} {PREFIX}c c 1 1 - owner", px=60_000),
        inside.WAS_TAKEN,
    ),
}


@pytest.mark.parametrize("how", LOSSES)
def test_every_end_of_a_lease_from_outside_is_reported(
    how: str,
    former: Former,
    client: redis.Redis,
    renew_all: Callable[..., None],
    heard: list[tuple[str, dict[str, Any]]],
) -> None:
    """R17: ``lost`` is False only for a live lease that is ours."""
    end, reason = LOSSES[how]
    fence = former.person.read(lambda: former.lock.fence)
    end(client)
    if reason != inside.WAS_FORCED:
        renew_all()  # at its next renewal, as nobody tells
    former.has_lost(reason)
    assert [facts for which, facts in heard if which == "lost"] == [
        {"name": NAME, "template": NAME, "fence": fence, "reason": reason, "expired": False}
    ]


def test_a_release_or_detach_here_is_no_loss(
    crowd: Crowd, line: Line, client: redis.Redis, renew_all: Callable[..., None], a_round: Callable[[], None]
) -> None:
    me = crowd()
    losses: list[LockLost] = []
    first = Lock(NAME, ttl=LONG, on_lost=losses.append)
    me(first, "acquire")
    me(first, "release")
    second = Lock(NAME, ttl=LONG, on_lost=losses.append)
    me(second, "acquire")
    token = me(second, "detach")
    crowd()(Lock(NAME, token=token), "release")
    a_round()
    assert losses == []
    assert not me.read(lambda: first.lost or second.lost)
    with pytest.raises(LockNotOwned):
        me(second, "release")
