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

pytestmark = pytest.mark.complete

Eventually = Callable[..., Any]
Start = Callable[..., Worker]

SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0")) or random.SystemRandom().getrandbits(32)
SECONDS = float(os.environ.get("REDISLOCK_TEST_SECONDS", "8"))
PROCESSES, THREADS, KEYS = 5, 3, [f"key-{number}" for number in range(6)]
TTL = 4.0  # seconds; if the machine hangs for longer, live processes lose members
MOST_HURT = 6  # processes
LEAST_TURNS = 200
DEAD = ("queue:", "waiters:", "wanted:")  # what killed processes that waited for one member may have left behind

# Each of its threads acquires and releases members, again and again. What happens to a member is recorded in a list in
# Redis, in order: who has acquired it (fence and process), and who has released it.
TAKES = """
import random
import redis
dice = random.Random(seed)
plain = redis.Redis(port=port)
pool = LockPool(name)
over = threading.Event()

def take():
    timeout = dice.choice([0, 0.05, 1.0])
    poll = mixed and dice.random() < 0.2
    if mixed and dice.random() < 0.3:
        key = dice.choice(keys)
        lock = Lock(lock_name("pool", name, key), ttl=ttl, poll=poll)
        return (key, lock) if lock.acquire(blocking_timeout=timeout) else (key, None)
    member = pool.acquire(ttl=ttl, blocking_timeout=timeout, poll=poll)
    return member.key, member

def turns():
    while not over.is_set():
        try:
            key, lock = take()
        except LockNotAcquired:
            continue
        if lock is None:
            continue
        story, fence = f"story:{key}", lock.fence
        plain.rpush(story, f"in {fence} {os.getpid()}")
        time.sleep(dice.choice([0, 0, 0.001, 0.02]))
        plain.rpush(story, f"out {fence} {os.getpid()}")
        try:
            lock.release()
        except LockLost:
            plain.rpush(story, f"lost {fence} {os.getpid()}")

threads = [threading.Thread(target=turns, daemon=True) for _ in range(count)]
for thread in threads:
    thread.start()
say("ready")
hear()
over.set()
for thread in threads:
    thread.join()
say("over")
"""


class Chaos:
    """Changes the members at random, kills processes and stops others."""

    def __init__(self, start: Start, port: int, *, mixed: bool) -> None:
        self.start, self.port, self.mixed = start, port, mixed
        self.dice = random.Random(SEED)
        self.pool = LockPool(POOL)
        self.members = set(KEYS)
        self.pool.extend(self.members)
        self.killed: set[int] = set()
        self.stood_still: set[int] = set()  # stopped for longer than their leases
        self.workers = [self.hire() for _ in range(PROCESSES)]

    def hire(self) -> Worker:
        seed = self.dice.getrandbits(32)
        return self.start(
            TAKES, name=POOL, keys=KEYS, seed=seed, port=self.port, ttl=TTL, mixed=self.mixed, count=THREADS
        )

    def happen(self) -> None:
        """Do one of these things at random."""
        some = set(self.dice.sample(KEYS, self.dice.randint(1, 4)))
        what = self.dice.choice(["extend", "extend", "shrink", "assign", "kill", "stop"])
        if what == "extend":
            self.pool.extend(some)
            self.members |= some
        elif what == "shrink":
            self.pool.shrink(some)
            self.members -= some
        elif what == "assign":
            self.pool.assign(some)
            self.members = some
        elif len(self.killed | self.stood_still) < MOST_HURT:
            worker = self.workers.pop(self.dice.randrange(len(self.workers)))
            if what == "kill":
                self.killed.add(worker.pid)
                worker.kill()
                self.workers.append(self.hire())
            else:
                self.stood_still.add(worker.pid)
                worker.signal(signal.SIGSTOP)
                self.workers.insert(0, worker)

    def end(self) -> None:
        """Continue stopped processes, then end all."""
        for worker in self.workers:
            worker.signal(signal.SIGCONT)
        for worker in self.workers:
            worker.tell()
        for worker in self.workers:
            worker.expect("over", within=120)


@pytest.mark.parametrize("mixed", [False, True], ids=["checkouts", "with direct locks and polling"])
def test_no_member_is_held_twice_and_none_is_lost(
    mixed: bool, start: Start, client: redis.Redis, server: RedisServer, eventually: Eventually
) -> None:
    print(f"REDISLOCK_TEST_SEED={SEED}")
    chaos = Chaos(start, server.port, mixed=mixed)
    for worker in chaos.workers:
        worker.expect("ready", within=120)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or turns(client) < LEAST_TURNS:
        time.sleep(chaos.dice.uniform(0.0, 0.1))
        chaos.happen()
        audit(client)
    chaos.end()

    check_stories(client, chaos)

    # no member is lost: those that killed processes held come back when their leases end
    pool, members = chaos.pool, chaos.members
    assert set(pool.keys()) == members
    eventually(lambda: pool.health_check() == (0, len(members)))
    held = [pool.acquire(blocking_timeout=5) for _ in members]
    assert {member.key for member in held} == members
    for member in held:
        member.release()
    assert audit(client).free == members
    pool.clear()
    client.delete(*client.keys("story:*"))
    assert [key for key in leftovers(client) if not key.startswith(DEAD)] == []


def check_stories(client: redis.Redis, chaos: Chaos) -> None:
    """No member was held twice at once, and fences grew."""
    for key in KEYS:
        story: list[Any] = client.lrange(f"story:{key}", 0, -1)
        fences, inside = [0], None
        for words in story:
            what, fence, pid = words.decode().split()[0], int(words.split()[1]), int(words.split()[2])
            if pid in chaos.stood_still:
                continue  # it may have lost its member, and record that late
            assert what != "lost", f"{key}: the machine stood still for {TTL} s"
            if what == "in":
                assert inside is None or inside[1] in chaos.killed, f"{key}: {fence} came while {inside} was in it"
                assert fence > fences[-1]
                fences.append(fence)
                inside = fence, pid
            else:
                assert inside == (fence, pid), f"{key}: {fence} left while {inside} was in it"
                inside = None


def turns(client: redis.Redis) -> int:
    """How many acquisitions and releases there were."""
    return sum(int(client.llen(f"story:{key}")) for key in KEYS)
