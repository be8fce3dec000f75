"""Many processes use a small pool. Some are killed or stopped, while members are put in and taken out at random."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import LockPool
from redisserver import RedisServer
from tests.helpers.pools import POOL, audit, leftovers
from tests.helpers.processes import Worker

SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0")) or random.SystemRandom().getrandbits(32)
SECONDS = float(os.environ.get("REDISLOCK_TEST_SECONDS", "8"))
KEYS = [f"key-{number}" for number in range(6)]
TTL = 4.0  # seconds; if the machine hangs for longer, live processes lose members

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
    start: Callable[..., Worker], client: redis.Redis, server: RedisServer, eventually: Callable[..., Any]
) -> None:
    print(f"REDISLOCK_TEST_SEED={SEED}")
    dice, pool, members = random.Random(SEED), LockPool(POOL), set(KEYS)
    killed: set[int] = set()
    stopped: set[int] = set()  # for longer than their leases

    def hire() -> Worker:
        return start(TAKES, name=POOL, keys=KEYS, seed=dice.getrandbits(32), port=server.port, ttl=TTL)

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
            assert what != "lost", f"the machine stood still for {TTL} s"
            if what == "in":
                assert inside is None or inside[1] in killed, f"{story!r}: {fence} came while {inside} was in it"
                assert fence > last
                last, inside = fence, (fence, pid)
            else:
                assert inside == (fence, pid), f"{story!r}: {fence} left while {inside} was in it"
                inside = None

    # no member is lost: those that killed processes held come back when their leases end
    eventually(lambda: pool.health_check() == (0, len(members)))
    held = [pool.acquire(blocking_timeout=5) for _ in members]
    assert {member.key for member in held} == {*pool.keys()} == members
    pool.clear()
    for member in held:
        member.release()
    client.delete(*client.keys("story:*"))
    # killed processes that waited for one member may have left these behind
    assert [key for key in leftovers(client) if not key.startswith(("queue:", "waiters:", "wanted:"))] == []
