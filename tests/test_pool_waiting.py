"""Waiting for a member of a pool: who is woken, by what, in which order; and what death, silence and losses cost.

No look comes by the clock, where a test does not say otherwise: who is served was told.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from time import monotonic
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_redislock import FairLock, Lock, LockNotAcquired, LockPool, LockUnavailable, force_release, scripts
from django_redislock.connection import get_backend
from django_redislock.listener import get_listener
from django_redislock.names import make_keys, pool_name
from django_redislock.pool import Member
from redisserver import RedisServer

from .actors import GENEROUS, Ghost, Other, server_time
from .pools import POOL, PREFIX, audit, leftovers, lock_of
from .pools import fair as fair
from .processes import Worker
from .proxy import Proxy, proxy
from .test_cancellation import Interrupted, auntil_done_or, parked
from .test_cancellation import gates as gates
from .ways import caches

AEventually = Callable[..., Awaitable[Any]]
Eventually = Callable[..., Any]
Start = Callable[..., Worker]
Settings = Any  # its type has another name in each pytest-django
Wait = Callable[..., Future[Member]]

ANY = pool_name(POOL)
LINE = f"{PREFIX}queue:{ANY}"
FREE = f"{PREFIX}free:{ANY}"
TTL = 600
TOLD = ["1" * 22, "2" * 22, "3" * 22]

# A process with threads that wait for a member each, keep it until told and give it back.
WAITS = """
from django_redislock import listener
listener.LOOK_EVERY = look_every
pool = LockPool(name)

def wait(number):
    with pool.acquire(ttl=ttl, fair=fair) as member:
        say("got", number, member.key)
        if keeps:
            threading.Event().wait()
    say("gave", number)

for number in range(count):
    threading.Thread(target=wait, args=(number,), daemon=True).start()
say("ready")
threading.Event().wait()
"""


@pytest.fixture(autouse=True)
def _no_look_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_redislock.listener.LOOK_EVERY", 1000.0)


@pytest.fixture(autouse=True)
def _listening(settings: Settings, eventually: Eventually) -> None:
    """Whoever queues does so at once; and no test meets what another one has left over."""
    settings.CACHES = {**settings.CACHES}
    listener = get_listener(get_backend())
    listener.start()
    eventually(lambda: listener.ready)


@pytest.fixture
def pool() -> LockPool:
    made = LockPool(POOL)
    made.extend(["alice", "bob"])
    return made


@pytest.fixture
def held(pool: LockPool, other: Callable[[], Other]) -> Callable[[str], None]:
    """Both members are held; called with one's key, it gives that back. Somebody else's thread holds them."""
    thread = other()
    members = {member.key: member for member in (thread(lambda: pool.acquire(ttl=TTL)) for _ in range(2))}
    return lambda key: thread(members[key].release)


@pytest.fixture
def wait(client: redis.Redis, eventually: Eventually, other: Callable[[], Other]) -> Wait:
    """A thread that wants a member, and stands in the queue. It goes on holding it."""

    def wait(*, pool: LockPool | None = None, **options: Any) -> Future[Member]:
        before = client.zcard(LINE)
        thread = other()
        wanted = pool or LockPool(POOL)
        future = thread.start(lambda: wanted.acquire(**{"ttl": TTL, **options}))
        eventually(lambda: client.zcard(LINE) > before)
        return future

    return wait


def got(future: Future[Member]) -> str:
    return future.result(GENEROUS).key


def expired(client: redis.Redis, key: str) -> None:
    """The lease of a member ends now, and nobody is told."""
    assert client.delete(f"{PREFIX}lock:{lock_of(key)}")
    client.zadd(f"{PREFIX}busy:{ANY}", {key: server_time(client) - 1}, xx=True)


# -- who is woken ----------------------------------------------------------------------------------------------------


def test_a_release_serves_who_waits(held: Callable[[str], None], wait: Wait, fair: bool, client: redis.Redis) -> None:
    waiter = wait(fair=fair)
    held("bob")
    assert got(waiter) == "bob"
    assert audit(client)["locked"] == {"alice", "bob"}


def test_new_members_serve_all_who_wait(wait: Wait, fair: bool, client: redis.Redis) -> None:
    waiters = [wait(fair=fair) for _ in range(5)]
    LockPool(POOL).extend(f"key-{number}" for number in range(7))
    assert {got(waiter) for waiter in waiters} == {f"key-{number}" for number in range(5)}
    assert audit(client)["free"] == {"key-5", "key-6"}
    assert client.zcard(LINE) == 0


def test_one_call_serves_no_more_than_a_hundred_so_there_may_be_several(
    ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    there = ghost()
    for number in range(250):
        there.queue(f"token-{number:03}-{'x' * 20}", mode="F", name=ANY)
    assert LockPool(POOL).extend(f"key-{number}" for number in range(300)) == 300
    assert client.zcard(LINE) == 0
    assert len(audit(client)["locked"]) == 250


def test_the_end_of_a_lease_serves_who_waits(pool: LockPool, start: Start, wait: Wait, eventually: Eventually) -> None:
    """The holder is killed: nobody tells of it, the waiter looks when its lease ends."""
    worker = start(WAITS, name=POOL, count=2, ttl=1, fair=False, keeps=True, look_every=1000.0)
    worker.expect("got")
    worker.expect("got")
    waiters = [wait(), wait()]
    worker.kill()
    began = monotonic()
    assert {got(waiter) for waiter in waiters} == {"alice", "bob"}
    assert monotonic() - began < 5


def test_a_release_by_force_serves_who_waits(held: Callable[[str], None], wait: Wait, fair: bool) -> None:
    waiter = wait(fair=fair)
    assert force_release(lock_of("bob"))
    assert got(waiter) == "bob"


def test_the_command_clear_serves_who_waits(held: Callable[[str], None], wait: Wait, fair: bool) -> None:
    waiters = [wait(fair=fair), wait(fair=fair)]
    call_command("redislocks", "clear", "--match", "pool:accounts:*", "--noinput")
    assert {got(waiter) for waiter in waiters} == {"alice", "bob"}


def test_a_member_that_leaves_serves_nobody(held: Callable[[str], None], pool: LockPool, wait: Wait) -> None:
    waiter = wait()
    pool.shrink(["bob"])
    held("bob")
    assert not waiter.done()
    held("alice")
    assert got(waiter) == "alice"
    assert pool.keys() == ["alice"]


def test_a_member_that_was_locked_by_its_own_name_serves_who_waits(pool: LockPool, wait: Wait, fair: bool) -> None:
    lock = Lock(lock_of("alice"), ttl=TTL)
    assert lock.acquire()
    with pool.acquire(ttl=TTL) as member:
        assert member.key == "bob"
        waiter = wait(fair=fair)
        lock.release()
        assert got(waiter) == "alice"


def test_who_waits_for_one_member_comes_before_those_who_wait_for_any(
    held: Callable[[str], None], wait: Wait, other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    anyone = wait(fair=True)
    thread = other()
    lock = FairLock(lock_of("alice"), ttl=TTL)
    future = thread.start(lock.acquire)
    eventually(lambda: client.zcard(f"{PREFIX}queue:{lock.name}") == 1)
    held("alice")
    assert future.result(GENEROUS)
    assert not anyone.done()
    thread(lock.release)
    assert got(anyone) == "alice"


async def test_coroutines_are_served(aeventually: AEventually, client: redis.Redis, fair: bool) -> None:
    pool = LockPool(POOL)
    await pool.aextend(["alice", "bob"])
    holding, free_bob = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with await pool.aacquire(ttl=TTL), await pool.aacquire(ttl=TTL) as bob:
            assert bob.key == "bob"
            holding.set()
            await free_bob.wait()

    async def want() -> str:
        async with await pool.aacquire(ttl=TTL, fair=fair) as member:
            return member.key

    holder = asyncio.create_task(hold())
    await holding.wait()
    waiters = [asyncio.create_task(want()) for _ in range(20)]
    await aeventually(lambda: client.zcard(LINE) == 20)
    free_bob.set()
    assert set(await asyncio.wait_for(asyncio.gather(*waiters), GENEROUS)) <= {"alice", "bob"}
    await holder
    assert audit(client)["free"] == {"alice", "bob"}
    assert leftovers(client) == []


# -- in which order --------------------------------------------------------------------------------------------------


def test_fair_is_first_come_first_served_over_all_members(
    held: Callable[[str], None], wait: Wait, other: Callable[[], Other], pool: LockPool
) -> None:
    waiters = [wait(fair=True) for _ in range(6)]
    held("alice")
    held("bob")
    pool.extend(["carol", "dave", "erin", "fred"])
    assert [got(waiter) for waiter in waiters] == ["alice", "bob", "carol", "dave", "erin", "fred"]


def test_nobody_overtakes_who_waits_fairly(
    pool: LockPool, ghost: Callable[..., Ghost], fair: bool, client: redis.Redis
) -> None:
    pool.assign(["alice"])
    there = ghost()
    with pool.acquire(ttl=TTL):
        there.queue("t" * 22, mode="F", name=ANY)
    assert there.hear()[0] == "g"
    with pytest.raises(LockNotAcquired):
        pool.acquire(blocking_timeout=0, fair=fair)


def test_a_newcomer_may_overtake_who_has_just_come_and_does_not_wait_fairly(
    pool: LockPool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    pool.assign(["alice"])
    there = ghost()
    while True:  # until we were faster than 100 ms
        member = pool.acquire(ttl=TTL)
        there.queue("t" * 22, mode="L", name=ANY)
        member.release()
        if there.hear()[0] == "w":
            try:
                member = pool.acquire(blocking_timeout=0)
                break
            except LockNotAcquired:
                pass
        leave(there, "t" * 22)
    assert client.zcard(LINE) == 1
    member.release()
    with pytest.raises(LockNotAcquired):
        pool.acquire(blocking_timeout=0, fair=True)


def leave(there: Ghost, token: str) -> None:
    """Its process leaves the queue, or gives back what it was granted."""
    keys = make_keys(PREFIX, ANY)
    there.backend.execute(scripts.release_command(there.backend, keys, ANY, token, unknown=False))


# -- who leaves ------------------------------------------------------------------------------------------------------


def test_who_gives_up_leaves_nothing_and_the_next_one_is_served(
    held: Callable[[str], None], wait: Wait, fair: bool, client: redis.Redis
) -> None:
    leaves = wait(fair=fair, blocking_timeout=0.3)
    stays = wait(fair=fair)
    with pytest.raises(LockNotAcquired):
        leaves.result(GENEROUS)
    assert client.zcard(LINE) == 1
    held("alice")
    assert got(stays) == "alice"


def test_who_was_told_and_leaves_passes_it_on(
    held: Callable[[str], None], wait: Wait, ghost: Callable[..., Ghost]
) -> None:
    """A withdraw that finds a member free hands it on."""
    there = ghost()
    there.queue("t" * 22, mode="L", name=ANY)
    waiter = wait(fair=True)
    held("alice")
    assert there.hear()[0] in "wg"
    leave(there, "t" * 22)
    assert got(waiter) == "alice"


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("waits", [False, True], ids=["free", "busy"])
async def test_who_is_cancelled_at_any_moment_leaves_nothing(
    waits: bool, fair: bool, client: redis.Redis, aeventually: AEventually
) -> None:
    pool = LockPool(POOL)
    await pool.aextend(["alice"])

    async def want(at: int) -> None:
        member = await Interrupted(pool.aacquire(ttl=TTL, fair=fair), at)
        await member.arelease()

    for at in range(1, 200):
        holder = await pool.aacquire(ttl=TTL) if waits else None
        task = asyncio.create_task(want(at))
        if holder is not None:
            await auntil_done_or(task, parked)
            await holder.arelease()
        await asyncio.wait([task])
        # not by a lease that ends, nor by somebody who looks
        await aeventually(lambda: audit(client)["free"] == {"alice"} and not client.zcard(LINE))
        if not task.cancelled():
            break
    assert at > 5
    assert await task is None  # type: ignore[func-returns-value]
    await aeventually(lambda: leftovers(client) == [])


# -- who has died, or stands still -----------------------------------------------------------------------------------


def test_waiters_that_were_killed_are_passed_over(
    held: Callable[[str], None], start: Start, wait: Wait, fair: bool, client: redis.Redis, eventually: Eventually
) -> None:
    worker = start(WAITS, name=POOL, count=30, ttl=TTL, fair=fair, keeps=True, look_every=1000.0)
    eventually(lambda: client.zcard(LINE) == 30)
    worker.kill()
    channel = next(iter(client.hgetall(f"{PREFIX}waiters:{ANY}").values())).split()[1]
    eventually(lambda: client.pubsub_numsub(channel)[0][1] == 0)
    waiter = wait(fair=True)
    held("alice")
    assert got(waiter) == "alice"
    assert client.zcard(LINE) == 0


def test_a_process_that_stands_still_costs_one_lease_of_a_handoff_in_all(
    held: Callable[[str], None],
    pool: LockPool,
    start: Start,
    wait: Wait,
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_redislock.listener.LOOK_EVERY", 0.2)
    stuck = start(WAITS, name=POOL, count=12, ttl=1.5, fair=True, keeps=False, look_every=0.2)
    eventually(lambda: client.zcard(LINE) == 12)
    stuck.signal(signal.SIGSTOP)
    waiter = wait(fair=True)
    began = monotonic()
    held("alice")
    held("bob")  # both are handed to the one that stands still, for 1.5 s
    assert got(waiter) in ("alice", "bob")
    assert 1 < monotonic() - began < 4
    assert client.zcard(LINE) == 0  # the others of its waiters were dropped
    assert pool.acquire(blocking_timeout=GENEROUS).key
    pool.extend(["carol"])
    stuck.signal(signal.SIGCONT)
    for _ in range(12):  # they come back
        stuck.expect("gave")


def test_a_process_that_never_wakes_keeps_no_member_longer_than_the_lease_of_a_handoff(
    pool: LockPool,
    other: Callable[[], Other],
    start: Start,
    wait: Wait,
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    fair: bool,
) -> None:
    """Each of its waiters is handed a member while the first handoff runs; all of them end by themselves."""
    monkeypatch.setattr("django_redislock.listener.LOOK_EVERY", 0.2)
    pool.extend(["carol", "dave"])
    holder, lease = other(), 2.0
    held = [holder(lambda: pool.acquire(ttl=TTL)) for _ in range(4)]
    stuck = start(WAITS, name=POOL, count=40, ttl=lease, fair=fair, keeps=False, look_every=0.2)
    eventually(lambda: client.zcard(LINE) == 40)
    last = max(client.zscore(LINE, token) or 0.0 for token in waiting(client))
    eventually(lambda: server_time(client) - last > 100_000)  # nobody of them is merely told to come
    stuck.signal(signal.SIGSTOP)
    waiters = [wait(fair=fair) for _ in range(4)]
    freed = {}
    for member in held:
        before = client.zcard(LINE)
        freed[member.key] = monotonic()
        holder(member.release)
        assert client.zcard(LINE) == before - 1
        assert [channel for _, channel in handed(client)] == [handed(client)[0][1]] * len(freed)
    for waiter in waiters:
        assert monotonic() - freed[got(waiter)] < lease + 3  # not one lease for every four of its waiters
    assert set(map(got, waiters)) == set(freed)
    assert client.zcard(LINE) == 0  # the others of its waiters were dropped
    for waiter in waiters:
        force_release(waiter.result().name)
    assert [pool.acquire(blocking_timeout=0, ttl=TTL).key for _ in range(4)] == list(map(got, waiters))


def waiting(client: redis.Redis) -> list[str]:
    """The tokens of those who want any member, in order."""
    line: list[Any] = client.zrange(LINE, 0, -1)
    return [token.decode() for token in line]


def handed(client: redis.Redis) -> list[tuple[str, str]]:
    """The members that were handed over to somebody who was not seen to live since: (token, channel)."""
    locks: list[Any] = client.mget(client.keys(f"{PREFIX}lock:*"))
    values = [value.split() for value in locks]
    return [(token.decode(), channel.decode()) for token, channel, flag, *_ in values if flag == b"h"]


def test_where_nobody_else_waits_what_was_handed_to_a_stuck_process_is_free_when_that_ends(
    held: Callable[[str], None],
    pool: LockPool,
    ghost: Callable[..., Ghost],
    client: redis.Redis,
    eventually: Eventually,
) -> None:
    there = ghost()
    for number in range(4):
        there.queue(f"{number}" * 22, mode="F", ttl=0.5, name=ANY)
    held("alice")
    held("bob")
    assert pool.health_check() == (2, 0)
    eventually(lambda: pool.health_check() == (0, 2))
    assert {pool.acquire(blocking_timeout=GENEROUS, ttl=TTL).key for _ in range(2)} == {"alice", "bob"}
    assert client.zcard(LINE) == 0


@pytest.fixture
def told(pool: LockPool, ghost: Callable[..., Ghost], client: redis.Redis) -> Ghost:
    """A process with three waiters, all of them told no more than to come for two members; it is in no hurry."""
    there = ghost()
    while True:  # until we were faster than 100 ms
        held = [pool.acquire(ttl=TTL) for _ in range(2)]
        for token in TOLD:
            there.queue(token, mode="L", ttl=TTL, name=ANY)
        for member in held:
            member.release()
        if audit(client)["free"] == {"alice", "bob"}:
            return there
        for token in TOLD:
            leave(there, token)


def a_second_goes_by(client: redis.Redis) -> None:
    """For the first of those that were told to come."""
    entry: Any = client.hget(f"{PREFIX}waiters:{ANY}", TOLD[0])
    mode, channel, ttl, till, owner = entry.split(b" ", 4)
    assert 0 < int(till) <= server_time(client) + 1_000_000
    client.hset(f"{PREFIX}waiters:{ANY}", TOLD[0], b" ".join([mode, channel, ttl, b"1", owner]))


@pytest.mark.usefixtures("told")
def test_who_was_told_to_come_and_does_not_is_suspect_with_all_of_its_process(
    client: redis.Redis, pool: LockPool
) -> None:
    """Several members lie free behind one that was told: they are not handed to those that do not come."""
    a_second_goes_by(client)
    assert [pool.acquire(blocking_timeout=0, ttl=TTL, fair=True).key for _ in range(2)] == ["alice", "bob"]
    assert client.zcard(LINE) == 0


@pytest.mark.usefixtures("told")
def test_who_was_told_and_does_not_come_keeps_no_member_when_redis_is_out_of_memory(
    client: redis.Redis, pool: LockPool
) -> None:
    """R2: the first write of a script is one that Redis allows at its limit of memory."""
    a_second_goes_by(client)
    client.config_set("maxmemory", 1)
    try:
        assert pool.acquire(blocking_timeout=0, ttl=TTL, fair=True).key == "alice"
    finally:
        client.config_set("maxmemory", 0)


def test_who_was_told_to_come_and_comes_late_gets_it(told: Ghost, client: redis.Redis) -> None:
    a_second_goes_by(client)
    assert told.queue(TOLD[0], mode="L", ttl=TTL, name=ANY).state == scripts.GRANTED


def test_a_look_of_its_own_process_suspects_nobody(told: Ghost, client: redis.Redis) -> None:
    a_second_goes_by(client)
    assert told.queue(TOLD[1], mode="F", ttl=TTL, name=ANY).state in (scripts.BUSY, scripts.ALREADY)
    assert set(waiting(client)) | {token for token, _ in handed(client)} == set(TOLD)


def test_who_was_dropped_hears_of_it(told: Ghost, client: redis.Redis, pool: LockPool) -> None:
    a_second_goes_by(client)
    pool.acquire(blocking_timeout=0, ttl=TTL, fair=True)
    client.publish(told.backend.channel, "the end")
    assert ["d", TOLD[0], ANY] in iter(told.hear, ["the", "end"])


def test_all_waiters_of_a_process_come_back_when_it_hears_that_one_was_dropped(
    wait: Wait, client: redis.Redis, eventually: Eventually
) -> None:
    waiters = [wait(fair=True) for _ in range(3)]
    first, *_ = line = waiting(client)
    client.delete(LINE, f"{PREFIX}waiters:{ANY}")
    client.publish(get_backend().channel, f"d {first} {ANY}")
    eventually(lambda: waiting(client) == line, within=4)  # before any look by the clock
    LockPool(POOL).extend(["carol", "dave", "erin"])
    assert [got(waiter) for waiter in waiters] == ["carol", "dave", "erin"]


def test_those_who_stand_between_waiters_of_a_stuck_process_lose_one_lease_too(
    held: Callable[[str], None], wait: Wait, ghost: Callable[..., Ghost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redislock.listener.LOOK_EVERY", 0.2)
    there = ghost()  # hears, and does nothing
    waiters = []
    for number in range(8):
        there.queue(f"{number}" * 22, mode="F", ttl=1, name=ANY)
        waiters.append(wait(fair=True))
    began = monotonic()
    held("alice")
    held("bob")
    for waiter in waiters:
        force_release(waiter.result(GENEROUS).name)
    assert monotonic() - began < 3  # not one second for every two of its waiters


def test_who_was_handed_a_member_and_hears_nothing_finds_it_as_long_as_its_lease_runs(
    held: Callable[[str], None], ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    there = ghost()
    there.queue("1" * 22, mode="F", ttl=TTL, name=ANY)
    held("alice")
    lock = f"{PREFIX}lock:{lock_of('alice')}"
    assert client.pttl(f"{PREFIX}took:{'1' * 22}") > client.pttl(lock) > 60_000
    found = there.queue("1" * 22, mode="F", ttl=TTL, name=ANY)
    assert (found.state, found.member) == (scripts.ALREADY, "alice")


def test_a_lease_that_has_not_quite_ended_is_looked_for_when_it_has(pool: LockPool, client: redis.Redis) -> None:
    """Redis ends leases by the millisecond: a look by the microsecond may come too early."""
    member = pool.acquire(ttl=TTL)
    client.pexpire(f"{PREFIX}lock:{member.name}", 500)
    client.zadd(f"{PREFIX}busy:{ANY}", {member.key: 1})
    assert len(pool) == 2
    due = client.zscore(f"{PREFIX}busy:{ANY}", member.key) or 0.0
    assert 1 < due <= server_time(client) + 502_000


def test_a_member_that_never_ends_is_looked_for_no_more_often_than_any_lock(
    pool: LockPool, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """Somebody else has written it."""
    pool.assign(["alice"])
    client.set(f"{PREFIX}lock:{lock_of('alice')}", "foreign")
    there = ghost()
    for _ in range(2):
        taken = there.queue("1" * 22, mode="F", ttl=TTL, name=ANY)
        assert taken.member == ""
        assert taken.left > 4000
        client.zadd(f"{PREFIX}busy:{ANY}", {"alice": 1})


def test_who_lives_is_suspected_no_more(
    pool: LockPool, wait: Wait, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """A handoff has ended without a sign of life from its process, which has taken the member again since."""
    pool.assign(["alice"])
    there = ghost()
    with pool.acquire(ttl=TTL):
        there.queue("1" * 22, mode="F", ttl=TTL, name=ANY)
    assert there.hear()[:2] == ["g", "1" * 22]
    expired(client, "alice")
    assert there.queue("2" * 22, mode="F", ttl=TTL, name=ANY).state == scripts.GRANTED
    waiter = wait(fair=True)
    there.queue("3" * 22, mode="F", ttl=TTL, name=ANY)
    leave(there, "2" * 22)
    force_release(waiter.result(GENEROUS).name)
    assert there.hear()[:2] == ["g", "3" * 22]


# -- what gets lost --------------------------------------------------------------------------------------------------


@pytest.fixture
def network(server: RedisServer, settings: Settings) -> Iterator[Proxy]:
    """The default alias reaches the server through a network that loses and delays."""
    with proxy(server.port) as running:
        cache = settings.CACHES["default"]
        settings.CACHES = {**settings.CACHES, "default": {**cache, "LOCATION": running.url}}
        yield running


def test_a_check_out_whose_answer_was_lost_gets_the_same_member(
    pool: LockPool, network: Proxy, client: redis.Redis, fair: bool
) -> None:
    lost = network.lose_answer(scripts._CHECKOUT.sha)
    with pool.acquire(fair=fair) as member:
        assert lost.over.is_set()
        assert audit(client)["locked"] == {member.key} == {"alice"}
    assert audit(client)["locked"] == set()
    assert leftovers(client) == []


def test_a_check_out_that_arrives_when_its_sender_has_given_up_takes_nothing(
    pool: LockPool, network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    late = [network.hold_request(scripts._CHECKOUT.sha) for _ in range(30)]
    with pytest.raises(LockUnavailable):
        pool.acquire()
    eventually(lambda: client.keys(f"{PREFIX}gone:*"))
    for trouble in late:
        trouble.let_go()
    eventually(lambda: all(trouble.over.is_set() for trouble in late if trouble.caught.is_set()))
    assert audit(client)["locked"] == set()
    assert leftovers(client) == []


def test_a_member_that_was_taken_unheard_is_given_back(
    pool: LockPool, network: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    network.lose_answer(scripts._CHECKOUT.sha, times=1000)
    with pytest.raises(LockUnavailable):
        pool.acquire()
    eventually(lambda: audit(client)["locked"] == set())
    eventually(lambda: leftovers(client) == [])


def test_a_release_whose_answer_was_lost_has_succeeded(pool: LockPool, network: Proxy, client: redis.Redis) -> None:
    member = pool.acquire()
    lost = network.lose_answer(scripts._RELEASE.sha)
    member.release()
    assert lost.over.is_set()
    assert audit(client)["free"] == {"alice", "bob"}


def test_members_whose_answer_was_lost_are_put_in_once(network: Proxy, client: redis.Redis) -> None:
    lost = network.lose_answer(scripts._MEMBERS.sha)
    LockPool(POOL).extend(["alice", "bob"])
    assert lost.over.is_set()
    assert audit(client)["free"] == {"alice", "bob"}
    assert not client.keys(f"{PREFIX}staged:*")


def test_after_a_flush_those_who_wait_are_served_from_the_new_set(
    held: Callable[[str], None], wait: Wait, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, fair: bool
) -> None:
    monkeypatch.setattr("django_redislock.listener.LOOK_EVERY", 0.1)
    waiter = wait(fair=fair)
    client.flushall()
    LockPool(POOL).extend(["zoe"])
    assert got(waiter) == "zoe"


def test_where_messages_do_not_come_those_who_wait_look(
    client: redis.Redis, server: RedisServer, settings: Settings, wait: Wait, fair: bool, eventually: Eventually
) -> None:
    client.acl_setuser(
        "mute", enabled=True, nopass=True, reset_channels=True, keys=["*"], commands=["+@all", "-@pubsub", "+publish"]
    )
    cache = {**settings.CACHES["default"], "LOCATION": f"redis://mute:@127.0.0.1:{server.port}/0"}
    with caches(cache):
        pool = LockPool(POOL)
        pool.extend(["alice", "bob"])
        holds = [pool.acquire(ttl=TTL) for _ in range(2)]
        waiters = [wait(fair=fair) for _ in range(2)]
        assert get_listener(get_backend()).polled
        for member in holds:
            member.release()
        assert {got(waiter) for waiter in waiters} == {"alice", "bob"}
