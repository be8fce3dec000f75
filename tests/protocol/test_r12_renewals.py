"""R12: nothing that Redis or the network does to one renewal affects other locks, or locks that were released."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

import pytest
import redis

from django_redislock import Lock, LockLost
from redisserver import RedisServer, redis_server
from tests import inside
from tests.helpers.actors import GENEROUS, Ghost
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, holder
from tests.helpers.ways import stopped
from tests.inside import PREFIX, listener
from tests.protocol.scene import LONG, MEMBER, Eventually, listed


def test_a_renewal_that_is_overtaken_by_the_release_is_no_loss(
    network: Proxy, client: redis.Redis, a_round: Callable[[], None], renew_all: Callable[..., None]
) -> None:
    """Its answer counts only as long as the lock is held here."""
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=12, on_lost=losses.append, using="other")
    lock.acquire()
    held = network.hold_request("keep")
    renew_all("other")
    assert held.caught.wait(GENEROUS)
    lock.release()
    held.let_go()
    assert held.over.wait(GENEROUS)
    a_round()
    assert losses == []
    assert holder(client) == ""


def test_the_end_of_a_lease_is_reported_even_while_redis_hangs(own: RedisServer, eventually: Eventually) -> None:
    """Local deadlines are checked whatever requests are unanswered."""
    told: list[float] = []
    locks = [Lock(f"{NAME}:{ttl}", ttl=ttl, on_lost=lambda _: told.append(monotonic())) for ttl in (0.6, 0.9, 1.2)]
    for lock in locks:
        lock.acquire()
    with stopped(own):
        began = monotonic()
        eventually(lambda: len(told) == 3)
        assert max(told) - began < 1.2 + 2.5  # the timeout of the alias is 5 s
        assert all(lock.lost for lock in locks)


@pytest.mark.complete
def test_a_redis_that_hangs_costs_no_lock_of_another_alias(
    add_alias: Callable[..., str],
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    renew_all: Callable[..., None],
) -> None:
    """Whatever one renewal waits for, leases of other aliases are renewed in time."""
    with redis_server() as stuck:
        losses: list[LockLost] = []
        far = Lock(NAME, ttl=12, using=add_alias(stuck.url))
        near = Lock(NAME, ttl=3, on_lost=losses.append)
        far.acquire()
        with stopped(stuck):
            near.acquire()
            renew_all("other")
            ends = monotonic() + near.remaining()
            eventually(lambda: monotonic() + near.remaining() > ends + 0.1)
            eventually(lambda: "event=renewal-failed alias=other" in caplog.text)
            assert losses == []
            near.release()


@pytest.fixture
def slow_renewal(network: Proxy, renew_all: Callable[..., None]) -> Iterator[None]:
    """A renewal of another lock of the same alias that stays unanswered."""
    slow = Lock("slow", ttl=LONG, using="other")
    slow.acquire()
    held = network.hold_request("keep")
    renew_all("other")
    assert held.caught.wait(GENEROUS)
    yield
    held.let_go()
    slow.release()


@pytest.mark.usefixtures("slow_renewal")
def test_the_end_of_a_lease_is_reported_while_a_renewal_is_unanswered(
    eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    losses: list[LockLost] = []
    Lock(NAME, ttl=0.5, auto_renew=False, on_lost=losses.append, using="other").acquire()
    eventually(lambda: losses)
    assert "event=renewal-failed" not in caplog.text  # that of the other one is still waited for


@pytest.mark.usefixtures("slow_renewal")
def test_a_lock_acquired_while_a_renewal_is_unanswered_is_renewed_in_time(
    eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock with a short TTL does not wait for one with a long TTL."""
    losses: list[LockLost] = []
    quick = Lock(NAME, ttl=3, on_lost=losses.append, using="other")
    quick.acquire()
    ends = monotonic() + quick.remaining()
    eventually(lambda: monotonic() + quick.remaining() > ends + 0.1)
    assert "event=renewal-failed" not in caplog.text
    assert losses == []


@pytest.mark.complete
@pytest.mark.parametrize("ttl", [LONG, 3.0])
def test_a_renewal_waits_for_an_answer_no_longer_than_a_sixth_of_the_ttl(
    ttl: float, network: Proxy, eventually: Eventually, caplog: pytest.LogCaptureFixture, renew_all: Callable[..., None]
) -> None:
    """Nor longer than the timeout of the alias. Then it is retried, so that several tries fit into the lease."""
    lock = Lock(NAME, ttl=ttl, using="other")
    lock.acquire()
    held = network.hold_request("keep")
    began = monotonic()
    renew_all("other")
    eventually(lambda: "event=renewal-failed" in caplog.text)
    assert monotonic() - began < min(5.0, ttl / 6) + 1.5
    assert not lock.lost
    held.let_go()


def test_a_restart_of_redis_is_noticed_at_once(own: RedisServer, eventually: Eventually) -> None:
    """After any reconnect everything is renewed."""
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=LONG, on_lost=losses.append)
    lock.acquire()
    eventually(lambda: listener().ready)  # it is held for long, so its process listens
    own.stop()
    own.start()
    eventually(lambda: losses)
    assert lock.lost
    assert "gone from Redis" in losses[0].reason


@pytest.mark.parametrize("name", [NAME, MEMBER], ids=["lock", "member"])
def test_raising_a_fence_changes_neither_holder_nor_queue(
    name: str, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """Even twice, as when the first answer was lost. Only renewals that name an older fence are refused."""
    mine, others = ghost(), ghost(alive=True)
    request, ids = mine.request("h" * 22, name=name), ["a" * 22, "b" * 22]
    granted = mine.acquire(request, inside.NOT_AT_ALL).number
    for id, age in zip(ids, (2, 1), strict=True):
        others.queue(id, name=name, age=age)
    queue = f"{PREFIX}queue:{name}"
    before = listed(client, queue)
    met = granted + 1_000_000_000
    mine.know_fence(met)  # by a database

    raised = [mine.renew(request, "raise").fence for _ in range(2)]
    assert met < raised[0] < raised[1]
    renewals = [mine.renew(request, fence=fence).state for fence in (granted, *raised)]
    assert renewals == [inside.LOST, inside.LOST, inside.HELD]
    again = mine.acquire(request, inside.NOT_AT_ALL)
    assert (again.state, again.number) == (inside.ALREADY, raised[1])
    assert [id for id, _ in before] == ids
    assert listed(client, queue) == before
    mine.release(request)
    assert others.hear()[:2] == ["g", ids[0]]
