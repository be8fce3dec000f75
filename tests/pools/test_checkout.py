"""Checking out a member: which one, with which options, and what it says; networks, servers and processes that fail."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import (
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockPool,
    LockUnavailable,
    force_release,
)
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, auntil, until
from tests.helpers.cancelling import Interrupted, add_gates
from tests.helpers.pools import POOL, TTL, Held, Wait, audit, got, in_line, leftovers, lock_of
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.state import count
from tests.helpers.ways import DJANGO, alias, caches
from tests.inside import CHECKOUT, PREFIX, RELEASE_MEMBER, hears, limit, parked

RetryFor = Callable[[float], None]


@pytest.fixture
def network(server: RedisServer, accounts: LockPool, retry_for: RetryFor) -> Iterator[Proxy]:
    """The default alias leads through a network that loses and delays; the server already has the scripts."""
    retry_for(GENEROUS)  # on a busy machine, more than one answer may come too late
    with proxy(server.port) as running, caches(alias(DJANGO, running.url, socket_timeout=0.3)):
        pool = LockPool("another")
        pool.assign(["warm-up"])
        pool.acquire().release()
        yield running


def test_a_free_member_is_taken_with_its_lock(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice"])
    member = me(pool, "acquire", ttl=7)
    assert (member.key, member.name) == ("alice", lock_of("alice"))
    assert me.read(lambda: (member.ttl, member.lost, member.check(), bool(member.fence))) == (7, False, None, True)
    assert me(member, "owned")
    assert me(member, "locked")
    assert 0 < me.read(member.remaining) <= 7
    assert me(member, "extend", 5)
    assert me.read(member.remaining) > 7
    assert me(member, "reacquire")
    assert me.read(member.remaining) <= 7
    me(member, "release")
    assert not me(member, "locked")
    with pytest.raises(LockNotOwned):
        me(member, "release")


def test_a_with_statement_gives_a_member_back_also_when_its_block_raises(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice"])
    for error in (None, ZeroDivisionError()):
        member = me(pool, "acquire")
        assert me(member, "enter") is member
        with pytest.raises(LockError, match="'pool:accounts:alice': this thread or task is in one already"):
            me(member, "enter")
        assert me(member, "owned")
        me(member, "exit", error and type(error), error, None)
        assert me(pool, "health_check") == (0, 1)
        with pytest.raises(LockNotOwned):
            me(member, "enter")
    member = me(pool, "acquire")
    force_release(member.name, using=pool.using)
    with pytest.raises(LockLost):
        me(member, "extend", 1)
    with pool.acquire(), pytest.raises(LockLost):
        me(member, "enter")


def test_the_least_recently_used_member_comes_first_and_new_ones_before_all(me: Any, pool: LockPool) -> None:
    me(pool, "extend", ["alice", "bob", "carol"])
    order = []
    for _ in range(6):
        member = me(pool, "acquire")
        order.append(member.key)
        me(member, "release")
    assert order == ["alice", "bob", "carol"] * 2
    alice, bob = me(pool, "acquire"), me(pool, "acquire")
    me(bob, "release")
    me(pool, "assign", ["alice", "bob", "carol", "zoe"])  # those that stay keep their turns
    me(alice, "release")
    assert [me(pool, "acquire").key for _ in range(4)] == ["zoe", "carol", "bob", "alice"]


@pytest.mark.parametrize(("members", "text"), [(["alice"], "none is free"), ([], "it has no members")])
def test_the_error_says_why_no_member_was_acquired(me: Any, pool: LockPool, members: list[str], text: str) -> None:
    me(pool, "extend", members)
    for _ in members:
        me(pool, "acquire")
    message = "Could not acquire a member of the pool 'accounts' {}: " + text + r"\.$"
    with pytest.raises(LockNotAcquired, match=message.format("at once")) as caught:
        me(pool, "acquire", blocking_timeout=0)
    assert (caught.value.name, caught.value.outcome) == (POOL, "busy")
    with pytest.raises(LockNotAcquired, match=message.format(r"within [\d.]+ s \(\d attempts?\)")) as caught:
        me(pool, "acquire", blocking_timeout=0.05)
    assert caught.value.outcome == "timeout"
    assert caught.value.waited >= 0.05
    assert not members or caught.value.busy_for > 0


def test_where_redis_does_not_say_whether_there_are_members_the_refusal_stands(
    network: Proxy, retry_for: RetryFor
) -> None:
    pool = LockPool("empty")
    assert pool.keys() == []
    retry_for(0.5)
    asked = network.hold_answer("ZCARD", times=1000)
    with pytest.raises(LockNotAcquired, match=r"at once: none is free\.$"):
        pool.acquire(blocking_timeout=0)
    assert asked.caught.is_set()


def test_a_checkout_is_one_round_trip_a_release_too_and_statuses_are_two(accounts: LockPool, client: Any) -> None:
    def asked() -> tuple[int, int]:
        return int(client.info("stats")["total_reads_processed"]), count(client, "evalsha")

    accounts.acquire().release()
    reads, scripts = asked()
    for _ in range(20):
        accounts.acquire().release()
    after = asked()
    assert (after[0] - reads - 2, after[1] - scripts) == (40, 40)  # two were those of INFO
    assert accounts.health_check() == (0, 2)
    assert asked()[0] - after[0] - 2 == 2


def test_options_are_those_of_a_lock(accounts: LockPool, settings: Any) -> None:
    settings.REDISLOCK = {"TTLS": {"pool:accounts:*": 77}, "BLOCKING_TIMEOUT": 0}
    held = [accounts.acquire(), accounts.acquire(ttl=5)]
    assert [member.ttl for member in held] == [77, 5]
    with pytest.raises(LockNotAcquired, match=r"within [\d.]+ s \(3 attempts\)"):
        accounts.acquire(poll=True, backoff=ConstantBackoff(0.02), attempts=3, blocking_timeout=GENEROUS)
    with pytest.raises(LockNotAcquired, match="at once"):
        accounts.acquire()
    with pytest.raises(TypeError, match=r"the pool 'accounts'.* not a task: give a function"):
        accounts.acquire(on_lost="cancel")


def test_a_member_that_was_handed_to_another_thread_or_task_does_not_wait_for_itself(
    me: Any, you: Any, accounts: LockPool
) -> None:
    member = me(accounts, "acquire")
    with pytest.raises(LockNotOwned, match="this thread or task does not hold it"):
        you(member, "enter")
    me(member, "enter")
    me(member, "exit", None, None, None)


@pytest.mark.parametrize("poll", [False, True], ids=["woken", "polls"])
def test_who_waits_gets_a_member_with_the_note_and_the_purpose_that_were_in_the_queue_and_a_long_wait_is_logged(
    me: Any, crowd: Crowd, pool: LockPool, poll: bool, settings: Any, caplog: Any
) -> None:
    settings.REDISLOCK = {"SLOW_WAIT": 0.05}
    me(pool, "extend", ["alice"])
    held, you = me(pool, "acquire", poll=poll), crowd()
    wanted = you.start(pool, "acquire", poll=poll, note="invoice 42\nof Monday", purpose="nightly run")
    (waiter,) = until(lambda: me(pool, "info").queue)
    until(lambda: "event=still-waiting pool=accounts waited=" in caplog.text)
    me(held, "release")
    for known in (waiter, you(wanted.result(GENEROUS), "info")):
        assert known.note == "invoice 42\nof Monday"
        assert "nightly run" in known.owner
    until(lambda: hears(pool.using) is not poll)  # who polls does not subscribe


@pytest.mark.usefixtures("no_look_by_the_clock", "listening")
@pytest.mark.parametrize("busy", [False, True], ids=["free", "busy"])
async def test_a_checkout_cancelled_wherever_it_is_suspended_leaves_no_lock_and_no_place_in_the_queue(
    busy: bool, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_gates(monkeypatch)  # many more suspensions
    pool = LockPool(POOL)
    await pool.aextend(["alice"])

    async def want(at: int) -> None:
        member = await Interrupted(pool.aacquire(ttl=TTL), at)
        await member.arelease()

    for at in range(1, 200):
        holder = await pool.aacquire(ttl=TTL) if busy else None
        task = asyncio.create_task(want(at))
        if holder is not None:
            await auntil(lambda task=task: task.done() or parked())
            await holder.arelease()
        await asyncio.wait([task])
        # not because a lease ends or somebody looks
        await auntil(lambda: audit(client).free == {"alice"} and not in_line(client))
        if not task.cancelled():
            break
    assert at > 2
    assert await task is None  # type: ignore[func-returns-value]
    await auntil(lambda: leftovers(client) == [])


@pytest.mark.parametrize("trouble", ["answers are lost", "requests come late"])
def test_a_checkout_whose_sender_has_given_up_takes_nothing(
    trouble: str, me: Any, network: Proxy, client: redis.Redis, retry_for: RetryFor
) -> None:
    retry_for(0.5)
    if trouble == "answers are lost":
        network.lose_answer(CHECKOUT, times=1000)
    late = [network.hold_request(CHECKOUT) for _ in range(30)] if trouble == "requests come late" else []
    with pytest.raises(LockUnavailable):
        me(LockPool(POOL), "acquire")
    until(lambda: not late or client.keys(f"{PREFIX}gone:*"))
    for request in late:
        request.let_go()
    until(lambda: all(request.over.is_set() for request in late if request.caught.is_set()))
    until(lambda: audit(client).held == set())
    until(lambda: leftovers(client) == [])


def test_a_checkout_and_a_release_whose_answers_were_lost_or_that_are_repeated_late_happen_once(
    me: Any, network: Proxy, accounts: LockPool, client: redis.Redis
) -> None:
    lost = network.lose_answer(CHECKOUT)
    member = me(accounts, "acquire")
    assert lost.over.is_set()
    assert audit(client).held == {member.key} == {"alice"}
    lost = network.lose_answer(RELEASE_MEMBER)
    me(member, "release")
    assert lost.over.is_set()
    assert audit(client).free == {"alice", "bob"}
    assert leftovers(client) == []
    accounts.assign(["alice"])
    late = network.hold_request(RELEASE_MEMBER)
    me(me(accounts, "acquire"), "release")
    member = me(accounts, "acquire")
    late.arrive()
    assert me(member, "owned")  # a release that comes late does not touch the present holder


@pytest.mark.complete
@pytest.mark.usefixtures("replica")
def test_who_confirms_too_late_what_it_was_handed_still_wants_any(own: RedisServer, me: Any) -> None:
    """With ``replicas``, a handoff counts when it is confirmed."""
    with (
        own.client() as client, proxy(own.port) as network,
        caches(alias(DJANGO, own.url), far=alias(DJANGO, network.url)),
    ):  # fmt: skip
        accounts = LockPool(POOL)
        accounts.assign(["alice", "bob"])
        first, second = accounts.acquire(ttl=600), accounts.acquire(ttl=600)
        waiting = me.start(LockPool(POOL, using="far"), "acquire", ttl=2, replicas=1)
        until(lambda: in_line(client))
        late = network.hold_request("confirm")
        first.release()
        assert late.caught.wait(GENEROUS)
        third = accounts.acquire(ttl=600, blocking_timeout=GENEROUS)
        assert third.key == first.key
        late.let_go()
        until(lambda: in_line(client))
        second.release()
        assert waiting.result(GENEROUS).key == second.key
        third.release()


# each change is a word that its request contains
@pytest.mark.parametrize(
    "case",
    [
        ("add", ("extend", ["alice", "carol"]), {"alice", "bob", "carol"}, ("shrink", ["carol"]), ["alice", "bob"]),
        ("remove", ("shrink", ["bob"]), {"alice"}, ("extend", ["bob"]), ["alice", "bob"]),
        ("switch", ("assign", ["alice", "carol"]), {"alice", "carol"}, ("extend", ["bob"]), ["alice", "bob", "carol"]),
    ],
)
def test_a_change_whose_answer_was_lost_or_that_is_repeated_late_happens_once_and_returns_what_it_has_done(
    me: Any, network: Proxy, accounts: LockPool, client: redis.Redis, case: Any
) -> None:
    word, change, members, then, after = case
    lost = network.lose_answer(word)
    assert me(accounts, *change) == 1
    assert lost.over.is_set()
    assert audit(client).free == audit(client).members == members
    accounts.assign(["alice", "bob"])
    late = network.hold_request(word)
    me(accounts, *change)
    me(accounts, *then)
    late.arrive()
    assert accounts.keys() == after  # it does not undo what came after it


def test_members_that_do_not_all_arrive_change_nothing(network: Proxy, accounts: LockPool, client: redis.Redis) -> None:
    """Redis may have evicted those that were sent first."""
    held = network.hold_request("switch", times=1000)
    with ThreadPoolExecutor(1) as threads:
        assigning = threads.submit(accounts.assign, ["carol", "dave"])
        assert held.caught.wait(GENEROUS)
        assert client.delete(*client.keys(f"{PREFIX}next_members:*"))
        held.let_go()
        with pytest.raises(LockUnavailable, match="not all members have arrived"):
            assigning.result(GENEROUS)
    assert audit(client).free == audit(client).members == {"alice", "bob"}


@pytest.mark.usefixtures("listening")
def test_after_a_flush_a_release_brings_nothing_back_and_waiters_get_members_of_the_new_set(
    me: Any, accounts: LockPool, wait: Wait, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.1)
    first, second = me(accounts, "acquire"), me(accounts, "acquire", auto_renew=False)
    waiter = wait()
    client.flushall()
    with pytest.raises(LockLost):
        me(first, "release")
    assert accounts.keys() == []
    accounts.extend(["bob"])
    assert got(waiter) == "bob"
    with pytest.raises(LockLost):
        me(second, "release")
    assert audit(client).held == {"bob"}


@pytest.mark.usefixtures("no_look_by_the_clock", "listening")
def test_without_memory_a_release_serves_a_waiter_and_a_refused_call_changes_nothing(
    held: Held, wait: Wait, client: redis.Redis, accounts: LockPool
) -> None:
    """R2: the first write of a script is allowed at the limit of memory, and so all later ones are."""
    waiter = wait()
    client.config_set("maxmemory", 1)
    try:
        held("alice")
        assert got(waiter) == "alice"
        held("bob")
        with pytest.raises(LockUnavailable, match=r"to serve the pool 'accounts' .* used memory > 'maxmemory'"):
            accounts.assign(["carol"])
    finally:
        client.config_set("maxmemory", 0)
    assert audit(client).members == {"alice", "bob"}
    assert accounts.acquire(blocking_timeout=0).key == "bob"


def test_without_redis_it_says_so(own: RedisServer, retry_for: RetryFor) -> None:
    retry_for(0.2)
    pool = LockPool(POOL)
    own.stop()
    for call in (lambda: pool.extend(["x"]), pool.keys, pool.acquire, pool.info):
        with pytest.raises(LockUnavailable, match=r"cannot be reached for the pool 'accounts' .*'default'") as caught:
            call()
        assert caught.value.name == POOL


SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0")) or random.SystemRandom().getrandbits(32)
SECONDS = float(os.environ.get("REDISLOCK_TEST_SECONDS", "8"))
KEYS = [f"key-{number}" for number in range(6)]
LEASE = 8.0  # seconds; if the machine hangs for longer, live processes lose members

# Its threads acquire and release any members, or one of their own choice, again and again. What happens to a member is
# recorded in a list in Redis, in order: who has acquired it (fence and process), and who has released it.
TAKES = """
import random
import redis
dice = random.Random(seed)
plain = redis.Redis(port=port)
over = threading.Event()

def turns():
    while not over.is_set():
        options = {"ttl": ttl, "poll": dice.random() < 0.2, "blocking_timeout": dice.choice([0, 0.05, 1.0])}
        try:
            if dice.random() < 0.3:
                lock = Lock(lock_name("pool", name, dice.choice(keys)), **options).__enter__()
            else:
                lock = LockPool(name).acquire(**options)
        except LockNotAcquired:
            continue
        story, fence = f"story:{lock.name}", lock.fence
        plain.rpush(story, f"in {fence} {os.getpid()}")
        time.sleep(dice.choice([0, 0, 0.001, 0.02]))
        plain.rpush(story, f"out {fence} {os.getpid()}")
        try:
            lock.release()
        except LockLost:
            plain.rpush(story, f"lost {fence} {os.getpid()}")

threads = [threading.Thread(target=turns, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
say("ready")
hear()
over.set()
for thread in threads:
    thread.join()
say("over")
"""


@pytest.mark.complete
def test_no_member_is_held_twice_and_none_is_lost(
    start: Callable[..., Worker], client: redis.Redis, server: RedisServer
) -> None:
    print(f"REDISLOCK_TEST_SEED={SEED}")
    dice, pool, members = random.Random(SEED), LockPool(POOL), set(KEYS)
    killed: set[int] = set()
    stopped: set[int] = set()  # for longer than their leases

    def hire() -> Worker:
        return start(TAKES, name=POOL, keys=KEYS, seed=dice.getrandbits(32), port=server.port, ttl=LEASE)

    pool.extend(members)
    workers = [hire() for _ in range(5)]
    for worker in workers:
        worker.expect("ready", within=120)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or sum(int(client.llen(story)) for story in client.keys("story:*")) < 200:
        time.sleep(dice.uniform(0.0, 0.1))
        some = set(dice.sample(KEYS, dice.randint(1, 4)))
        what = dice.choice(["extend", "extend", "shrink", "assign", "kill", "stop"])
        if what in ("extend", "shrink", "assign"):
            getattr(pool, what)(some)
            members = {"extend": members | some, "shrink": members - some, "assign": some}[what]
        elif len(killed | stopped) < 6:
            worker = workers.pop(dice.randrange(len(workers)))
            if what == "kill":
                killed.add(worker.pid)
                worker.kill()
                workers.append(hire())
            else:
                stopped.add(worker.pid)
                worker.signal(signal.SIGSTOP)
                workers.insert(0, worker)
        audit(client)
    for worker in workers:
        worker.signal(signal.SIGCONT)
        worker.tell()
    for worker in workers:
        worker.expect("over", within=120)

    for story in client.keys("story:*"):
        last, inside = 0, None
        entries: list[Any] = client.lrange(story, 0, -1)
        for what, fence, pid in ((words.decode().split()[0], *map(int, words.split()[1:])) for words in entries):
            if pid in stopped:
                continue  # it may have lost its member, and record that late
            assert what != "lost", f"the machine stood still for {LEASE} s"
            if what == "in":
                assert inside is None or inside[1] in killed, f"{story!r}: {fence} came while {inside} was in it"
                assert fence > last
                last, inside = fence, (fence, pid)
            else:
                assert inside == (fence, pid), f"{story!r}: {fence} left while {inside} was in it"
                inside = None

    # no member is lost: those that killed processes held come back when their leases end
    until(lambda: pool.health_check() == (0, len(members)))
    held = [pool.acquire(blocking_timeout=GENEROUS) for _ in members]
    assert {member.key for member in held} == {*pool.keys()} == members
    pool.clear()
    for member in held:
        member.release()
    client.delete(*client.keys("story:*"))

    def nothing_is_left() -> bool:
        pool.clear()  # also drops leases that ended by themselves, as of a process that was stopped
        # killed processes that waited for one member may have left these behind
        return all(key.startswith(("queue:", "waiters:", "wanted:")) for key in leftovers(client))

    until(nothing_is_left)
