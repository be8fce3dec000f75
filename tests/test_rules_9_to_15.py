"""The rules R9 to R15 of the protocol. Each test fails when its rule is taken away."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import FairLock, Lock, LockLost, force_release, get_lock, scripts
from django_redislock.connection import get_backend
from django_redislock.listener import get_listener
from django_redislock.names import make_keys
from django_redislock.registry import inspect
from django_redislock.steps import run
from django_redislock.watchdog import watchdog
from redisserver import RedisServer, redis_server

from .actors import (
    GENEROUS,
    KEYS,
    NAME,
    TOKEN,
    Ghost,
    Other,
    flag,
    holder,
    queued,
    server_time,
)
from .processes import Worker
from .proxy import Proxy, proxy

Eventually = Callable[..., Any]
Start = Callable[..., Worker]
Settings = Any


@pytest.fixture
def move(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Point the default alias, and that of workers, to another server; ``more`` aliases beside it."""

    def move(url: str, **more: str) -> None:
        default = settings.CACHES["default"]
        aliases = {"default": url, **more}
        settings.CACHES = settings.CACHES | {alias: {**default, "LOCATION": where} for alias, where in aliases.items()}
        monkeypatch.setenv("REDISLOCK_TEST_URL", url)

    return move


@pytest.fixture
def own(move: Callable[..., None]) -> Iterator[RedisServer]:
    """A server for this test alone."""
    with redis_server() as running:
        move(running.url)
        yield running


@pytest.fixture
def between(server: RedisServer, move: Callable[..., None]) -> Iterator[Proxy]:
    """A proxy between the locks of this process and the server."""
    with proxy(server.port) as running:
        move(running.url)
        yield running


@pytest.fixture
def listening(eventually: Eventually) -> Callable[[], None]:
    """Let this process hear messages before anything else happens, so that nothing looks again on that account."""

    def listening() -> None:
        listener = get_listener(get_backend())
        listener.start()
        eventually(lambda: listener.ready)

    return listening


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters hear of a lock by a message, or not within this test."""
    monkeypatch.setattr("django_redislock.listener.LOOK_EVERY", 10.0 * GENEROUS)


@pytest.fixture
def a_round(eventually: Eventually) -> Callable[[], None]:
    """Wait until the watchdog has gone through its work once more."""

    def a_round() -> None:
        lock = Lock("round", ttl=0.9)
        lock.acquire()
        ends = monotonic() + lock.remaining()
        eventually(lambda: monotonic() + lock.remaining() > ends + 0.1)
        lock.release()

    return a_round


@pytest.fixture
def renew_all(eventually: Eventually) -> Callable[..., None]:
    """Let the watchdog renew everything of an alias, as after a reconnect."""

    def renew_all(using: str | None = None) -> None:
        eventually(lambda: all(lease.seen for lease in list(watchdog._leases.values())))
        watchdog.renew_all(get_backend(using))

    return renew_all


def calls(client: redis.Redis, command: str) -> int:
    """How often the server has run a command."""
    stats = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


# -- R9 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Lock, FairLock])
def test_a_single_try_gets_a_free_lock_whose_waiters_are_all_dead(
    kind: type[Lock], ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """R9: after reaping, decide again."""
    kind(NAME).acquire()
    dead = ghost(alive=False)
    for number in range(250):
        dead.queue(f"{TOKEN}-{number}", mode="F" if number % 2 else "L", age=10)
    client.delete(KEYS.lock)
    assert _try(kind)
    assert queued(client) == 0


def test_a_single_try_gets_a_free_lock_whose_waiters_were_killed(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    """R9: the same with processes that were killed while they waited."""
    FairLock(NAME).acquire()
    workers = [start("FairLock(name).acquire()", name=NAME) for _ in range(2)]
    eventually(lambda: client.zcard(KEYS.queue) == 2)
    for worker in workers:
        worker.kill()
    client.delete(KEYS.lock)
    assert _try(FairLock)
    assert client.zcard(KEYS.queue) == 0


def _try(kind: type[Lock]) -> bool:
    """A single try of a thread that holds nothing."""
    thread = Other()
    got = thread(lambda: kind(NAME, blocking=False).acquire())
    thread.end()
    return got


@pytest.mark.parametrize("kind", [Lock, FairLock])
def test_a_waiter_that_finds_the_lock_free_takes_it_and_wakes_nobody(
    kind: type[Lock],
    other: Callable[[], Other],
    client: redis.Redis,
    listening: Callable[[], None],
    eventually: Eventually,
) -> None:
    """R9: never publish to, or queue again, the caller's own token."""
    listening()
    kind(NAME, ttl=0.5, auto_renew=False).acquire()
    before = calls(client, "publish")
    waiting = other().start(lambda: kind(NAME).acquire(token=TOKEN, blocking_timeout=GENEROUS))
    eventually(lambda: client.zcard(KEYS.queue))
    assert waiting.result(GENEROUS)
    assert holder(client) == TOKEN
    assert flag(client) == "c"
    assert queued(client) == 0
    assert calls(client, "publish") == before


def test_a_waiter_with_dead_ones_before_it_gets_an_expired_lock_by_its_own_look(
    ghost: Callable[..., Ghost], other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    """R9: the dead head is dropped and the caller decides again, instead of telling itself and queueing behind."""
    FairLock(NAME, ttl=0.5, auto_renew=False).acquire()
    ghost(alive=False).queue(TOKEN, mode="F", age=1)
    begin = monotonic()
    waiting = other().start(lambda: FairLock(NAME).acquire(blocking_timeout=GENEROUS))
    assert waiting.result(GENEROUS)
    assert monotonic() - begin < 2.5  # a handoff to itself, not noticed, would cost a lease of 3 s
    assert flag(client) == "c"


# -- R10 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ttl", "lease"), [(0.5, 500), (2, 2000), (6, 3000), (30, 10_000)])
def test_a_handoff_has_a_lease_of_a_third_at_least_three_seconds_and_never_more_than_the_ttl(
    ttl: float, lease: int, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """R10: handoff lease = min(ttl, max(3 s, ttl / 3))."""
    lock, waiter = FairLock(NAME), ghost()
    lock.acquire()
    waiter.queue(TOKEN, mode="F", ttl=ttl)
    before = server_time(client)
    lock.release()
    kind, token, fence, granted, told, name = waiter.hear()
    assert (kind, token, int(told), name) == ("g", TOKEN, lease, NAME)
    info = get_lock(NAME)
    if info is None:  # 0.5 s have gone by
        assert server_time(client) - before > lease * 1000
    else:
        assert info.fence == int(fence)
        assert abs(info.held_for + info.lease_left - lease / 1000) < 0.05
        assert before <= int(granted) <= server_time(client)


@pytest.mark.parametrize("auto_renew", [True, False])
def test_a_handed_over_lock_that_is_kept_gets_its_full_ttl(
    auto_renew: bool, other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    """R10: a handed-over acquisition is confirmed in the background, also without renewal: grant + ttl."""
    lock, thread = FairLock(NAME), other()
    lock.acquire()
    waiter = FairLock(NAME, ttl=300, auto_renew=auto_renew)
    waiting = thread.start(lambda: waiter.acquire(blocking_timeout=GENEROUS))
    eventually(lambda: client.zcard(KEYS.queue))
    lock.release()
    assert waiting.result(GENEROUS)
    eventually(lambda: int(client.pttl(KEYS.lock)) > 200_000, within=10)
    assert int(client.pttl(KEYS.lock)) <= 300_000
    assert flag(client) == "c"
    eventually(lambda: thread(waiter.remaining) > 200)
    assert thread(waiter.remaining) <= 300


def test_a_handed_over_lock_of_a_short_ttl_lives_no_longer_than_that(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    """R10: without renewal the lease ends at grant + ttl, not at 3 s."""
    lock, thread = FairLock(NAME), other()
    lock.acquire()
    waiter = FairLock(NAME, ttl=1, auto_renew=False)
    waiting = thread.start(lambda: waiter.acquire(blocking_timeout=GENEROUS))
    eventually(lambda: client.zcard(KEYS.queue))
    lock.release()
    assert waiting.result(GENEROUS)
    assert thread(waiter.remaining) <= 1
    info = get_lock(NAME)
    eventually(lambda: thread(lambda: waiter.lost) and not waiter.locked(), within=2.5 if info else GENEROUS)


def test_extend_of_a_handed_over_lock_adds_to_the_full_ttl(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: ``extend()`` confirms first."""
    monkeypatch.setattr("django_redislock.watchdog.CONFIRM_AFTER", 10.0 * GENEROUS)  # not by the watchdog

    def take_and_extend() -> bool:
        waiter = FairLock(NAME, ttl=60, auto_renew=False)
        return waiter.acquire(blocking_timeout=GENEROUS) and flag(client) == "h" and waiter.extend(50)

    lock = FairLock(NAME)
    lock.acquire()
    waiting = other().start(take_and_extend)
    eventually(lambda: client.zcard(KEYS.queue))
    lock.release()
    assert waiting.result(GENEROUS)
    assert 80_000 < int(client.pttl(KEYS.lock)) <= 110_000


def test_renewal_never_shortens_a_lease_that_was_extended(
    client: redis.Redis, eventually: Eventually, renew_all: Callable[..., None]
) -> None:
    """R10: renewal never shortens a lease."""
    lock = Lock(NAME, ttl=3)
    lock.acquire()
    eventually(lambda: all(lease.seen for lease in list(watchdog._leases.values())))
    lock.extend(300)
    before = calls(client, "pexpire")
    renew_all()
    eventually(lambda: calls(client, "pexpire") > before)
    assert int(client.pttl(KEYS.lock)) > 200_000
    assert lock.remaining() > 200


# -- R11 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("how", ["release", "extend"])
def test_a_holder_that_finds_its_lease_ended_passes_the_lock_on(
    how: str, other: Callable[[], Other], client: redis.Redis, listening: Callable[[], None], eventually: Eventually
) -> None:
    """R11: release and renew that find the lock free pass on."""
    listening()
    lock = FairLock(NAME, ttl=10.0 * GENEROUS)
    lock.acquire()
    waiting = other().start(lambda: FairLock(NAME).acquire(blocking_timeout=GENEROUS, token=TOKEN))
    eventually(lambda: client.zcard(KEYS.queue))
    client.delete(KEYS.lock)  # as at its very expiry
    with pytest.raises(LockLost):
        lock.release() if how == "release" else lock.extend(1)
    assert holder(client) == TOKEN
    assert waiting.result(GENEROUS) is True


@pytest.mark.usefixtures("nobody_looks")
def test_the_watchdog_that_finds_a_lease_ended_passes_the_lock_on(
    other: Callable[[], Other],
    client: redis.Redis,
    listening: Callable[[], None],
    eventually: Eventually,
    renew_all: Callable[..., None],
) -> None:
    """R11: the same for a renewal in the background."""
    listening()
    lock = FairLock(NAME, ttl=10.0 * GENEROUS)
    lock.acquire()
    waiting = other().start(lambda: FairLock(NAME).acquire(blocking_timeout=GENEROUS, token=TOKEN))
    eventually(lambda: client.zcard(KEYS.queue))
    client.delete(KEYS.lock)
    renew_all()
    assert waiting.result(GENEROUS) is True
    assert holder(client) == TOKEN


@pytest.mark.usefixtures("nobody_looks")
def test_a_waiter_that_leaves_a_free_lock_behind_passes_it_on(
    other: Callable[[], Other], client: redis.Redis, listening: Callable[[], None], eventually: Eventually
) -> None:
    """R11: the same for a waiter that gives up."""
    listening()
    FairLock(NAME, ttl=10.0 * GENEROUS).acquire()
    waiting = other().start(lambda: FairLock(NAME).acquire(blocking_timeout=GENEROUS, token=TOKEN))
    eventually(lambda: client.zcard(KEYS.queue) == 1)
    leaving = other().start(lambda: FairLock(NAME).acquire(blocking_timeout=1))
    eventually(lambda: client.zcard(KEYS.queue) == 2)
    client.delete(KEYS.lock)
    assert leaving.result(GENEROUS) is False
    assert waiting.result(GENEROUS) is True
    assert holder(client) == TOKEN


# -- R12 ---------------------------------------------------------------------------------------------------------------


def test_a_renewal_that_is_overtaken_by_the_release_is_no_loss(
    between: Proxy, client: redis.Redis, a_round: Callable[[], None], renew_all: Callable[..., None]
) -> None:
    """R12: a renewal's answer counts only while the acquisition is registered."""
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=12, on_lost=losses.append)
    lock.acquire()
    held = between.hold_request("keep")
    renew_all()
    assert held.caught.wait(GENEROUS)
    lock.release()
    held.let_go()
    assert held.over.wait(GENEROUS)
    a_round()
    assert losses == []
    assert holder(client) == ""


def test_a_stopped_redis_does_not_keep_the_end_of_a_lease_from_being_told(
    own: RedisServer, eventually: Eventually
) -> None:
    """R12: the watchdog's connection waits at most a sixth of the smallest TTL, and there are no retries."""
    told: list[float] = []
    locks = [Lock(f"{NAME}:{ttl}", ttl=ttl, on_lost=lambda error: told.append(monotonic())) for ttl in (0.6, 0.9, 1.2)]
    for lock in locks:
        lock.acquire()
    assert own.process is not None
    os.kill(own.process.pid, signal.SIGSTOP)
    try:
        stopped = monotonic()
        eventually(lambda: len(told) == 3)
        assert max(told) - stopped < 1.2 + 1.5  # the socket timeout of the alias is 5 s
        assert all(lock.lost for lock in locks)
    finally:
        os.kill(own.process.pid, signal.SIGCONT)


def test_a_stopped_redis_of_one_alias_costs_no_lock_of_another(
    server: RedisServer,
    move: Callable[..., None],
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    renew_all: Callable[..., None],
) -> None:
    """R12: whatever one connection of the watchdog waits for, leases elsewhere are renewed in time."""
    with redis_server() as stuck:
        move(server.url, stuck=stuck.url)
        losses: list[LockLost] = []
        far = Lock(NAME, ttl=12, using="stuck")
        near = Lock(NAME, ttl=0.9, on_lost=losses.append)
        far.acquire()
        assert stuck.process is not None
        os.kill(stuck.process.pid, signal.SIGSTOP)
        try:
            near.acquire()
            renew_all("stuck")
            eventually(lambda: "event=renewal-failed alias=stuck" in caplog.text)
            assert losses == []
            assert near.owned()
            near.release()
        finally:
            os.kill(stuck.process.pid, signal.SIGCONT)


def test_the_end_of_a_lease_is_told_while_the_watchdog_waits_for_redis(
    between: Proxy, eventually: Eventually, caplog: pytest.LogCaptureFixture, renew_all: Callable[..., None]
) -> None:
    """R12: local deadlines are watched independently of I/O."""
    losses: list[LockLost] = []
    slow = Lock("slow", ttl=30)
    slow.acquire()
    held = between.hold_request("keep")
    renew_all()
    assert held.caught.wait(GENEROUS)
    quick = Lock(NAME, ttl=0.5, auto_renew=False, on_lost=losses.append)
    quick.acquire()
    eventually(lambda: losses)
    assert "event=renewal-failed" not in caplog.text  # the renewal of the other one is still waited for
    held.let_go()


def test_a_lock_taken_while_the_watchdog_waits_for_redis_is_renewed_in_time(
    between: Proxy, eventually: Eventually, caplog: pytest.LogCaptureFixture, renew_all: Callable[..., None]
) -> None:
    """R12: the watchdog waits at most a sixth of the smallest TTL, also of one that comes while it waits."""
    losses: list[LockLost] = []
    slow = Lock("slow", ttl=12)
    slow.acquire()
    held = between.hold_request("keep")
    renew_all()
    assert held.caught.wait(GENEROUS)
    quick = Lock(NAME, ttl=0.9, on_lost=losses.append)
    quick.acquire()
    eventually(lambda: "event=renewal-failed" in caplog.text)
    assert losses == []
    assert quick.owned()
    held.let_go()


def test_a_restart_of_redis_is_noticed_at_once(own: RedisServer, eventually: Eventually) -> None:
    """R12: after any reconnect the watchdog renews everything at once."""
    losses: list[LockLost] = []
    lock = Lock(NAME, ttl=10.0 * GENEROUS, on_lost=losses.append)
    lock.acquire()
    eventually(lambda: get_listener(get_backend()).ready)  # it is held for long, so its process listens
    own.stop()
    own.start()
    eventually(lambda: losses)
    assert lock.lost
    assert "gone from Redis" in losses[0].reason


# -- R13 ---------------------------------------------------------------------------------------------------------------

ADOPTER = """
say("ready")
token = hear()
lock = Lock(name, token=token, ttl=ttl)
if adopt:
    say("adopted", lock.acquire())
    hear()
lock.release()
say("released")
hear()
"""


def test_a_lock_that_another_process_adopted_and_released_is_no_loss(
    start: Start,
    client: redis.Redis,
    eventually: Eventually,
    a_round: Callable[[], None],
    renew_all: Callable[..., None],
) -> None:
    """R13: adoption writes the adopter's channel, and renewal ends silently when it finds another channel."""
    losses: list[LockLost] = []
    worker = start(ADOPTER, name=NAME, ttl=30, adopt=True)
    worker.expect("ready")
    lock = Lock(NAME, ttl=30, on_lost=losses.append)
    lock.acquire()
    value = client.get(KEYS.lock)
    worker.tell(str(lock.token))
    assert worker.expect("adopted") == ["True"]
    assert client.get(KEYS.lock) != value
    renew_all()
    a_round()
    worker.tell()
    worker.expect("released")
    renew_all()
    a_round()
    assert losses == []
    assert holder(client) == ""


def test_a_lock_that_another_process_adopted_and_released_at_once_is_no_loss(
    start: Start,
    client: redis.Redis,
    listening: Callable[[], None],
    a_round: Callable[[], None],
    renew_all: Callable[..., None],
) -> None:
    """R13: the same when no renewal came between adoption and release."""
    listening()
    losses: list[LockLost] = []
    worker = start(ADOPTER, name=NAME, ttl=30, adopt=True)
    worker.expect("ready")
    lock = Lock(NAME, ttl=30, on_lost=losses.append)
    lock.acquire()
    worker.tell(str(lock.token))
    assert worker.expect("adopted") == ["True"]
    worker.tell()
    worker.expect("released")
    a_round()
    renew_all()
    a_round()
    assert losses == []
    assert holder(client) == ""


def test_a_lock_that_another_process_released_by_its_token_is_no_loss(
    start: Start,
    client: redis.Redis,
    listening: Callable[[], None],
    a_round: Callable[[], None],
    renew_all: Callable[..., None],
) -> None:
    """R13: a release by another process tells the recorded channel."""
    listening()
    losses: list[LockLost] = []
    worker = start(ADOPTER, name=NAME, ttl=30, adopt=False)
    worker.expect("ready")
    lock = Lock(NAME, ttl=30, on_lost=losses.append)
    lock.acquire()
    worker.tell(str(lock.token))
    worker.expect("released")
    a_round()
    renew_all()
    a_round()
    assert losses == []
    assert holder(client) == ""
    assert lock.acquire()  # nothing here is left of the first acquisition


def test_the_lock_of_an_adopter_that_died_is_not_renewed_by_the_first_process(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    """R13: renewal compares token and channel."""
    losses: list[LockLost] = []
    worker = start(ADOPTER, name=NAME, ttl=1.5, adopt=True)
    worker.expect("ready")
    lock = Lock(NAME, ttl=1.5, on_lost=losses.append)
    lock.acquire()
    worker.tell(str(lock.token))
    assert worker.expect("adopted") == ["True"]
    worker.kill()
    eventually(lambda: holder(client) == "", within=6)
    assert losses == []


# -- R14 ---------------------------------------------------------------------------------------------------------------

PATHS: dict[str, tuple[bool, Callable[[Lock], object]]] = {
    "acquire": (False, lambda lock: lock.acquire()),
    "release": (True, lambda lock: lock.release()),
    "extend": (True, lambda lock: lock.extend(1)),
    "detach": (True, lambda lock: lock.detach()),
    "info": (True, lambda lock: lock.info()),
    "force_release": (True, lambda lock: force_release(lock.name)),
    "release of an adopted token": (False, lambda lock: Lock(lock.name, token=_taken(lock.name)).release()),
}


def _taken(name: str) -> str:
    lock = Lock(name)
    lock.acquire()
    token = lock.detach()
    with redis.Redis.from_url(os.environ["REDISLOCK_TEST_URL"]) as client:
        client.script_flush()
    return token


@pytest.mark.parametrize("path", PATHS)
def test_a_script_flush_hurts_no_call(path: str, client: redis.Redis) -> None:
    """R14: NOSCRIPT reloads and repeats."""
    held, call = PATHS[path]
    lock = Lock(NAME)
    if held:
        lock.acquire()
    client.script_flush()
    call(lock)
    assert bool(holder(client)) == (path in ("acquire", "extend", "detach", "info"))


def test_a_script_flush_hurts_no_waiter(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    """R14: the same for one who queues, looks, is handed the lock and gives up."""
    lock = FairLock(NAME)
    lock.acquire()
    client.script_flush()
    waiting = other().start(lambda: FairLock(NAME).acquire(blocking_timeout=GENEROUS))
    eventually(lambda: client.zcard(KEYS.queue) == 1)
    leaving = other().start(lambda: FairLock(NAME).acquire(blocking_timeout=0.3))
    eventually(lambda: client.zcard(KEYS.queue) == 2)
    client.script_flush()
    assert leaving.result(GENEROUS) is False
    assert client.zcard(KEYS.queue) == 1
    client.script_flush()
    lock.release()
    assert waiting.result(GENEROUS) is True


def test_a_script_flush_hurts_no_renewal_of_many_locks_in_one_pipeline(
    client: redis.Redis, eventually: Eventually, renew_all: Callable[..., None]
) -> None:
    """R14: per command in pipelines."""
    losses: list[LockLost] = []
    locks = [Lock(f"{NAME}:{number}", ttl=300, on_lost=losses.append) for number in range(5)]
    keys = [make_keys("redislock{0}:", lock.name).lock for lock in locks]
    for lock, key in zip(locks, keys, strict=True):
        lock.acquire()
        client.pexpire(key, 10_000 * GENEROUS // 10)
    client.script_flush()
    renew_all()
    eventually(lambda: all(int(client.pttl(key)) > 200_000 for key in keys))
    assert losses == []


# -- R15 ---------------------------------------------------------------------------------------------------------------


def test_info_counts_ten_thousand_waiters_and_fetches_a_hundred(
    ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """R15: info gives the count and the first 100 waiters; an answer to a refused request fetches none."""
    lock = Lock(NAME)
    lock.acquire()
    waiter = ghost()
    waiter.queue(f"{TOKEN}-0", mode="F", age=GENEROUS)
    entry = client.hget(KEYS.waiters, f"{TOKEN}-0")
    assert isinstance(entry, bytes)
    now = server_time(client)
    tokens = [f"{TOKEN}-{number}" for number in range(10_000)]
    client.zadd(KEYS.queue, {token: now + number for number, token in enumerate(tokens[1:])})
    client.hset(KEYS.waiters, mapping=dict.fromkeys(tokens, entry))
    before = _bytes_sent(client)
    info = lock.info()
    assert info is not None
    assert (info.waiters, len(info.queue)) == (10_000, 100)
    assert info.queue[0].waited > GENEROUS - 1
    assert _bytes_sent(client) - before < 100_000
    none = run(inspect(get_backend(), NAME, waiters=0))
    assert none is not None
    assert (none.waiters, none.queue) == (10_000, ())


def _bytes_sent(client: redis.Redis) -> int:
    return int(client.info("stats")["total_net_output_bytes"])


def test_an_answer_without_waiters_does_not_touch_the_queue(ghost: Callable[..., Ghost], client: redis.Redis) -> None:
    """R15: a 423 answer fetches no waiters."""
    Lock(NAME).acquire()
    ghost().queue(TOKEN, mode="F")
    before = calls(client, "zrange"), calls(client, "hmget")
    answer = run(scripts.info(get_backend(), KEYS, NAME, 0))
    assert answer[3:] == [1, [], []]
    assert (calls(client, "zrange"), calls(client, "hmget")) == before
