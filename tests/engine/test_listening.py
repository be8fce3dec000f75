"""Messages: how a process subscribes, who reads, and what waiters and holders see when that is disturbed; and
``poll=True``, for locks without messages."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff

from django_redislock import Lock, LockNotAcquired, LockPool, force_release, locked
from redisserver import RedisServer, redis_server
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Other, asked_for, auntil, server_time, until
from tests.helpers.cancelling import Interrupt
from tests.helpers.proxy import Proxy
from tests.helpers.servers import Twins
from tests.helpers.state import NAME, QUEUE, WAITERS, count, put, queued
from tests.helpers.ways import DJANGO_REDIS, alias, caches
from tests.inside import hears, limit, listen, own_channel, subscriptions


@pytest.mark.usefixtures("fresh")
def test_threads_that_wait_at_once_share_one_subscription_which_ends_with_the_settings(
    client: redis.Redis, settings: Any
) -> None:
    put(client, "held", ttl=600)
    threads = [threading.Thread(target=Lock("held", ttl=600).acquire) for _ in range(3)]
    with inside.first_listener_held_up() as waits:
        for thread in threads:
            thread.start()
        until(lambda: all(waits(thread) for thread in threads))
    until(lambda: queued(client, "held") == 3)
    channel = own_channel()
    assert client.pubsub_numsub(channel)[0][1] == 1
    until(lambda: [force_release("held")] and not any(thread.is_alive() for thread in threads))
    settings.CACHES = {**settings.CACHES}
    until(lambda: not client.pubsub_numsub(channel)[0][1])


def test_without_threads_waiters_poll_until_there_are_some_again_and_an_answer_is_not_lost(
    network: Proxy, crowd: Crowd, client: redis.Redis, no_threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen()
    until(hears)
    before = subscriptions()
    with Lock(NAME):
        pass  # the renewer's own thread runs
    no_threads(True)
    with monkeypatch.context() as patch:
        inside.subscribe_elsewhere(patch, "default")  # C3: another node answers than the one subscribed to
        assert not Lock(NAME).locked()
    network.cut()
    until(lambda: not hears())
    network.mend()
    me, lock = crowd(), Lock(NAME)
    with Lock(NAME):
        waiting = wait_in_line(me, lock, client)
    assert waiting.result(GENEROUS)
    assert not hears()
    no_threads(False)
    until(lambda: hears() and subscriptions() > before)  # for a lock that is held for 100 ms
    me(lock, "release")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["redislock-subscriber", "redislock-watchdog"])
def test_the_start_of_a_thread_that_is_interrupted_leaves_one_thread_in_the_end(
    name: str, late: bool, network: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``late``: it runs by then. Otherwise it does so when another one has been started already."""
    before, struck, gate = threading.enumerate(), list[threading.Thread](), threading.Event()
    start = threading.Thread.start
    probed = network.hold_answer("SHARDNUMSUB")

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != name or struck:
            start(thread)
            return
        struck.append(thread)
        start(thread if late else threading.Thread(target=lambda: gate.wait(GENEROUS) and start(thread)))
        raise Interrupt

    def use() -> None:
        if name == "redislock-subscriber":
            listen()
        else:
            Lock(NAME, ttl=600).acquire(blocking=False)

    def others() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == name and thread not in before]

    inside.become_another_process(monkeypatch)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(Interrupt):
        use()
    use()
    gate.set()
    until(lambda: struck[0].ident)
    until(lambda: len(others()) == 1)
    probed.let_go()


def test_messages_that_come_while_others_subscribe_are_no_confirmations() -> None:
    assert inside.confirmed_amid_messages()


def test_a_waiter_that_another_server_does_not_count_is_subscribed_there(
    network: Proxy,
    client: redis.Redis,
    settings: Any,
    other: Callable[[], Other],
    monkeypatch: pytest.MonkeyPatch,
    retry_for: Callable[[float], None],
) -> None:
    """R19: a waiter whose process is subscribed at a former master is dropped by every release at the new one."""
    limit(monkeypatch, look_every=0.2)
    retry_for(0)
    with redis_server() as second, second.client() as there:
        listen()
        until(lambda: hears())
        before, network.target = subscriptions(), second.port
        client.client_kill_filter(_type="normal", skipme=True)
        with Lock("warm-up"):
            pass  # the scripts are known there
        put(there, NAME)
        unanswered = network.lose_answer("SHARDNUMSUB", times=2)  # it is asked again once
        waiting = other().start(Lock(NAME).acquire)
        # it is dropped by one release after the other; the first time, the question whether it is counted fails
        until(lambda: there.delete(QUEUE, WAITERS) is not None and hears() and subscriptions() > before)
        until(lambda: queued(there))
        assert unanswered.met == 2
        force_release(NAME)
        assert waiting.result(GENEROUS)
        settings.CACHES = {**settings.CACHES}


@pytest.fixture
def held() -> Lock:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    return lock


def make_it_read(client: redis.Redis) -> None:
    """Have the one thread that waits for the lock NAME read the messages: it does once it was told something and waits
    again. It is told repeatedly, as the first time may be before it has begun to wait."""
    (id,) = list[Any](client.zrange(QUEUE, 0, -1))
    tell = partial(client.publish, own_channel(), f"w {id.decode()} {NAME}")
    until(asked_for(inside.a_waiter_reads, tell, every=2))


@pytest.mark.parametrize(
    ("trouble", "reads"), [(each, reads) for each in inside.TROUBLES for reads in (True, False)][:-1]
)
def test_a_connection_that_is_cut_or_yields_nonsense_is_replaced_whoever_reads_it(
    trouble: str, reads: bool, held: Lock, other: Callable[[], Other], client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch, caplog: Any,
) -> None:  # fmt: skip
    """R18: a thread that is interrupted while it reads (nobody interrupts the listener's) leaves nobody deaf."""
    limit(monkeypatch, reads_for=600)
    waiting = other().start(Lock(NAME, ttl=600).acquire)
    until(lambda: queued(client) and hears())
    if reads:
        make_it_read(client)
    before, met = subscriptions(), inside.trouble_reading(monkeypatch, trouble)
    client.publish(own_channel(), "something else")
    until(lambda: met.is_set() and hears() and subscriptions() > before)
    assert trouble != "interrupted" or "listener-disconnected" not in caplog.text
    if trouble == "interrupted":
        with pytest.raises(Interrupt):
            waiting.result(GENEROUS)
        waiting = other().start(Lock(NAME, ttl=600).acquire)
        until(lambda: queued(client) == 1)
    assert not waiting.done()
    held.release()
    assert waiting.result(GENEROUS) is True


@pytest.mark.usefixtures("fresh")  # the listener's thread rests for as long as an earlier test has said
def test_a_thread_that_is_interrupted_before_it_reads_leaves_nobody_deaf(
    held: Lock, other: Callable[[], Other], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18: where it is the one that reads already, and cannot say that it no longer does."""
    reading = other().start(Lock(NAME, ttl=600).acquire)
    until(lambda: queued(client) and hears())
    (id,) = list[Any](client.zrange(QUEUE, 0, -1))
    before, struck = subscriptions(), inside.interrupt_who_begins_to_read(monkeypatch)
    until(lambda: client.publish(own_channel(), f"w {id.decode()} {NAME}") and struck.is_set())
    with pytest.raises(Interrupt):
        reading.result(GENEROUS)
    until(lambda: hears() and subscriptions() > before)
    waiting = other().start(Lock(NAME, ttl=600).acquire)
    until(lambda: queued(client) == 1)
    held.release()
    assert waiting.result(GENEROUS) is True


@pytest.fixture
def reading(
    held: Lock, other: Callable[[], Other], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> Future[bool]:
    """One that waits for the lock NAME, and reads the messages."""
    limit(monkeypatch, reads_for=600)
    reading = other().start(Lock(NAME, ttl=600).acquire)
    until(lambda: queued(client) and hears())
    make_it_read(client)
    return reading


@pytest.mark.usefixtures("no_look_by_the_clock")
def test_who_begins_to_wait_while_a_thread_reads_or_after_that_is_told_as_well(
    held: Lock, reading: Future[bool], crowd: Crowd, client: redis.Redis
) -> None:
    """By that thread, and when it has what it waited for by the listener's, which has rested meanwhile and reads for
    coroutines and for several threads."""

    def wait(*names: str) -> None:
        for name in names:
            locks[name] = Lock(name, ttl=600)
            locks[name].acquire()
            waiting[name] = crowd().start(Lock(name), "acquire")
        until(lambda: all(queued(client, name) for name in names))

    locks, waiting = dict[str, Lock](), dict[str, Future[bool]]()
    wait("one", "two")
    locks["one"].release()
    assert waiting["one"].result(GENEROUS)
    held.release()
    assert reading.result(GENEROUS)
    wait("three")
    for name in ("three", "two"):
        locks[name].release()
        assert waiting[name].result(GENEROUS)


def test_a_thread_reads_for_a_short_time_only(
    held: Lock, other: Callable[[], Other], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, reads_for=600)
    waiting = other().start(Lock(NAME, ttl=600).acquire)
    until(lambda: queued(client) and hears())
    limit(monkeypatch, reads_for=GENEROUS / 100)
    make_it_read(client)
    until(lambda: not inside.a_waiter_reads())
    held.release()
    assert waiting.result(GENEROUS)


def test_a_connection_that_is_cut_before_anybody_reads_it_is_replaced(
    client: redis.Redis, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.cut_before_it_is_read(monkeypatch)
    listen()
    channel = own_channel()
    until(lambda: subscriptions() > 1 and hears() and client.pubsub_numsub(channel) == [(channel.encode(), 1)])


def test_where_messages_no_longer_arrive_those_who_wait_look_by_themselves(
    crowd: Crowd, network: Proxy, client: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=600)
    settings.REDISLOCK = {"SLOW_WAIT": None}
    me, you, lock = crowd(), crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    waiting = wait_in_line(you, Lock(NAME), client)
    until(hears)
    network.lose_answer("SUBSCRIBE", times=1000)
    client.client_kill_filter(_type="pubsub")
    until(lambda: not hears())
    me(lock, "release")
    assert waiting.result(GENEROUS)


async def test_looks_by_the_clock_keep_no_newcomer_waiting(
    network: Proxy, client: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them are due than the connections carry."""
    settings.REDISLOCK = {"MAX_CONNECTIONS": 2, "SLOW_WAIT": None}
    names = [f"order:{number}" for number in range(50)]
    for name in names:
        put(client, name, ttl=600)
    limit(monkeypatch, look_every=0.2)
    waiting = [asyncio.create_task(Lock(name).aacquire()) for name in names]
    await auntil(lambda: all(queued(client, name) for name in names))
    late = network.delay_answer(inside.ACQUIRE, 0.05, times=1_000_000)
    await auntil(lambda: late.met > 10)
    async with Lock("free"):
        pass
    late.end()
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


@pytest.mark.complete
@pytest.mark.parametrize("parser", ["_RESP2Parser", "_HiredisParser"])
def test_a_subscription_outlasts_silence_whichever_parser_reads_it(
    parser: str, client: redis.Redis, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, message_within=0.1)
    own = alias(DJANGO_REDIS, server.url)
    own["OPTIONS"]["PARSER_CLASS"] = f"redis._parsers.{parser}"
    with caches(own):
        listen()
        until(lambda: hears() and inside.heard())
        subscribed, since = subscriptions(), server_time(client)
        until(lambda: server_time(client) > since + 500_000)
        assert hears()
        assert subscriptions() == subscribed


ONE, ANOTHER = "@" + "a" * 40, "@" + "b" * 40


@pytest.mark.usefixtures("no_look_by_the_clock")
@pytest.mark.parametrize(
    ("known", "lease", "by"),
    [
        ({"clock": False}, 1, ""),
        ({"node": ONE}, 30_000, ANOTHER),  # C3: a master of before is heard through the new one
        ({"node": ONE}, 30_000, ""),
        ({"node": "@?"}, 30_000, "@?"),
        ({"node": ONE, "doubted": True}, 30_000, ONE),  # C7: nobody has confirmed yet that it is still a master
    ],
)
def test_a_grant_of_which_it_is_not_known_whether_it_holds_is_a_reason_to_look(
    known: dict[str, Any], lease: int, by: str, held: Lock, crowd: Crowd, client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    waiting = crowd().start(Lock(NAME), "acquire", blocking_timeout=10 * GENEROUS)
    until(lambda: queued(client) and hears())
    id, before = client.zrange(QUEUE, 0, 0)[0].decode(), inside.heard()  # type: ignore[union-attr]
    inside.mistrust(monkeypatch, **known)
    client.publish(own_channel(), f"g {id} 7 {server_time(client)} {lease}{by} {NAME}")
    until(lambda: inside.heard() > before and not inside.looks_due())
    assert not waiting.done()
    monkeypatch.undo()
    held.release()
    assert waiting.result(GENEROUS)


# -- poll=True, for a server behind a proxy that knows no pub/sub ------------------------------------------------------


def channels(client: Any) -> list[str]:
    return [client.hget(WAITERS, id).decode().split(" ")[0] for id in client.zrange(QUEUE, 0, -1)]


def wait_in_line(person: Any, lock: Any, client: redis.Redis, method: str = "acquire", *args: Any) -> Future[Any]:
    """Let somebody ask for the lock, and wait until they queue."""
    before = queued(client)
    waiting: Future[Any] = person.start(lock, method, *args)
    until(lambda: queued(client) == before + 1)
    return waiting


def test_where_nobody_can_subscribe_locks_are_renewed_and_passed_on(
    crowd: Crowd, network: Proxy, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    subscribing = network.lose_answer("SUBSCRIBE", times=1000)
    me, you, lock, another = crowd(), crowd(), Lock(NAME, poll=True, ttl=6), Lock(NAME, poll=True)
    me(lock, "acquire")
    end = monotonic() + me.read(lock.remaining)
    assert me.read(lambda: lock.token)  # nobody takes it for dead, whoever has that
    waiting = wait_in_line(you, another, client)
    until(lambda: monotonic() + me.read(lock.remaining) > end + 0.3)
    assert me(lock, "owned")
    me(lock, "release")
    assert waiting.result(GENEROUS)
    you(another, "release")
    assert subscribing.met == subscriptions() == 0
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []


@pytest.mark.usefixtures("fresh")
def test_with_the_setting_everybody_polls(crowd: Crowd, settings: Any, client: redis.Redis) -> None:
    settings.REDISLOCK = {"POLL": True}
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    waiting = wait_in_line(you, Lock(NAME), client)
    assert channels(client) == ["-"]
    me(lock, "release")
    assert waiting.result(GENEROUS)
    pool = LockPool("accounts")
    pool.extend(["alice"])
    me(pool, "acquire")
    with pytest.raises(LockNotAcquired) as caught:
        you(pool, "acquire", blocking_timeout=0.2)
    assert caught.value.attempts > 1
    assert subscriptions() == 0


def test_polling_and_woken_waiters_share_one_queue_however_often_each_of_them_looks(
    crowd: Crowd, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, polls_late=GENEROUS)
    order, waiting = list[int](), []
    with Lock(NAME):
        for number in range(9):
            often: Any = {"poll": True, "backoff": ConstantBackoff(0.2 / number)} if number % 3 else {}
            section = Twins(locked(NAME, **often), order.append)
            waiting.append(wait_in_line(crowd(), section, client, "call", number))
        assert [channel == "-" for channel in channels(client)] == [number % 3 > 0 for number in range(9)]
    for future in waiting:
        future.result(GENEROUS)
    assert order == list(range(9))


@pytest.mark.parametrize(("attempts", "delay", "calls"), [(1, 600, 1), (3, 0.01, 3 + 1)])  # who waits leaves
def test_the_number_of_attempts_is_the_number_of_calls_and_no_delay_follows_the_last(
    attempts: int, delay: float, calls: int, crowd: Crowd, client: redis.Redis
) -> None:
    with Lock(NAME, poll=True) as lock:
        lock.info()  # the scripts are known
    put(client, NAME, ttl=20)
    client.config_resetstat()
    with pytest.raises(LockNotAcquired) as caught:
        crowd()(Lock(NAME, poll=True, attempts=attempts, backoff=ConstantBackoff(delay)), "enter")
    assert count(client, "eval") + count(client, "evalsha") == calls
    assert caught.value.attempts == attempts
    assert queued(client) == 0


@pytest.mark.complete
def test_the_last_attempt_is_made_at_the_deadline_however_long_the_delay(me: Any, client: redis.Redis) -> None:
    def impatient(seconds: float) -> Lock:
        return Lock(NAME, poll=True, backoff=ConstantBackoff(600), blocking_timeout=seconds)

    with Lock(NAME):
        with pytest.raises(LockNotAcquired) as caught:
            me(impatient(2), "enter")
        assert caught.value.attempts == 2
        assert 2 <= caught.value.waited < GENEROUS
        waiting = wait_in_line(me, impatient(5), client)
    assert waiting.result(GENEROUS)
