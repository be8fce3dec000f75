"""``LockSet``: several locks, all or none, in one order; what becomes of it when one is busy, fails or is lost."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import (
    Lock,
    LockError,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockSet,
    LockUnavailable,
    Semaphore,
    force_release,
    list_locks,
    lock_not_acquired,
    lock_released,
)
from django_redislock.testing import lose, redis_away
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, auntil, never, until
from tests.helpers.cancelling import Interrupt
from tests.helpers.proxy import Proxy, Trouble
from tests.helpers.state import holder, leftovers, queued
from tests.helpers.ways import DJANGO_REDIS, alias, caches, stopped
from tests.inside import RELEASE, Ears, keys_of
from tests.lock.conftest import Block, Heard, receiving

Start = Callable[..., Any]

A, B, C, D = "account:10", "account:3", "account:7", "account:9"  # in their order


def free(client: redis.Redis, *names: str) -> bool:
    return not any(holder(client, name) for name in names)


def test_names_are_acquired_once_each_in_the_order_of_their_bytes(me: Any, heard: Heard) -> None:
    names = ["\U0001f512", C, B, "z", A, "\uffee", B, "Z", C]
    locks = LockSet(*names)
    assert locks.names == tuple(sorted({*names}, key=str.encode))
    assert me(locks, "acquire")
    assert [facts["name"] for _, facts in heard] == [*locks.names]
    assert repr(LockSet(B, A)) == f"<LockSet ({A!r}, {B!r})>"


@pytest.mark.parametrize("options", [{"blocking": False}, {"blocking_timeout": 0.05}, {"poll": True}])
def test_where_one_is_busy_none_is_held(options: Any, me: Any, you: Any, client: redis.Redis) -> None:
    you(Lock(B), "acquire")
    options = {"blocking_timeout": 0.05, **options}
    locks, block = LockSet(A, B, C, **options), Block(LockSet(A, B, C, **options), never)
    assert not me(locks, "acquire")
    assert free(client, A, C)
    assert not me(LockSet(A, B, C), "acquire", **{key: options[key] for key in options if key != "poll"})
    with pytest.raises(LockNotAcquired) as caught:
        me(block, "run")
    assert caught.value.name == B
    assert f"Could not acquire the lock '{B}'" in str(caught.value)
    assert str(caught.value).endswith(f"Of the set ('{A}', '{B}', '{C}'), none was acquired.")
    assert free(client, A, C)
    assert queued(client, B) == 0


@pytest.mark.complete
def test_the_timeout_is_for_all_of_them(crowd: Crowd, caplog: pytest.LogCaptureFixture) -> None:
    me, you, refusals = crowd(), crowd(), list[dict[str, Any]]()
    you(LockSet(A, B), "acquire")
    with receiving(lambda **facts: refusals.append(facts), lock_not_acquired):
        waiting = me.start(Block(LockSet(A, B, blocking_timeout=5, slow_wait=0.5), never), "run")
        until(lambda: "still-waiting" in caplog.text)  # so that it has waited for half a second at least
        force_release(A)
        with pytest.raises(LockNotAcquired) as caught:
            waiting.result(GENEROUS)
    (alone,) = refusals
    assert (alone["name"], caught.value.name) == (B, B)
    assert alone["waited"] < 5 <= caught.value.waited


def test_where_one_raises_none_is_held(me: Any, client: redis.Redis) -> None:
    client.rpush(keys_of(B).lock, "of somebody else")
    locks = LockSet(A, B, C)
    for use in ((locks, "acquire"), (Block(locks), "run")):
        with pytest.raises(LockUnavailable, match="Somebody else has written the key"):
            me(*use)
        until(lambda: free(client, A, C))


def test_whoever_holds_one_of_them_already_is_told_and_the_others_are_given_back(me: Any, client: redis.Redis) -> None:
    one = Lock(B)  # renewed as long as the test has it
    me(one, "acquire")
    with pytest.raises(LockError, match=f"Cannot wait for the lock '{B}'"):
        me(LockSet(A, B), "acquire")
    until(lambda: free(client, A))
    with pytest.raises(LockNotAcquired, match="holds it already") as caught:
        me(Block(LockSet(A, B, blocking_timeout=0)), "run")
    assert caught.value.outcome == "own"
    outer, inner = LockSet(B, reentrant=True), LockSet(C, B, reentrant=True)
    assert me(inner, "acquire")
    me(inner, "release")
    assert (free(client, C), free(client, B)) == (True, False)
    with pytest.raises(LockNotOwned):
        me(outer, "release")


def test_when_one_is_lost_all_count_as_lost_and_it_is_told_once(me: Any, client: redis.Redis, heard: Heard) -> None:
    told: list[LockLost] = []
    locks = LockSet(A, B, C, on_lost=told.append)
    me(locks, "acquire")
    assert not locks.lost
    assert me.read(locks.remaining) > 0
    me.read(locks.check)
    force_release(B)
    until(lambda: locks.lost)
    assert me.read(locks.remaining) == 0.0
    assert not me(locks, "owned")
    with pytest.raises(LockLost, match=B):
        me.read(locks.check)
    force_release(A)
    until(lambda: [event for event, _ in heard].count("lost") == 2)
    with pytest.raises(LockLost):
        me(locks, "extend", 5)
    with pytest.raises(LockLost, match=B):  # it has come to that first
        me(locks, "release")
    assert [error.name for error in told] == [B]
    assert leftovers(client) == []
    with pytest.raises(LockNotOwned, match=f"Cannot release the lock '{A}'"):
        me(locks, "release")


def test_one_that_is_lost_while_it_waits_for_the_next_is_an_error(me: Any, you: Any, client: redis.Redis) -> None:
    you(Lock(B), "acquire")
    locks = LockSet(A, B)
    waiting = me.start(locks, "acquire")
    until(lambda: queued(client, B) == 1)
    force_release(A)
    until(lambda: locks.lost)
    force_release(B)
    with pytest.raises(LockLost, match=A):
        waiting.result(GENEROUS)
    until(lambda: leftovers(client) == [])


async def test_a_loss_while_the_block_ends_cancels_it_as_well(network: Proxy, client: redis.Redis) -> None:
    async def hold() -> None:
        async with LockSet(A, B, C, on_lost="cancel", using="far"):
            pass

    late = network.hold_request(RELEASE)
    task = asyncio.create_task(hold())
    await auntil(late.caught.is_set)
    await asyncio.to_thread(force_release, B)
    with pytest.raises(LockLost, match=B):
        await task
    late.let_go()
    await auntil(lambda: leftovers(client) == [])


async def test_a_loss_can_cancel_the_task(client: redis.Redis) -> None:
    locks, forced = LockSet(A, B, on_lost="cancel"), list[Any]()

    async def hold(*lost: str) -> None:
        async with locks:
            loop = asyncio.get_running_loop()
            forced.extend(loop.run_in_executor(None, force_release, name) for name in lost)
            await asyncio.sleep(GENEROUS)

    for lost in ([A], [B], [A, B]):
        with pytest.raises(LockLost):
            await hold(*lost)
        await asyncio.gather(*forced)
        await auntil(lambda: leftovers(client) == [])
    await asyncio.to_thread(Lock(B).acquire)

    task = asyncio.create_task(hold())
    await auntil(lambda: queued(client, B) == 1)
    await asyncio.to_thread(force_release, A)
    with pytest.raises(LockLost, match=A):
        await task
    await auntil(lambda: queued(client, B) == 0)


def test_each_lock_has_its_fence_and_they_grow(me: Any) -> None:
    locks = LockSet(B, A)
    me(locks, "acquire")
    before = me.read(lambda: locks.fences)
    assert [*before] == [A, B]
    me(locks, "release")
    with pytest.raises(LockNotOwned):
        me.read(lambda: locks.fences)
    me(locks, "acquire")
    assert all(fence > before[name] for name, fence in me.read(lambda: locks.fences).items())


def test_all_leases_are_extended(me: Any) -> None:
    locks = LockSet(A, B, ttl=60)
    with pytest.raises(LockNotOwned, match="Cannot extend"):
        me(locks, "extend", 5)
    me(locks, "acquire")
    assert me(locks, "extend", 600)
    assert me.read(locks.remaining) > 600
    assert me(locks, "extend", 300, replace_ttl=True)
    assert 60 < me.read(locks.remaining) < 600


def test_a_block_may_release_and_acquire_again(me: Any, client: redis.Redis) -> None:
    locks, well = LockSet(A, B), (None, None, None)
    assert me(locks, "enter") is locks
    for method in ("release", "acquire"):
        me(locks, method)
    me(locks, "exit", *well)
    assert free(client, A, B)
    for error in (well, (KeyError, KeyError(), None)):
        me(locks, "enter")
        me(locks, "release")
        with nullcontext() if error[0] else pytest.raises(LockNotOwned):
            assert not me(locks, "exit", *error)


def test_what_could_not_be_released_is_in_the_background_and_logged_but_for_the_one_that_is_raised(
    me: Any, client: redis.Redis, retry_for: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    retry_for(0.05)
    outer, locks = Lock(A, reentrant=True), LockSet(A, B, C, D, reentrant=True)
    me(outer, "acquire")
    me(locks, "acquire")
    with redis_away(), pytest.raises(LockUnavailable, match="was not released") as caught:
        me(locks, "release")
    assert caught.value.name == D
    # the outer block goes on with its own
    assert [name for name in locks.names if f"event=not-released name={name} error=" in caplog.text] == [B, C]
    until(lambda: free(client, B, C, D))
    assert me(outer, "owned")


@pytest.mark.complete
def test_a_set_that_waits_in_vain_gives_up_in_time_where_redis_hangs(crowd: Crowd, own: RedisServer) -> None:
    me, you, locks = crowd(), crowd(), LockSet(A, B, ttl=60)
    with caches(alias(DJANGO_REDIS, own.url, socket_timeout=300)), own.client() as raw:
        me(Lock(B, ttl=60), "acquire")
        you(Lock(B), "acquire", blocking_timeout=0.1)
        until(lambda: Ears(name=B).hears)  # so that it does not look once more
        waiting = you.start(locks, "acquire", blocking_timeout=2)
        until(lambda: raw.exists(f"redislock{{0}}:queue:{B}"))
        raw.ping()  # by now, the server has sent what it had answered before
        with stopped(own):
            assert waiting.result(60) is False
        until(lambda: free(raw, A))


def test_the_end_of_a_set_that_is_lost_waits_for_redis_once_not_for_each_lock(
    me: Any, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(1)
    locks = LockSet(*map(str, range(30)), ttl=1, auto_renew=False)
    me(locks, "acquire")
    own.stop()
    until(lambda: me.read(lambda: locks.lost))
    began = monotonic()
    with pytest.raises(LockLost):
        me(locks, "release")
    assert monotonic() - began < 15


def test_the_loss_of_one_is_raised_and_what_redis_was_not_told_of_the_others_is_logged(
    crowd: Crowd, retry_for: Callable[[float], None], client: redis.Redis, caplog: Any
) -> None:
    retry_for(0.05)
    me, locks = crowd(), LockSet(A, B, C)
    me(locks, "enter")
    lose(C)
    with redis_away():
        with pytest.raises(LockLost, match=f"'{C}'"):
            me(locks, "exit", None, None, None)
        assert [name for name in locks.names if f"event=not-released name={name} error=" in caplog.text] == [A, B]
    until(lambda: free(client, A, B, C))


def test_a_set_is_released_inside_a_transaction_with_a_warning(account: Any) -> None:
    from django.db import transaction

    with transaction.atomic():
        locks = LockSet(A, B)
        locks.acquire()
        with pytest.warns(RuntimeWarning, match="was released inside an open transaction") as caught:
            locks.release()
    assert [str(one.message).partition(" was ")[0] for one in caught] == ["A lock"] * 2


TRANSFERS = """
import random
import redis
raw = redis.Redis.from_url(os.environ["REDISLOCK_TEST_URL"])
draw = random.Random(seed)
say("ready")
hear()
for _ in range(rounds):
    chosen = draw.sample(names, draw.choice([2, 3]))
    with LockSet(*chosen, blocking_timeout=60):
        balances = [int(raw.hget("balances", name) or 0) for name in chosen]
        for name, balance, change in zip(chosen, balances, [2, -1, -1] if len(chosen) == 3 else [1, -1]):
            raw.hset("balances", name, balance + change)
        for name in chosen:
            raw.hset("changes", name, int(raw.hget("changes", name) or 0) + 1)
        raw.hincrby("made", len(chosen))
say("done")
hear()
"""


def test_transfers_by_four_processes_lose_no_update_and_never_block(start: Start, client: redis.Redis) -> None:
    names, rounds = [f"account:{number}" for number in range(6)], 25
    workers = [start(TRANSFERS, names=names, seed=seed, rounds=rounds) for seed in range(4)]
    for worker in workers:
        worker.expect("ready")
    for worker in workers:
        worker.tell()
    for worker in workers:
        worker.expect("done", within=4 * GENEROUS)
    made = {int(size): int(times) for size, times in client.hgetall("made").items()}
    assert sum(made.values()) == 4 * rounds
    assert sum(map(int, client.hvals("changes"))) == 2 * made[2] + 3 * made[3]
    assert sum(map(int, client.hvals("balances"))) == 0
    assert free(client, *names)


@pytest.mark.usefixtures("nowhere")
def test_bad_input_is_an_error_before_redis_is_asked() -> None:
    wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ValueError, "at least one lock", lambda: LockSet()),
        (TypeError, r"LockSet\(\*names\) if they are in a list, not \['a', 'b'\]", lambda: LockSet(["a", "b"])),  # type: ignore[arg-type]
        (TypeError, "takes the names of locks, not 5", lambda: LockSet("a", 5)),  # type: ignore[arg-type]
        (TypeError, "names of locks, not <Semaphore", lambda: LockSet("a", Semaphore("x", limit=2))),  # type: ignore[arg-type]
        (ValueError, r"^'semaphore:x' is a semaphore, .*: acquire Semaphore", lambda: LockSet("a", "semaphore:x")),
        (ValueError, "must not be empty", lambda: LockSet("a", "")),
        (TypeError, "no option 'token'.* The options are: ", lambda: LockSet("a", token="t" * 43)),  # type: ignore[call-arg]
        (TypeError, "no option 'tll'.* Did you mean 'ttl'", lambda: LockSet("a", tll=5)),  # type: ignore[call-arg]
        (ValueError, "ttl must be at least", lambda: LockSet("a", ttl=-1)),
        (TypeError, "argument 'token'", lambda: LockSet("a").acquire(token="t" * 43)),  # type: ignore[call-arg]
        (ValueError, "blocking_timeout must be 0 or more", lambda: LockSet("a").acquire(blocking_timeout=-1)),
        (LockNotOwned, "does not hold it", lambda: LockSet("a").check()),
        (LockNotOwned, "does not hold it", lambda: LockSet("a").fences),
        (LockNotOwned, "does not hold it", lambda: LockSet("a").claim()),
        (LockNotOwned, "does not hold it", lambda: LockSet("a").release()),
    ]
    for error, text, act in wrong:
        with pytest.raises(error, match=text):
            act()
    assert (LockSet("a").lost, LockSet("a").remaining(), LockSet("a").owned()) == (False, 0.0, False)
    with pytest.warns(RuntimeWarning, match="only decorators fill templates"):
        LockSet("order:{pk}")


def test_free_locks_are_acquired_in_one_round_trip_and_released_in_one(trips: list[int]) -> None:
    locks = LockSet(A, B, C)
    with locks:  # the server may have to be sent the scripts
        pass
    trips.clear()
    with locks:
        assert trips == [3]
    assert trips == [3, 3]


def test_while_it_waits_for_a_busy_one_those_before_it_are_held_and_those_behind_it_are_not(
    crowd: Crowd, client: redis.Redis
) -> None:
    me, you, somebody = crowd(), crowd(), crowd()
    you(LockSet(B, D), "acquire")
    locks = LockSet(A, B, C, D)
    waiting = me.start(locks, "acquire")
    until(lambda: queued(client, B) == 1)
    assert somebody(Lock(C), "acquire", blocking_timeout=GENEROUS)
    assert (free(client, A), queued(client, D)) == (False, 0)
    force_release(B)
    until(lambda: queued(client, C) == 1)
    force_release(C)
    force_release(D)
    assert waiting.result(GENEROUS)
    assert (me(locks, "owned"), you(locks, "owned")) == (True, False)
    me(locks, "release")
    assert free(client, A, B, C, D)


def test_where_the_connection_fails_it_is_tried_again(me: Any, network: Proxy, client: redis.Redis) -> None:
    locks = LockSet(A, B, C, using="far")
    me(locks, "acquire")
    me(locks, "release")
    network.cut()
    network.mend()
    assert me(locks, "acquire", blocking_timeout=GENEROUS)
    assert me(locks, "owned")
    me(locks, "release")
    until(lambda: leftovers(client) == [])


@pytest.fixture
def releases(network: Proxy) -> Trouble:
    """How many writes with releases the server was sent, as its ``seen``; with each script once before."""
    with LockSet(A, B, C, using="far"):
        pass
    return network.delay_answer(RELEASE, times=1000)


def test_the_end_of_a_block_is_one_round_trip_whether_well_or_with_an_error(me: Any, releases: Trouble) -> None:
    locks = LockSet(A, B, C, using="far")
    me(locks, "acquire")
    me(locks, "release")
    me(Block(locks), "run")
    with pytest.raises(ZeroDivisionError):
        me(Block(locks, lambda: 1 / 0), "run")
    assert releases.seen == 3


def test_one_that_was_lost_unnoticed_is_an_error_and_costs_no_round_trip_more(
    me: Any, releases: Trouble, client: redis.Redis, heard: Heard
) -> None:
    locks = LockSet(A, B, C, using="far")
    me(locks, "acquire")
    heard.clear()
    client.delete(keys_of(B).lock)
    with pytest.raises(LockLost, match=B):
        me(locks, "release")
    assert (releases.seen, leftovers(client)) == (1, [])
    until(lambda: len(heard) == 3)  # of a loss, in a thread of its own
    assert {(event, facts["name"]) for event, facts in heard} == {("released", A), ("lost", B), ("released", C)}


@pytest.mark.parametrize("trouble", ["lose_answer", "tear_answer"])
def test_a_release_whose_answer_is_lost_is_repeated_for_each(
    trouble: str, me: Any, network: Proxy, client: redis.Redis, heard: Heard
) -> None:
    locks = LockSet(A, B, C, using="far")
    me(locks, "acquire")
    met = getattr(network, trouble)(RELEASE)
    me(locks, "release")
    assert met.met == 1
    assert free(client, A, B, C)
    assert sorted((event, facts["name"]) for event, facts in heard[-3:]) == [("released", name) for name in (A, B, C)]


def test_whoever_waits_gets_its_lock_by_the_release_of_the_set(
    crowd: Crowd, releases: Trouble, client: redis.Redis, ghost: Any
) -> None:
    me, you, somebody = crowd(), crowd(), crowd()
    locks = LockSet(A, B, C, using="far")
    me(locks, "acquire")
    dead = ghost(alive=False)
    for number in range(3):
        dead.queue(f"{number}{'d' * 22}", name=C)
    wait = {"blocking_timeout": GENEROUS}
    waiting = [you.start(Lock(A), "acquire", **wait), somebody.start(Lock(C), "acquire", **wait)]
    until(lambda: (queued(client, A), queued(client, C)) == (1, 4))
    me(locks, "release")
    assert all(one.result(GENEROUS) for one in waiting)
    assert (releases.seen, free(client, B)) == (1, True)


def test_more_dead_waiters_than_one_release_drops_are_dropped_by_the_next(
    me: Any, releases: Trouble, client: redis.Redis
) -> None:
    locks = LockSet(A, B, C, using="far")
    me(locks, "acquire")
    client.zadd(keys_of(B).all[1], {f"id-{number}": number for number in range(700)})
    me(locks, "release")
    assert (releases.seen, queued(client, B)) == (2, 0)


def test_a_release_that_is_interrupted_is_completed_in_the_background() -> None:
    """R18, for a plain call; blocks are watched."""

    def strike(**facts: Any) -> None:
        raise Interrupt

    locks = LockSet("a", "b")
    assert locks.acquire()
    with receiving(strike, lock_released), pytest.raises(Interrupt):
        locks.release()
    until(lambda: list_locks() == [])
