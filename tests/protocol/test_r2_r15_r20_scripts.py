"""What scripts write first (R2), how short they are where thousands wait (R15), and suspensions (R20)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockLost, LockPool, LockStatus, LockUnavailable, force_release, list_locks
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost, until
from tests.helpers.state import LOCK, NAME, QUEUE, TOKEN, WAITERS, holder, leftovers
from tests.inside import own_process

from .conftest import LONG, MEMBER, POOL, Join, lapse, listed, subscribed, told

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
    return ghost.acquire(ghost.request(id, name=name, ttl=LONG, **more), wait).state


def renew(ghost: Ghost, id: str, name: str, how: str = "keep") -> Any:
    return ghost.renew(ghost.request(id, name=name, ttl=LONG), how, LONG)


AT_THE_END: dict[str, Callable[[Ghost, str], object]] = {  # calls that find the lock free while somebody waits
    "acquire": lambda ghost, name: take(ghost, STRANGER, name),
    "withdraw": lambda ghost, name: ghost.release(ghost.request(STRANGER, name=name)),
    "renew": lambda ghost, name: renew(ghost, HOLDER, name),
}
CALLS: dict[str, Callable[[Ghost, str], object]] = {
    **AT_THE_END,
    "release": lambda ghost, name: ghost.release(ghost.request(HOLDER, name=name)),
    "force": lambda ghost, name: ghost.force(name),
    "adopt": lambda ghost, name: take(ghost, STRANGER, name, token=TOKEN),
    "members": lambda ghost, name: LockPool("accounts").extend(["bob"]),
}
OF_POOLS = [(POOL, "acquire"), (POOL, "withdraw"), (POOL, "members")]


@pytest.mark.parametrize(
    ("name", "by"), [*((name, by) for name in (NAME, MEMBER) for by in CALLS if by != "members"), *OF_POOLS]
)
def test_r2_a_script_that_may_not_write_publishes_nothing(
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
    assert (["a", HOLDER] if by == "adopt" else ["g", WAITER]) in told(first) + told(second)


@pytest.mark.parametrize("may_arrive", [False, True])
@pytest.mark.parametrize("name", [NAME, MEMBER], ids=["key", "member"])
def test_r2_a_holder_can_renew_release_and_hand_over_when_redis_is_out_of_memory(
    name: str, may_arrive: bool, ghosts: tuple[redis.Redis, Ghost, Ghost]
) -> None:
    """The first write of a script is one that Redis allows at its limit of memory."""
    root, first, second = ghosts
    assert take(first, HOLDER, name) == inside.GRANTED
    second.queue(WAITER, name=name)
    root.config_set("maxmemory", 1)
    with pytest.raises(LockUnavailable, match="maxmemory"):
        Lock("other").acquire()
    assert {renew(first, HOLDER, name, how).state for how in ("keep", "confirm", "set")} == {inside.HELD}
    first.release(first.request(HOLDER, name=name), may_arrive=may_arrive)
    assert told(second) == [["g", WAITER]]
    for how in ("confirm", "keep", "set", "detach"):
        renewed = renew(second, WAITER, name, how)
        assert renewed.state == inside.HELD
        assert renewed.ends - monotonic() > LONG / 2
    assert first.force(name)
    assert told(second) == [["f", WAITER]]
    root.config_set("maxmemory", 0)


def test_r2_a_release_frees_the_lock_though_somebody_else_has_written_its_queue(
    ghosts: tuple[redis.Redis, Ghost, Ghost],
) -> None:
    root, first, second = ghosts
    assert take(first, HOLDER, NAME) == inside.GRANTED
    second.queue(WAITER, name=NAME)
    root.delete(QUEUE)
    root.rpush(QUEUE, "foreign")
    with pytest.raises(LockUnavailable, match="which is a list"):
        first.release(first.request(HOLDER, name=NAME))
    assert not root.exists(LOCK)


@pytest.mark.usefixtures("look_soon")
@pytest.mark.parametrize("rules", [("resetchannels",), ("allchannels", "-pubsub")], ids=["to tell", "to ask"])
def test_r2_a_holder_without_the_right_to_tell_or_to_ask_can_still_hand_over(
    rules: tuple[str, ...], allow_only: Callable[..., str], join: Join, client: redis.Redis
) -> None:
    """A waiter that cannot be told keeps its place and finds the lock; an error is not a 0, and nobody is dropped."""
    lock = Lock(NAME, ttl=LONG, using=allow_only(*rules))
    lock.acquire()
    waiting = join(Lock(NAME))
    ((id, _),) = listed(client)
    lock.release()
    assert not Lock(NAME).acquire(blocking=False), "somebody overtook the waiter"
    assert holder(client) == id
    assert waiting.result()


MANY, FEW = 20_000, 5_000
MOST = 3_000  # commands of one script: times depend on the machine. For pools, see pools/test_members.py

ENTRIES = {
    "unknown": None,
    "of many processes": "dead:channel:{} 30000 0 - ghost",
    "who poll": "- 30000 0 - ghost",
    "malformed": "{}",
}


def fill(client: redis.Redis, entry: str | None, count: int = MANY) -> None:
    """Queue so many dead waiters."""
    ids = {f"forged-id-{number:012}": number + 1 for number in range(count)}
    client.zadd(QUEUE, ids)
    if entry is not None:
        client.hset(WAITERS, mapping={id: entry.format(number) for id, number in ids.items()})


@contextmanager
def short_scripts(client: redis.Redis) -> Iterator[list[int]]:
    """At the end, the list has the number of scripts that were called in the block; on average, all were short."""
    number: list[int] = []
    client.config_resetstat()
    yield number
    stats: dict[str, Any] = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
    number.append(calls.pop("evalsha", 0) + calls.pop("eval", 0))
    assert sum(calls.values()) <= MOST * number[0]


@pytest.mark.parametrize(
    ("how", "kind"), [("acquire", kind) for kind in ENTRIES] + [(how, "unknown") for how in ("release", "force")]
)
def test_r15_a_queue_of_dead_waiters_is_dropped_in_many_short_calls(how: str, kind: str, client: redis.Redis) -> None:
    lock = Lock(NAME, ttl=LONG)
    if how != "acquire":
        lock.acquire()
    fill(client, ENTRIES[kind], FEW)
    with short_scripts(client) as scripts:
        if how == "acquire":
            assert lock.acquire(blocking_timeout=GENEROUS)
        elif how == "release":
            lock.release()
        else:
            assert force_release(NAME)
    assert scripts[0] >= FEW / 600
    assert not client.exists(QUEUE, WAITERS)


def test_r15_the_dead_keep_no_queue_full_though_a_hundred_are_looked_at_each_time(
    client: redis.Redis, crowd: Crowd
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=LONG)
    me(lock, "acquire")
    living, dead = Ghost(client), Ghost(client, alive=False)
    for number in range(120):
        living.queue(f"living-living-living-{number:03}", name=NAME)
    for number in range(120):
        dead.queue(f"dead-dead-dead-dead-{number:03}", name=NAME)
    last, late = crowd(), Lock(NAME, max_waiters=130)
    until(lambda: last(late, "acquire", blocking_timeout=0.01) or 120 <= client.zcard(QUEUE) < 130)
    living.close()
    dead.close()


def test_r15_info_reads_a_hundred_of_many_thousand_waiters_and_a_look_none(client: redis.Redis, crowd: Crowd) -> None:
    me, lock = crowd(), Lock(NAME, ttl=LONG)
    me(lock, "acquire")
    fill(client, ENTRIES["of many processes"])
    with short_scripts(client) as scripts:
        info = me(lock, "info")
        assert (info.waiters, len(info.queue)) == (MANY, 100)
        assert own_process().info(NAME, 0)[6:] == [MANY, [], [], []]  # for those who do not ask for them
        assert list_locks()[0].waiters == MANY
        assert int(client.info("stats")["total_net_output_bytes"]) < 100_000
    with short_scripts(client) as scripts:
        assert not crowd()(Lock(NAME), "acquire", blocking_timeout=0.2)
    assert scripts[0] < 10
    assert client.zcard(QUEUE) == MANY


named = pytest.mark.parametrize("name", [NAME, MEMBER], ids=["lock", "member"])


@named
def test_r20_nobody_gets_a_suspended_lock_until_it_is_resumed(crowd: Crowd, client: redis.Redis, name: str) -> None:
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


@named
@pytest.mark.parametrize("end", ["release", "bearer", "lapse", "renewal", "resumed before"])
def test_r20_a_holder_keeps_the_lock_and_then_the_suspension_begins(
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


@named
@pytest.mark.usefixtures("no_look_by_the_clock")
@pytest.mark.parametrize("end", ["resumed", "cut short", "over"])
def test_r20_waiters_keep_their_places_and_are_served_when_it_ends(
    end: str, join: Join, crowd: Crowd, client: redis.Redis, name: str
) -> None:
    """ "over": they knew only the end of the holder's lease, which is long after that."""
    subscribed()
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


@named
@pytest.mark.parametrize("held", [False, True])
def test_r20_a_force_release_ends_it(held: bool, crowd: Crowd, client: redis.Redis, name: str) -> None:
    me, you = crowd(), crowd()
    if held:
        me(Lock(name), "acquire")
    me(Lock(name), "suspend", LONG)
    assert you(django_redislock, "force_release", name)
    assert you(django_redislock, "force_release", name) is None
    assert leftovers(client) == []
