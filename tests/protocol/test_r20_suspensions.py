"""R20: a suspended lock is granted to nobody. Its holder keeps it to the end, and waiters keep their places."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockLost, LockStatus
from tests.helpers.actors import Crowd
from tests.helpers.state import NAME, TOKEN, leftovers
from tests.protocol.scene import LONG, MEMBER, Join, lapse, listed

pytestmark = pytest.mark.parametrize("name", [NAME, MEMBER], ids=["lock", "member"])


def test_nobody_gets_a_suspended_lock_until_it_is_resumed(crowd: Crowd, client: redis.Redis, name: str) -> None:
    me, you = crowd(), crowd()
    me(Lock(name), "suspend", LONG)
    for asks in (Lock(name), Lock(name, poll=True), Lock(name, token=TOKEN), Lock(name, token="-" * 22)):
        assert not you(asks, "acquire", blocking=False)
        assert not you(asks, "acquire", blocking_timeout=0.05)
        assert you(asks, "status") is LockStatus.UNAVAILABLE
    assert [you(Lock(name), "resume") for _ in range(2)] == [True, False]
    assert leftovers(client) == []
    assert you(Lock(name), "acquire", blocking=False)
    assert me(Lock(name), "resume") is False  # it is held, and not suspended
    assert me(Lock(name), "status") is LockStatus.UNAVAILABLE


@pytest.mark.parametrize("end", ["release", "bearer", "lapse", "renewal", "resumed before"])
def test_a_holder_keeps_the_lock_and_then_the_suspension_begins(
    end: str, crowd: Crowd, client: redis.Redis, name: str
) -> None:
    me, you, lock = crowd(), crowd(), Lock(name, ttl=LONG)
    me(lock, "acquire")
    for seconds, note in ((60, "earlier"), (2 * LONG, "the last one counts")):
        you(Lock(name), "suspend", seconds, note=note)
        suspension = you(Lock(name), "info").suspension
        assert (suspension.note, round(suspension.left / 10)) == (note, seconds / 10)
    assert me(lock, "extend", 60)
    assert me(lock, "status") is LockStatus.LOCKED
    if end == "resumed before":
        assert [you(Lock(name), "resume") for _ in range(2)] == [True, False]
        me(lock, "release")
        assert leftovers(client) == []
        return
    if end == "release":
        me(lock, "release")
    elif end == "bearer":
        adopted = Lock(name, token=me(lock, "detach"))
        assert you(adopted, "acquire", blocking=False)
        you(adopted, "release")
    else:
        lapse(client, name)
        if end == "renewal":
            with pytest.raises(LockLost):
                me(lock, "extend", 1)
    assert not you(Lock(name), "acquire", blocking=False)
    info = you(Lock(name), "info")
    assert (info.held, info.note) == (False, "the last one counts")
    assert LONG < info.lease_left <= 2 * LONG
    assert you(Lock(name), "resume")
    assert you(Lock(name), "acquire", blocking=False)


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("end", ["resumed", "cut short", "over"])
def test_waiters_keep_their_places_and_are_served_when_it_ends(
    end: str, join: Join, crowd: Crowd, listening: Callable[[], object], client: redis.Redis, name: str
) -> None:
    """ "over": they knew only the end of the holder's lease, which is long after that."""
    listening()
    me, lock = crowd(), Lock(name, ttl=LONG)
    if end == "over":
        me(lock, "acquire")
    else:
        me(lock, "suspend", LONG)
    first, second = (join(Lock(name, ttl=LONG)) for _ in range(2))
    before = listed(client, name)
    me(Lock(name), "suspend", 2 * LONG if end == "resumed" else 0.5)
    assert listed(client, name) == before
    if end == "over":
        me(lock, "release")
    elif end == "resumed":
        assert me(lock, "resume")
    assert first.result()
    assert listed(client, name) == before[1:]
    first.release()
    assert second.result()


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("how", ["force", "seize"])
def test_a_force_release_or_a_seizure_ends_it(
    how: str, held: bool, crowd: Crowd, client: redis.Redis, name: str
) -> None:
    me, you, lock = crowd(), crowd(), Lock(name)
    if held:
        me(Lock(name), "acquire")
    me(Lock(name), "suspend", LONG)
    if how == "force":
        assert you(django_redislock, "force_release", name)
        assert you(django_redislock, "force_release", name) is None
    else:
        you(lock, "seize")
        you(lock, "release")
    assert leftovers(client) == []
