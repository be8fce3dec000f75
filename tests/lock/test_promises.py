"""Guarantees with figures, and guarantees that hold whatever a process does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, list_locks
from redisserver import RedisServer, redis_server
from tests.helpers.actors import server_time
from tests.helpers.state import LOCK, NAME, WAITERS, put, queued

Eventually = Callable[..., Any]
Start = Callable[..., Any]


@pytest.fixture
def other_alias(settings: Any) -> Callable[..., str]:
    def other_alias(url: str, **options: Any) -> str:
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "other": cache}
        return "other"

    return other_alias


def connections(client: redis.Redis) -> int:
    return int(client.info("clients")["connected_clients"])


def test_300_threads_wait_over_a_pool_of_two_connections_and_the_holder_releases_at_once(
    server: RedisServer, client: redis.Redis, other_alias: Callable[..., str], eventually: Eventually
) -> None:
    using = other_alias(f"redis://localhost:{server.port}/0", CONNECTION_POOL_KWARGS={"max_connections": 2})
    inside, fences, errors = threading.Lock(), [], []

    def wait() -> None:
        try:
            with Lock(NAME, using=using, blocking_timeout=90) as lock:
                assert inside.acquire(blocking=False), "two holders at once"
                fences.append(lock.fence)
                inside.release()
        except BaseException as error:
            errors.append(error)

    mine = Lock(NAME, using=using)
    assert mine.acquire()
    already = connections(client)
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(300)]
    for thread in threads:
        thread.start()
    eventually(lambda: queued(client) == 300 or errors, within=60)
    assert connections(client) - already <= 2 + 2  # the pool's bound, the listener and the watchdog
    began = monotonic()
    mine.release()
    assert monotonic() - began < 10  # a holder that has to wait for a connection waits for 20 s
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(fences) == 300


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

# time.monotonic() is the same clock in all processes of a machine
WAITS = """
lock = Lock(name, blocking_timeout=60)
say("ready")
hear()
lock.acquire()
say("acquired", time.monotonic())
hear()
"""


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.complete)])
def test_after_kill_9_of_all_before_it_a_waiting_process_has_the_lock_at_once_after_the_release(
    count: int, start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    crowd = start(FORKS, name=NAME, count=count)
    last = start(WAITS, name=NAME)
    crowd.expect("ready")
    last.expect("ready")
    mine = Lock(NAME)
    assert mine.acquire()
    children: list[int] = []
    try:
        crowd.tell()
        children.extend(int(crowd.expect("child", within=60)[0]) for _ in range(count))
        eventually(lambda: queued(client) == count, within=60)
        entries: Any = client.hvals(WAITERS)
        channels = {entry.split(b" ")[0] for entry in entries}
        assert len(channels) == count
        last.tell()
        eventually(lambda: queued(client) == count + 1)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
    crowd.tell()
    crowd.expect("buried")
    # Redis has read the end of their connections
    eventually(lambda: not any(client.execute_command("PUBSUB", "NUMSUB", *channels)[1::2]))
    released = monotonic()
    mine.release()
    (when,) = last.expect("acquired")
    assert float(when) - released < 5  # a dead waiter considered alive would cost a lease of 10 s


IS_FORKED = """
from tests.helpers.state import fence_of
lock = Lock(name, ttl=1)
lock.acquire()
time.sleep(0.5)
told, tell = os.pipe()
child = os.fork()
if child:
    say("forked", child)
    os.write(tell, b"!")  # what the child says comes behind it
    hear()
else:
    os.read(told, 1)
    try:
        lock.release()
    except LockNotOwned:
        say("refused")
    say("knows", lock.token, fence_of(lock), lock.owned(), lock.remaining())
    say("tried", lock.acquire(blocking=False))
    with Lock("other", ttl=1):
        time.sleep(1.2)
    say("child-lives", lock.lost)
    time.sleep(60)
"""


def test_a_child_forked_while_holding_neither_renews_nor_releases_the_lock_of_its_parent(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    """Neither through its Lock objects nor in its watchdog; it waits like any other process."""
    parent = start(IS_FORKED, name=NAME)
    (child,) = parent.expect("forked")
    try:
        parent.expect("refused")
        assert parent.expect("knows") == ["None", "None", "False", "0.0"]
        assert parent.expect("tried") == ["False"]
        assert parent.expect("child-lives") == ["False"]
        assert f":{parent.pid}:" in str(client.get(LOCK))
        os.kill(parent.pid, signal.SIGSTOP)
        os.waitpid(parent.pid, os.WUNTRACED)
        eventually(lambda: not client.exists(LOCK))  # the child is alive, but does not renew
        os.kill(int(child), 0)
    finally:
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize("others", [10_000, pytest.param(1_000_000, marks=pytest.mark.complete)])
def test_what_a_list_of_10_000_locks_costs_does_not_grow_with_the_other_keys(
    others: int, other_alias: Callable[..., str]
) -> None:
    fill = "for i = ARGV[1], ARGV[1] + 9999 do redis.call('SET', 'page:' .. i, 'x') end"
    with redis_server() as server, server.client() as client:
        for first in range(0, others, 10_000):
            client.execute_command("EVAL", fill, 0, first)
        using, names = other_alias(server.url), [f"order:{number:05}" for number in range(10_000)]
        now = server_time(client)
        with client.pipeline(transaction=False) as pipe:
            for name in names:
                put(pipe, name, now=now, ttl=600)
            pipe.execute()
        with Lock("warm-up", using=using):
            pass
        client.config_resetstat()
        assert [lock.name for lock in list_locks(using=using)] == names
        stats = client.info("commandstats")
        used = {command.removeprefix("cmdstat_"): counts["calls"] for command, counts in stats.items()}
        assert not used.keys() & {"scan", "keys", "zscan", "hscan", "sscan"}
        assert sum(used.values()) < 10 * 10_000, "what is sent grows with the locks alone"
