"""First come, first served, among threads, tasks and processes; what dead waiters cost; and what outages do."""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockLost, LockUnavailable
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, Ghost, Other, until
from tests.helpers.state import LOCK, NAME, QUEUE, WAITERS, flag, holder, queued
from tests.helpers.ways import DJANGO_REDIS, alias, caches, stopped
from tests.inside import before_each_request, limit

from .conftest import Block

Start = Callable[..., Any]

ID = "an-id-that-the-tests-know"
RetryFor = Callable[[float], None]
HELD = "held"


def test_a_lock_is_acquired_in_the_order_of_the_requests(crowd: Crowd, using: str) -> None:
    with closing(Crowd(tasks=not crowd.awaits)) as others:  # threads and tasks
        me, *people = [(crowd, others)[number % 2]() for number in range(16)]
        lock, order, waiting = Lock(NAME, using=using), list[int](), []
        me(lock, "acquire")
        for number, person in enumerate(people, 1):
            section = Block(Lock(NAME, using=using), lambda number=number: order.append(number))  # type: ignore[misc]
            waiting.append(person.start(section, "run"))
            until(lambda number=number: lock.info().waiters == number)  # type: ignore[union-attr]
        me(lock, "release")
        for future in waiting:
            future.result(GENEROUS)
    assert order == list(range(1, 16))


SECTIONS = """
import redis
raw = redis.Redis.from_url(os.environ["REDISLOCK_TEST_URL"])
lock = Lock(name, blocking_timeout=60)
say("ready")
hear()
most, grew = 0, []
for round in range(25):
    with lock:
        if not round:
            say("first", lock.fence)
        most = max(most, raw.incr("inside"))
        grew.append(int(raw.get("last") or 0) < lock.fence)
        raw.set("last", lock.fence)
        raw.decr("inside")
say("done", most, all(grew), len(grew))
hear()
"""


def test_processes_get_a_lock_in_the_order_in_which_they_asked_and_exclude_each_other(
    start: Start, client: redis.Redis
) -> None:
    workers = [start(SECTIONS, name=NAME) for _ in range(3)]
    for worker in workers:
        worker.expect("ready")
    workers = [workers[index] for index in (2, 0, 1)]
    with Lock(NAME) as lock:
        fences, before = [lock.fence], holder(client)
        for number, worker in enumerate(workers, 1):
            worker.tell()
            until(lambda number=number: queued(client) == number)
    assert holder(client) not in ("", before)  # by the release itself
    fences += [int(worker.expect("first")[0]) for worker in workers]
    assert fences == sorted(fences)
    for worker in workers:
        assert worker.expect("done", within=60) == ["1", "True", "25"]
    assert holder(client) == ""


@pytest.mark.parametrize("age", [0, -GENEROUS])
@pytest.mark.parametrize("how", ["released", "gone"])
def test_nobody_overtakes_a_waiter(
    crowd: Crowd, how: str, age: float, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """However short it has waited, if the clock was ahead when it queued, and if it does not come for the lock."""
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    ghost().queue(ID, name=NAME, age=age)
    if how == "released":
        me(lock, "release")
        assert (holder(client), flag(client)) == (ID, "h")
    else:
        client.delete(LOCK)
    for newcomer in (me, you):
        assert newcomer(Lock(NAME), "acquire", blocking=False) is False
    assert holder(client) == ID


def test_300_threads_wait_over_a_pool_of_two_connections_and_the_holder_releases_at_once(
    server: RedisServer, client: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = f"redis://localhost:{server.port}/0"  # not a pool that is there already
    settings.CACHES = {**settings.CACHES, "small": alias(DJANGO_REDIS, elsewhere, max_connections=2)}
    inside, mine = threading.Lock(), Lock(NAME, using="small")

    def wait() -> int:
        with Lock(NAME, using="small", blocking_timeout=90) as lock:
            assert inside.acquire(blocking=False), "two holders at once"
            inside.release()
            return lock.fence

    assert mine.acquire()
    already = client.info("clients")["connected_clients"]
    with ThreadPoolExecutor(300) as threads:
        waiting = [threads.submit(wait) for _ in range(300)]
        until(lambda: queued(client) == 300, within=60)
        assert client.info("clients")["connected_clients"] - already <= 2 + 2  # the listener, the watchdog
        limit(monkeypatch, patience_threads=600.0)  # a holder that had to wait for a connection would not come back
        mine.release()
        assert len({fence.result(60) for fence in waiting}) == 300


# One process that is warmed up first, and then becomes many waiters.
FORKS = """
with Lock("warm-up"):
    pass
say("ready")
hear()
for _ in range(count):
    child = os.fork()
    if not child:
        Lock(name, blocking_timeout=60).acquire()
        os._exit(0)
    say("child", child)
hear()
for _ in range(count):
    os.wait()
say("buried")
hear()
"""


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.complete)])
def test_after_kill_9_of_all_before_it_a_waiter_has_the_lock_at_once_after_the_release(
    count: int, start: Start, other: Callable[[], Other], client: redis.Redis
) -> None:
    crowd = start(FORKS, name=NAME, count=count)
    crowd.expect("ready")
    mine = Lock(NAME)
    assert mine.acquire()
    children: list[int] = []
    try:
        crowd.tell()
        children.extend(int(crowd.expect("child", within=60)[0]) for _ in range(count))
        until(lambda: queued(client) == count, within=60)
        entries: Any = client.hvals(WAITERS)
        channels = {entry.split(b" ")[0] for entry in entries}
        assert len(channels) == count
        last = other().start(Lock(NAME).acquire)
        until(lambda: queued(client) == count + 1)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
    crowd.tell()
    crowd.expect("buried")
    # Redis has read the end of their connections
    until(lambda: not any(client.execute_command("PUBSUB", "NUMSUB", *channels)[1::2]))
    mine.release()
    assert last.result(5)  # a dead waiter considered alive would cost a lease of 10 s


free, held = Lock(NAME), Lock(HELD)

CALLS: list[tuple[Any, str, tuple[Any, ...], dict[str, Any]]] = [
    (free, "acquire", (), {}),
    (free, "acquire", (), {"blocking": False}),
    (free, "acquire", (), {"blocking_timeout": 5}),
    *((free, method, (), {}) for method in ("enter", "locked", "status", "info")),
    (django_redislock, "get_lock", (NAME,), {}),
    (django_redislock, "force_release", (NAME,), {}),
    (held, "extend", (1,), {}),
    *((held, method, (), {}) for method in ("owned", "reacquire", "detach", "release")),
]


def test_a_redis_that_is_down_makes_every_call_raise_lock_unavailable_and_the_release_can_be_tried_again(
    crowd: Crowd, own: RedisServer, retry_for: RetryFor
) -> None:
    retry_for(0.05)
    me, block = crowd(), Lock(NAME)
    me(held, "acquire")
    me(block, "enter")
    token = me.read(lambda: held.token)
    own.stop()
    for thing, method, args, options in CALLS:
        with pytest.raises(LockUnavailable, match="Redis cannot be reached for the lock") as caught:
            me(thing, method, *args, **options)
        assert caught.value.name in (NAME, HELD)
        assert isinstance(caught.value.__cause__, (redis.ConnectionError, OSError))
    assert "The lock was not released: " in str(caught.value)
    assert "unless a later release reaches Redis, it stays locked for " in str(caught.value)
    assert 0 < caught.value.lease_left <= 30
    assert not me(block, "exit", None, None, None)
    with pytest.raises(LockUnavailable, match="cannot be reached for locks"):
        me(django_redislock, "list_locks")
    assert me.read(lambda: held.token) == token
    own.start()
    me(held, "release")
    assert me.read(lambda: held.token) is None


@pytest.mark.parametrize("restarts", [True, False])
def test_a_waiter_survives_a_restart_of_redis_and_gives_up_after_a_long_outage(
    restarts: bool, crowd: Crowd, own: RedisServer, monkeypatch: pytest.MonkeyPatch, retry_for: RetryFor
) -> None:
    retry_for(0.1)
    if not restarts:
        limit(monkeypatch, sit_out=0.3)
    me, you, lock, second = crowd(), crowd(), Lock(NAME, ttl=300), Lock(NAME)
    me(lock, "acquire")
    fence = me.read(lambda: lock.fence)
    waiting = you.start(second, "acquire")
    with own.client() as client:
        until(lambda: queued(client))
    own.stop()
    if not restarts:
        with pytest.raises(LockUnavailable, match="cannot be reached") as caught:
            waiting.result(GENEROUS)
        assert caught.value.name == NAME
        return
    tries: list[None] = []
    before_each_request(monkeypatch, lambda: tries.append(None))
    until(lambda: waiting.done() or len(tries) > 1)
    own.start()  # and has forgotten everything
    assert waiting.result(GENEROUS) is True
    assert you.read(lambda: second.fence) > fence
    until(lambda: me.read(lambda: lock.lost))
    with pytest.raises(LockLost):
        me(lock, "release")
    assert you(second, "owned")


@pytest.mark.complete
def test_when_redis_hangs_the_waiters_of_a_process_give_up_together(
    me: Any, crowd: Crowd, own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them looks, and the others do not wait to find out by themselves, one after the other."""
    limit(monkeypatch, look_every=0.2, sit_out=3)
    with caches(alias(DJANGO_REDIS, own.url, socket_timeout=1)):
        me(Lock(NAME, ttl=300), "acquire")
        waiting = [crowd().start(Lock(NAME), "acquire") for _ in range(15)]
        with own.client() as client:
            until(lambda: queued(client) == 15)
        with stopped(own):
            until(lambda: all(one.done() for one in waiting), within=30)
        assert {type(one.exception()) for one in waiting} == {LockUnavailable}


def listeners(client: redis.Redis) -> set[str]:
    return {each["id"] for each in client.client_list(_type="pubsub")}


@pytest.mark.parametrize("how", ["flushed", "evicted", "cut off", "dropped"])
def test_a_waiter_survives_the_loss_of_its_place(
    how: str, crowd: Crowd, queue: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.2, look_late=300.0)  # there is no message
    me, you, lock, second = crowd(), crowd(), Lock(NAME, ttl=300), Lock(NAME)
    me(lock, "acquire")
    waiting = queue(second, you)
    if how == "flushed":
        client.flushall()
    elif how == "evicted":
        client.delete(QUEUE, LOCK)
    elif how == "dropped":
        before = listeners(client)
        client.delete(QUEUE)
        until(lambda: client.zcard(QUEUE))
        me(lock, "release")
        assert waiting.result(GENEROUS) is True
        assert listeners(client) == before  # nothing is wrong with the connection
    else:
        for kind in ("pubsub", "normal"):
            client.client_kill_filter(_type=kind, skipme=True)
        client.delete(QUEUE)
        until(lambda: client.zcard(QUEUE))  # it queues again
        assert not waiting.done()
        me(lock, "release")
    assert waiting.result(GENEROUS) is True
    assert how in ("cut off", "dropped") or not client.exists(WAITERS)


@pytest.mark.usefixtures("no_look_by_the_clock")
@pytest.mark.complete
def test_the_lock_of_a_killed_process_goes_to_the_next_one(you: Any, queue: Any, start: Start, client: Any) -> None:
    worker = start("lock = Lock(name, ttl=3)\nlock.acquire()\nsay('held')\nhear()", name=NAME)
    worker.expect("held")
    lock = Lock(NAME)
    waiting = queue(lock, you)
    first = holder(client)
    until(lambda: client.pttl(LOCK) < 2200)
    until(lambda: client.pttl(LOCK) > 2400)  # renewed
    assert holder(client) == first
    worker.kill()
    assert waiting.result(GENEROUS) is True  # it looks at the end of the lease
    assert you(lock, "owned")
