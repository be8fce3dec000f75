"""How long a lease is (R10), who finds its end (R11), what renews it (R12), and how others adopt or release a lock and
its former holder learns of that (R13, R17)."""

from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, LockPool, force_release, get_lock
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time, until
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, TOKEN, holder, value
from tests.helpers.ways import stopped
from tests.inside import Ears, all_seen

from .conftest import LONG, MEMBER, POOL, Ghosts, Join, lapse, renew_all, subscribed


@pytest.fixture
def patient(own: RedisServer, settings: Any) -> None:
    """The default alias, which leads to a server of its own, never gives up on an answer."""
    default = {**settings.CACHES["default"], "OPTIONS": {"SOCKET_TIMEOUT": LONG}}
    settings.CACHES = {**settings.CACHES, "default": default}


@pytest.mark.parametrize(("ttl", "lease"), [(0.5, 500), (2, 2000), (6, 3000), (30, 10_000)])
@pytest.mark.parametrize("kind", ["key", "line"])
def test_r10_a_handoffs_lease_is_a_third_of_the_ttl_but_at_least_three_seconds_and_at_most_the_ttl(
    kind: str, ttl: float, lease: int, pool: LockPool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    waiter, held = ghost(), Lock(NAME if kind == "key" else MEMBER)
    held.acquire()
    waiter.queue(TOKEN, name=NAME if kind == "key" else POOL, ttl=ttl)
    before = server_time(client)
    held.release()
    word, id, _, granted, told, name = waiter.hear()
    assert (word, id, int(told), name) == ("g", TOKEN, lease, held.name)
    assert before <= int(granted) <= server_time(client)


@pytest.mark.parametrize("auto_renew", [True, False], ids=["renewed", "not renewed"])
@pytest.mark.parametrize("name", [NAME, MEMBER], ids=["lock", "pool"])
def test_r10_a_handed_over_lock_that_is_kept_gets_its_full_ttl(
    name: str, auto_renew: bool, pool: LockPool, join: Join
) -> None:
    held = Lock(name)
    held.acquire()
    options: Any = {"ttl": 300, "auto_renew": auto_renew}
    waiting = join(Lock(name, **options)) if name == NAME else join(pool, **options)
    held.release()
    assert waiting.result()
    until(lambda: 200 < (get_lock(name).lease_left or 0) <= 300)  # type: ignore[union-attr]
    until(lambda: 200 < waiting.person.read(waiting.lock.remaining) <= 300)


def test_r10_extend_of_a_handed_over_lock_adds_to_the_full_ttl(join: Join, client: Any, monkeypatch: Any) -> None:
    inside.limit(monkeypatch, confirm_after=10.0 * GENEROUS)  # not by the watchdog
    held = Lock(NAME)
    held.acquire()
    waiting = join(Lock(NAME, ttl=60, auto_renew=False))
    held.release()
    assert waiting.result()
    assert int(client.pttl(LOCK)) <= 20_000
    assert waiting.person(waiting.lock, "extend", 50)
    assert 80_000 < int(client.pttl(LOCK)) <= 110_000


@pytest.mark.usefixtures("no_look_by_the_clock")
@pytest.mark.parametrize("call", ["release", "extend", "detach", "a withdrawal"])
@pytest.mark.parametrize("name", [NAME, MEMBER, POOL])
def test_r11_whoever_finds_the_lease_ended_passes_the_lock_on(
    name: str, call: str, pool: LockPool, me: Any, join: Join, client: redis.Redis
) -> None:
    subscribed()
    held, wanted = Lock(MEMBER if name == POOL else name, ttl=LONG), pool if name == POOL else Lock(name)
    me(held, "acquire")
    stays = join(wanted, blocking_timeout=GENEROUS)
    if call == "a withdrawal":
        leaves = join(wanted if name == POOL else Lock(name), blocking_timeout=0.3)
    lapse(client, name)
    if call == "a withdrawal":
        assert leaves.future.exception(GENEROUS) or not leaves.result()
    else:
        with pytest.raises(LockLost):
            me(held, call, *[1] * (call == "extend"))
    assert stays.result()


@pytest.mark.parametrize("mark", ["c", "h", "a"], ids=["held", "handed over", "adopted"])
def test_r11_whoever_comes_in_the_last_millisecond_of_a_lease_still_has_it(mark: str, client: redis.Redis) -> None:
    here = inside.own_process()
    request = here.request("i" * 22, name=NAME, ttl=0.001)
    client.set(LOCK, f"{request.id} - {mark} 1 1 - me", px=60_000)
    inside.change_scripts(["lease-left"])  # as if every lease had less than a millisecond
    try:
        if mark == "a":
            assert here.release(request, how=inside.WITHDRAWAL).state == inside.DETACHED
        else:
            assert here.renew(request, "confirm", 0.001).state == inside.HELD
    finally:
        inside.change_scripts()


def is_renewed(lock: Lock) -> None:
    ends = monotonic() + lock.remaining()
    until(lambda: monotonic() + lock.remaining() > ends + 0.02)


def test_r12_the_end_of_a_lease_is_reported_while_redis_hangs_and_a_restart_at_once(
    own: RedisServer, patient: None
) -> None:
    """After any reconnect everything is renewed."""
    losses: list[LockLost] = []
    short, long = (Lock(f"{NAME}:{ttl}", ttl=ttl, on_lost=losses.append) for ttl in (1, LONG))
    long.acquire()
    until(lambda: Ears().ready)  # it is held for long, so its process listens
    short.acquire()
    with stopped(own):
        until(lambda: losses)
        assert short.lost
    own.stop()
    own.start()
    until(lambda: len(losses) == 2)
    assert long.lost
    assert "gone from Redis" in losses[1].reason


def test_r12_a_renewal_that_is_not_answered_delays_no_other_lock_of_its_alias(network: Proxy, add_alias: Any) -> None:
    """One with a short TTL does not wait for one with a long TTL."""
    losses: list[LockLost] = []
    add_alias(network.url, SOCKET_TIMEOUT=LONG)
    with Lock("slow", ttl=LONG, using="other"):
        held = network.hold_request("keep")
        renew_all("other")
        assert held.caught.wait(GENEROUS)
        Lock(NAME, ttl=1, auto_renew=False, on_lost=losses.append, using="other").acquire()
        quick = Lock("quick", ttl=6, on_lost=losses.append, using="other")
        quick.acquire()
        is_renewed(quick)
        until(lambda: losses)
        assert [error.name for error in losses] == [NAME]
        held.let_go()


def test_c3_a_holder_whose_attempt_was_granted_the_lock_again_is_told(client: redis.Redis) -> None:
    """By a new master that has never heard of it, and has the attempt in its queue: a renewal names its fence."""
    lock, here = Lock(NAME), inside.own_process()
    lock.acquire()
    client.delete(LOCK)
    mine = here.request(lock.token or "", name=NAME)
    assert here.acquire(mine, inside.NOT_AT_ALL).state == inside.GRANTED
    with pytest.raises(LockLost):
        lock.extend(10)
    assert lock.lost


ADOPTER = "adopter-adopter-adopte"


@pytest.fixture
def hold(crowd: Crowd) -> Callable[..., tuple[Any, Lock, list[LockLost]]]:
    """Somebody holds the lock with TOKEN. Returns who, the lock, and the losses of which it is told."""

    def hold(using: str = "default") -> tuple[Any, Lock, list[LockLost]]:
        losses: list[LockLost] = []
        me, lock = crowd(), Lock(NAME, token=TOKEN, ttl=30, on_lost=losses.append, using=using)
        subscribed(using)
        assert me(lock, "acquire")
        until(all_seen)
        return me, lock, losses

    return hold


def adopt(ghost: Ghost) -> inside.AcquireReply:
    return ghost.acquire(ghost.request(ADOPTER, name=NAME, token=TOKEN), inside.NOT_AT_ALL)


@pytest.mark.parametrize("then", ["it is told", "it releases", "the adopter dies"])
def test_r13_adoption_from_a_process_that_seems_dead_draws_a_new_fence_and_ends_what_that_has(
    then: str, hold: Any, ghost: Ghosts, network: Proxy, client: redis.Redis
) -> None:
    """If it is alive after all, its writes are outdated from now on. Renewals and releases go by the id of the attempt,
    not by the token."""
    me, lock, losses = hold("other")
    network.cut()
    _, channel, _, fence, *_ = value(client)
    until(lambda: client.pubsub_numsub(channel)[0][1] == 0)
    assert adopt(ghost()).state == inside.ALREADY
    assert int(value(client)[3]) > int(fence)
    if then == "the adopter dies":
        client.pexpire(LOCK, 500)
    network.mend()
    if then == "it is told":
        until(lambda: losses)  # at its next renewal, as no message could tell it
        assert [error.reason for error in losses] == [inside.WAS_ADOPTED]
    elif then == "it releases":
        with pytest.raises(LockLost):
            me(lock, "release")
        assert holder(client) == ADOPTER
    else:
        until(lambda: not holder(client))  # nobody renews it


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
    "release elsewhere": (released_elsewhere, inside.WAS_RELEASED),
    "release here": (lambda client: Lock(NAME, token=TOKEN).release(), inside.WAS_RELEASED),
    "adoption": (told_of_an_adoption, inside.WAS_ADOPTED),
    # of these, it learns at its next renewal
    "expiry": (lapse, inside.HAS_VANISHED),
    "flush": (lambda client: client.flushall(), inside.HAS_VANISHED),
    "overwritten": (lambda client: client.set(LOCK, f"{'x' * 22} - c 1 1 - owner", px=60_000), inside.WAS_TAKEN),
}


@pytest.mark.parametrize("how", ENDS)
def test_r17_every_end_of_a_lease_from_outside_is_told_once(how: str, hold: Any, client: Any, heard: list[Any]) -> None:
    """R17: ``lost`` is False only for a live lease that is ours."""
    end, reason = ENDS[how]
    me, lock, losses = hold()
    fence = me.read(lambda: lock.fence)
    end(client)
    if how in ("expiry", "flush", "overwritten"):
        renew_all()
    until(lambda: losses and [facts for which, facts in heard if which == "lost"])
    assert me.read(lambda: lock.lost)
    with pytest.raises(LockLost) as caught:
        me(lock, "release")
    assert caught.value.reason == reason
    assert [error.reason for error in losses] == [reason]
    assert [facts for which, facts in heard if which == "lost"] == [
        {"name": NAME, "template": NAME, "fence": fence, "reason": reason, "expired": False}
    ]
