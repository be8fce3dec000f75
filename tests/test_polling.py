"""``wait="poll"``: locks on a server behind a proxy that knows no pub/sub."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff, DecorrelatedJitterBackoff, ExponentialBackoff, NoBackoff

from django_redislock import (
    FairLock,
    Lock,
    LockedCommand,
    LockNotAcquired,
    LockPool,
    force_release,
    listener,
    locked,
    locked_atomic,
    locked_view,
)
from django_redislock.connection import get_backend
from django_redislock.listener import get_listener
from django_redislock.polling import LONGEST, SHORTEST, Pace, as_polled
from redisserver import RedisServer

from .actors import GENEROUS, KEYS, NAME, Actor, Other, holder, queued, server_time
from .processes import Worker
from .proxy import Proxy, proxy

Eventually = Callable[..., Any]
Start = Callable[..., Worker]
LONG = 600.0  # seconds; a test that waits for that has failed
SOON = ConstantBackoff(0.01)

# A process that polls for one lock.
POLLS = """
from redis.backoff import ConstantBackoff
lock = FairLock(name, wait="poll", blocking_timeout=60, backoff=ConstantBackoff(delay))
say("ready")
hear()
say("got" if lock.acquire() else "left", lock.fence)
hear()
lock.release()
say("released")
hear()
"""


def entries(client: Any) -> dict[str, tuple[str, int]]:
    """Channel and until when it counts as alive, of each waiter by its token."""
    found = {}
    for token, entry in client.hgetall(KEYS.waiters).items():
        if token != b"!":
            _, channel, _, till, _ = entry.decode().split(" ", 4)
            found[token.decode()] = channel, int(till)
    return found


def in_order(client: Any) -> list[str]:
    return [token.decode() for token in client.zrange(KEYS.queue, 0, -1)]


def calls(client: redis.Redis, command: str) -> int:
    stats: Any = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


# -- no pub/sub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_pubsub(server: RedisServer, settings: Any) -> Iterator[Proxy]:
    """The default alias leads through a proxy that cuts the connection of whoever subscribes."""
    with proxy(server.port) as running:
        default = {**settings.CACHES["default"], "LOCATION": running.url}
        settings.CACHES = {**settings.CACHES, "default": default}
        yield running


@pytest.fixture
def mute(client: redis.Redis, server: RedisServer, settings: Any) -> Iterator[None]:
    """The user of the default alias has no right to any channel."""
    client.execute_command("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "-subscribe", "resetchannels")
    url = f"redis://mute:secret@127.0.0.1:{server.port}/0"
    settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": url}}
    yield
    client.execute_command("ACL", "DELUSER", "mute")


def test_where_nobody_can_subscribe_nobody_does(
    kind: type[Lock],
    no_pubsub: Proxy,
    other: Callable[[], Other],
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    subscribing = no_pubsub.lose_answer("SUBSCRIBE", times=1000)
    first, second = other(), other()
    lock = kind(NAME, wait="poll", ttl=4)
    first(lock.acquire)
    waiting = second.start(lambda: kind(NAME, wait="poll").acquire(blocking_timeout=GENEROUS))
    fence, begin = first(lambda: lock.fence), monotonic()
    eventually(lambda: monotonic() - begin > 4.3)  # longer than the TTL: it was renewed
    assert first(lock.owned)
    assert first(lambda: lock.fence) == fence
    first(lock.release)
    assert waiting.result(GENEROUS)
    assert subscribing.met == 0
    assert get_listener(get_backend())._thread is None
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []


@pytest.mark.usefixtures("mute")
def test_a_user_without_a_right_to_any_channel_can_poll(
    kind: type[Lock], other: Callable[[], Other], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    lock = kind(NAME, wait="poll")
    lock.acquire()
    client = kind(NAME, wait="poll")
    waiting = other().start(lambda: client.acquire(blocking_timeout=GENEROUS))
    eventually(lambda: (info := lock.info()) and info.waiters == 1)
    lock.release()
    assert waiting.result(GENEROUS)
    assert get_listener(get_backend())._thread is None
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []


@pytest.mark.usefixtures("fresh")
def test_a_holder_that_polls_hears_of_its_loss_at_its_next_renewal(eventually: Eventually) -> None:
    losses: list[Exception] = []
    lock = Lock(NAME, wait="poll", ttl=1, on_lost=losses.append)
    lock.acquire()
    force_release(NAME)
    eventually(lambda: losses)
    assert lock.lost
    assert get_listener(get_backend())._thread is None


@pytest.mark.usefixtures("fresh")
def test_the_setting_lets_all_locks_poll(
    settings: Any, client: redis.Redis, other: Callable[[], Other], eventually: Eventually
) -> None:
    settings.REDISLOCK = {"WAIT": "poll"}
    with Lock(NAME):
        waiting = other().start(lambda: Lock(NAME, attempts=3, backoff=SOON).acquire())
        assert waiting.result(GENEROUS) is False
        polling = other().start(lambda: Lock(NAME).acquire())
        eventually(lambda: queued(client))
        assert [channel for channel, _ in entries(client).values()] == ["-"]
    assert polling.result(GENEROUS)
    assert get_listener(get_backend())._thread is None


# -- order -------------------------------------------------------------------------------------------------------------


def test_processes_that_poll_get_a_fair_lock_in_the_order_in_which_they_asked(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    workers = [start(POLLS, name=NAME, delay=0.02 + number % 3 / 10) for number in range(8)]
    for worker in workers:
        worker.expect("ready")
    lock = FairLock(NAME)
    lock.acquire()
    for number, worker in enumerate(workers):
        worker.tell()
        eventually(lambda number=number: queued(client) == number + 1)
    lock.release()
    fences = []
    for worker in workers:
        (fence,) = worker.expect("got")
        fences.append(int(fence))
        worker.tell()
        worker.expect("released")
    assert fences == sorted(fences)
    assert len(set(fences)) == 8


def test_those_who_poll_and_those_who_are_woken_share_one_queue(
    other: Callable[[], Other], client: redis.Redis, eventually: Eventually
) -> None:
    got: list[int] = []

    def take(number: int) -> None:
        with FairLock(NAME, wait="poll" if number % 3 else "wake", blocking_timeout=GENEROUS):
            got.append(number)

    waiting = []
    with FairLock(NAME):
        for number in range(9):
            waiting.append(other().start(partial(take, number)))
            eventually(lambda number=number: queued(client) == number + 1)
        known = entries(client)
        assert [known[token][0] == "-" for token in in_order(client)] == [number % 3 > 0 for number in range(9)]
    for one in waiting:
        one.result(GENEROUS)
    assert got == list(range(9))


@pytest.mark.parametrize("dead", [1, 2])
@pytest.mark.parametrize("wait", ["wake", "poll"])
def test_polled_heads_that_died_cost_four_of_their_delays(
    wait: Any,
    dead: int,
    start: Start,
    client: redis.Redis,
    other: Callable[[], Other],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "LOOK_EVERY", LONG)
    workers = [start(POLLS, name=NAME, delay=0.4) for _ in range(dead)]
    lock = FairLock(NAME)
    lock.acquire()
    for number, worker in enumerate(workers):
        worker.expect("ready")
        worker.tell()
        eventually(lambda number=number: queued(client) == number + 1)
    waiting = other().start(lambda: FairLock(NAME, wait=wait).acquire(blocking_timeout=LONG))
    eventually(lambda: queued(client) == dead + 1)
    for worker in workers:
        worker.kill()
    lock.release()
    begin = monotonic()
    assert waiting.result(GENEROUS)
    assert monotonic() - begin < 4 * 0.4 + 1


def test_a_waiter_with_a_long_delay_counts_as_alive_for_four_of_them(
    client: redis.Redis, other: Callable[[], Other], eventually: Eventually
) -> None:
    lock = FairLock(NAME)
    lock.acquire()
    waiter = FairLock(NAME, wait="poll", backoff=ConstantBackoff(2), blocking_timeout=GENEROUS)
    waiting = other().start(waiter.acquire)
    eventually(lambda: queued(client))
    ((_, till),) = entries(client).values()
    assert 7 < (till - server_time(client)) / 1e6 <= 8
    lock.release()
    assert not FairLock(NAME).acquire(blocking=False)
    assert waiting.result(GENEROUS)


def test_a_polled_waiter_that_was_counted_out_comes_back_to_its_place(
    client: redis.Redis, other: Callable[[], Other], eventually: Eventually
) -> None:
    lock = FairLock(NAME)
    lock.acquire()
    first = other().start(FairLock(NAME, wait="poll", backoff=SOON).acquire)
    (token,) = eventually(lambda: in_order(client))
    second = other().start(lambda: FairLock(NAME).acquire(blocking_timeout=GENEROUS))
    eventually(lambda: queued(client) == 2)
    client.zrem(KEYS.queue, token)
    client.hdel(KEYS.waiters, token)
    eventually(lambda: in_order(client)[0] == token)
    lock.release()
    assert first.result(GENEROUS)
    assert holder(client) == token
    force_release(NAME)
    assert second.result(GENEROUS)


def test_a_member_of_a_pool_can_be_polled_for(
    settings: Any, client: redis.Redis, other: Callable[[], Other], eventually: Eventually
) -> None:
    settings.REDISLOCK = {"WAIT": "poll"}
    pool = LockPool("accounts")
    pool.extend(["alice"])
    held = pool.acquire()
    with pytest.raises(LockNotAcquired) as caught:
        other()(lambda: pool.acquire(blocking_timeout=0.1))
    assert caught.value.attempts > 1
    assert caught.value.waited >= 0.1
    thread = other()
    waiting = thread.start(lambda: pool.acquire(fair=True))
    eventually(lambda: client.keys("*queue:pool:accounts:"))
    held.release()
    member = waiting.result(GENEROUS)
    assert member.key == "alice"
    thread(member.release)


def test_who_waits_for_any_member_behind_a_polled_head_that_died_gets_one(
    settings: Any,
    start: Start,
    client: redis.Redis,
    other: Callable[[], Other],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "LOOK_EVERY", LONG)
    pool = LockPool("accounts")
    pool.extend(["alice"])
    held = pool.acquire()
    worker = start("""
from django.test import override_settings
with override_settings(REDISLOCK={"WAIT": "poll"}):
    LockPool("accounts").acquire(fair=True)
""")
    queue = "redislock{0}:queue:pool:accounts:"
    eventually(lambda: client.zcard(queue) == 1)
    thread = other()
    waiting = thread.start(lambda: pool.acquire(fair=True))
    eventually(lambda: client.zcard(queue) == 2)
    worker.kill()
    held.release()
    begin = monotonic()
    member = waiting.result(GENEROUS)
    assert monotonic() - begin < 4 * 0.5 + 1
    thread(member.release)


# -- how often, how long -----------------------------------------------------------------------------------------------


def test_so_many_attempts_are_so_many_calls(kind: type[Lock], client: redis.Redis, other: Callable[[], Other]) -> None:
    other()(kind(NAME).acquire)
    lock = kind(NAME, wait="poll", attempts=7, backoff=SOON)
    client.config_resetstat()
    with pytest.raises(LockNotAcquired) as caught:
        lock.__enter__()
    assert calls(client, "evalsha") == 7 + 1  # and one to leave the queue
    assert caught.value.attempts == 7
    assert queued(client) == 0


async def test_so_many_attempts_of_a_coroutine_are_so_many_calls(
    kind: type[Lock], client: redis.Redis, actor: Callable[[], Actor]
) -> None:
    await actor()(kind(NAME).aacquire)
    lock = kind(NAME, wait="poll", attempts=7, backoff=SOON)
    client.config_resetstat()
    with pytest.raises(LockNotAcquired) as caught:
        await lock.__aenter__()
    assert calls(client, "evalsha") == 7 + 1
    assert caught.value.attempts == 7
    assert queued(client) == 0


def test_one_attempt_does_not_queue_and_does_not_sleep(client: redis.Redis, other: Callable[[], Other]) -> None:
    other()(Lock(NAME).acquire)
    client.config_resetstat()
    assert not Lock(NAME, wait="poll", attempts=1, backoff=ConstantBackoff(LONG)).acquire()
    assert calls(client, "evalsha") == 1
    assert queued(client) == 0


def test_there_is_no_delay_after_the_last_attempt(other: Callable[[], Other]) -> None:
    class Recorded(ConstantBackoff):
        def compute(self, failures: int) -> float:
            return 0.01 if failures < 3 else LONG

    other()(Lock(NAME).acquire)
    assert not Lock(NAME, wait="poll", attempts=3, backoff=Recorded(0)).acquire()


def test_there_is_no_delay_beyond_the_deadline_and_the_last_attempt_comes_there(
    kind: type[Lock], client: redis.Redis, other: Callable[[], Other], eventually: Eventually
) -> None:
    patient = {"wait": "poll", "backoff": ConstantBackoff(10), "blocking_timeout": 0.4}
    begin = monotonic()
    with kind(NAME):
        with pytest.raises(LockNotAcquired) as caught:
            other()(kind(NAME, **patient).__enter__)  # type: ignore[arg-type]
        assert caught.value.attempts == 2
        assert 0.4 <= caught.value.waited < monotonic() - begin < 5
        waiting = other().start(kind(NAME, **patient).acquire)  # type: ignore[arg-type]
        eventually(lambda: queued(client))
    assert waiting.result(5)


def test_a_reentrant_wait_of_so_many_attempts_for_oneself_is_no_wait_without_end() -> None:
    with Lock(NAME):
        assert not Lock(NAME, wait="poll", attempts=2, backoff=SOON).acquire()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("wait", ["wake", "poll"])
def test_who_is_refused_hears_how_often_and_how_long_it_tried(wait: Any, other: Callable[[], Other]) -> None:
    @locked(NAME, blocking_timeout=0.1, wait=wait)
    def function() -> None: ...

    other()(Lock(NAME, ttl=20).acquire)
    ways: list[Callable[[], Any]] = [
        function,
        Lock(NAME, blocking_timeout=0.1, wait=wait).__enter__,
        locked_atomic(NAME, blocking_timeout=0.1, wait=wait).__enter__,
    ]
    for way in ways:
        with pytest.raises(LockNotAcquired, match=r"in time: \d+ attempts? in 0\.\d+ s\.$") as caught:
            way()
        assert caught.value.attempts >= 1
        assert 0.1 <= caught.value.waited < 5
        assert 15 < caught.value.busy_for <= 20


@pytest.mark.parametrize("wait", ["wake", "poll"])
async def test_a_coroutine_that_is_refused_hears_how_often_and_how_long_it_tried(
    wait: Any, actor: Callable[[], Actor]
) -> None:
    @locked(NAME, blocking_timeout=0.1, wait=wait)
    async def function() -> None: ...

    await actor()(Lock(NAME).aacquire)
    for way in (function, Lock(NAME, blocking_timeout=0.1, wait=wait).__aenter__):
        with pytest.raises(LockNotAcquired, match=r"in time: \d+ attempts? in 0\.\d+ s\.$") as caught:
            await way()
        assert caught.value.attempts >= 1
        assert 0.1 <= caught.value.waited < 5


def test_a_single_try_is_one_attempt(other: Callable[[], Other]) -> None:
    other()(Lock(NAME).acquire)
    with pytest.raises(LockNotAcquired, match=r": 1 attempt in 0\.\d+ s\.$") as caught:
        Lock(NAME, blocking=False).__enter__()
    assert caught.value.attempts == 1


# -- coroutines --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh")
async def test_coroutines_poll_in_order(client: redis.Redis, aeventually: Callable[..., Any]) -> None:
    got: list[int] = []

    async def take(number: int) -> None:
        async with FairLock(NAME, wait="poll", backoff=ConstantBackoff(0.02)):
            got.append(number)

    tasks = []
    async with FairLock(NAME, wait="poll"):
        for number in range(20):
            tasks.append(asyncio.create_task(take(number)))
            await aeventually(lambda number=number: queued(client) == number + 1)
    await asyncio.gather(*tasks)
    assert got == list(range(20))
    assert get_listener(get_backend())._thread is None


def test_threads_of_many_objects_poll_and_exclude_each_other(kind: type[Lock]) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(10):
            with kind(NAME, wait="poll", backoff=ConstantBackoff(0.002)):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GENEROUS)
        assert not thread.is_alive()
    assert most == 1


def test_the_memory_mode_can_poll(settings: Any, other: Callable[[], Other]) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    with FairLock(NAME) as lock:
        waiting = other().start(FairLock(NAME, wait="poll").acquire)
        while not (info := lock.info()) or not info.waiters:
            pass
    assert waiting.result(GENEROUS)


# -- the pace ----------------------------------------------------------------------------------------------------------


def test_a_long_wait_is_no_large_number() -> None:
    pace = Pace(ExponentialBackoff(cap=0.5, base=0.02))
    assert [pace.next() for _ in range(3000)][-1] == 0.5


def test_a_backoff_that_remembers_is_not_shared() -> None:
    given = DecorrelatedJitterBackoff(cap=1000, base=1)
    for failures in (1, 2, 3):
        given.compute(failures)
    before = dict(vars(given))
    for _ in range(2):
        pace = Pace(given)
        assert 1 <= pace.next() <= 1.0  # it begins anew: the first is the base
    assert vars(given) == before


@pytest.mark.parametrize(("delay", "look"), [(0, SHORTEST), (0.3, 0.3), (3600, LONGEST)])
def test_a_delay_stays_within_what_a_queue_bears(delay: float, look: float) -> None:
    assert Pace(ConstantBackoff(delay)).next_look() == look
    assert Pace(NoBackoff()).next_look() == SHORTEST


@pytest.mark.parametrize(("delay", "patience"), [(0.02, "p1000"), (0.5, "p2000"), (15, "p60000")])
def test_a_waiter_counts_as_alive_for_four_delays_and_for_a_second_at_least(delay: float, patience: str) -> None:
    assert as_polled(delay) == patience


# -- options -----------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"wait": "polling"}, ValueError, "wait must be one of 'wake', 'poll', not 'polling'"),
    ({"wait": True}, ValueError, "wait must be one of"),
    ({"wait": "poll", "backoff": ConstantBackoff}, TypeError, "backoff must be an instance of one of redis-py's"),
    ({"wait": "poll", "backoff": 0.1}, TypeError, "not 0.1"),
    ({"wait": "poll", "attempts": 0}, ValueError, "attempts must be 1 or more, not 0"),
    ({"wait": "poll", "attempts": 1.5}, TypeError, "attempts must be an int"),
    ({"wait": "poll", "attempts": True}, TypeError, "attempts must be an int"),
    ({"backoff": SOON}, ValueError, "backoff can only be given with wait='poll'"),
    ({"attempts": 3}, ValueError, "attempts can only be given with wait='poll'"),
    ({"wait": "wake", "attempts": 3, "backoff": SOON}, ValueError, "backoff and attempts can only be given"),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG)
def test_what_cannot_be_an_option_of_polling_is_refused_before_anything_is_sent(
    options: dict[str, Any], error: type[Exception], text: str, client: redis.Redis
) -> None:
    client.config_resetstat()
    for make in (Lock, FairLock, locked, locked_view, locked_atomic):
        with pytest.raises(error, match=text):
            make(NAME, **options)
    assert calls(client, "evalsha") == 0


def test_an_explicit_wait_beats_the_setting(settings: Any) -> None:
    settings.REDISLOCK = {"WAIT": "poll"}
    assert Lock(NAME, attempts=3)
    with pytest.raises(ValueError, match="REDISLOCK\\['WAIT'\\] is 'poll'"):
        Lock(NAME, wait="wake", attempts=3)


def test_a_command_can_poll(other: Callable[[], Other], client: redis.Redis) -> None:
    class Command(LockedCommand):
        lock_name = NAME
        lock_wait = GENEROUS
        lock_options = {"wait": "poll", "attempts": 2, "backoff": SOON}

    other()(Lock(NAME).acquire)
    client.config_resetstat()
    with pytest.raises(Exception, match="is held by"):
        Command().execute(no_color=True, force_color=False, skip_checks=True)
    assert calls(client, "evalsha") == 2 + 1 + 1  # and who it is that holds it
