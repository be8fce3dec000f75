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
from tests.inside import leases
from tests.protocol.scene import Eventually, Ghosts, Listening, lapse

ADOPTER = "adopter-adopter-adopte"


@pytest.fixture
def hold(crowd: Crowd, listening: Listening, eventually: Eventually) -> Callable[..., tuple[Any, Lock, list[LockLost]]]:
    """Somebody holds the lock with TOKEN. Returns who, the lock, and the losses of which it is told."""

    def hold(using: str = "default") -> tuple[Any, Lock, list[LockLost]]:
        losses: list[LockLost] = []
        me, lock = crowd(), Lock(NAME, token=TOKEN, ttl=30, on_lost=losses.append, using=using)
        listening(using)
        assert me(lock, "acquire")
        eventually(lambda: all(lease.seen and not lease.urgent for lease in leases()))
        return me, lock, losses

    return hold


def adopt(ghost: Ghost) -> inside.AcquireReply:
    return ghost.acquire(ghost.request(ADOPTER, name=NAME, token=TOKEN), inside.NOT_AT_ALL)


def test_a_lock_is_adopted_only_if_nobody_uses_it_and_keeps_its_fence(
    hold: Any, ghost: Ghosts, crowd: Crowd, client: redis.Redis
) -> None:
    me, lock, losses = hold()
    before, new = value(client), ghost()
    assert not crowd()(Lock(NAME, token=TOKEN), "acquire", blocking=False)
    assert adopt(new).state == inside.BUSY
    assert value(client) == before
    assert me(lock, "detach") == TOKEN
    assert adopt(new).state == inside.ALREADY
    assert value(client)[:4] == [ADOPTER, new.channel, "a", before[3]]
    assert losses == []


@pytest.mark.parametrize("then", ["it is told", "it releases", "the adopter dies"])
def test_adoption_from_a_process_that_seems_dead_draws_a_new_fence_and_ends_what_that_has(
    then: str, hold: Any, ghost: Ghosts, network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    """If it is alive after all, its writes are outdated from now on. Renewals and releases go by the id of the attempt,
    not by the token."""
    me, lock, losses = hold("other")
    network.cut()
    _, channel, _, fence, *_ = value(client)
    eventually(lambda: client.pubsub_numsub(channel)[0][1] == 0)
    assert adopt(ghost()).state == inside.ALREADY
    assert int(value(client)[3]) > int(fence)
    if then == "the adopter dies":
        client.pexpire(LOCK, 500)
    network.mend()
    if then == "it is told":
        eventually(lambda: losses)  # at its next renewal, as no message could tell it
        assert [error.reason for error in losses] == [inside.WAS_ADOPTED]
    elif then == "it releases":
        with pytest.raises(LockLost):
            me(lock, "release")
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


ENDS: dict[str, tuple[Callable[[redis.Redis], object], str]] = {
    "force": (lambda client: force_release(NAME), inside.WAS_FORCED),
    "seize": (lambda client: Lock(NAME).seize(), inside.WAS_FORCED),
    "release elsewhere": (released_elsewhere, inside.WAS_RELEASED),
    "release here": (lambda client: Lock(NAME, token=TOKEN).release(), inside.WAS_RELEASED),
    "adoption": (told_of_an_adoption, inside.WAS_ADOPTED),
    # of these, it learns at its next renewal
    "expiry": (lapse, inside.HAS_VANISHED),
    "flush": (lambda client: client.flushall(), inside.HAS_VANISHED),
    "overwritten": (lambda client: client.set(LOCK, f"{'x' * 22} - c 1 1 - owner", px=60_000), inside.WAS_TAKEN),
}


@pytest.mark.parametrize("how", ENDS)
def test_every_end_of_a_lease_from_outside_is_told_once(
    how: str, hold: Any, client: redis.Redis, renew_all: Callable[..., None], heard: list[Any], eventually: Eventually
) -> None:
    """R17: ``lost`` is False only for a live lease that is ours."""
    end, reason = ENDS[how]
    me, lock, losses = hold()
    fence = me.read(lambda: lock.fence)
    end(client)
    if how in ("expiry", "flush", "overwritten"):
        renew_all()
    eventually(lambda: losses)
    assert me.read(lambda: lock.lost)
    with pytest.raises(LockLost) as caught:
        me(lock, "release")
    assert caught.value.reason == reason
    assert [error.reason for error in losses] == [reason]
    assert [facts for which, facts in heard if which == "lost"] == [
        {"name": NAME, "template": NAME, "fence": fence, "reason": reason, "expired": False}
    ]
