"""Many processes over a small pool, some of which are killed, while members come and go at random."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import LockPool
from redisserver import RedisServer

from .pools import POOL, PREFIX, audit, leftovers
from .processes import Worker

Eventually = Callable[..., Any]
Start = Callable[..., Worker]

SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0")) or random.SystemRandom().getrandbits(32)
SECONDS = float(os.environ.get("REDISLOCK_TEST_SECONDS", "8"))
PROCESSES, THREADS, KEYS = 5, 3, [f"key-{number}" for number in range(6)]
TTL = 4.0  # seconds; a machine that stands still for longer takes members away from those who live

# Each of its threads takes a member and gives it back, again and again. What happens to a member stands in a list in
# Redis, in the order in which it happened: who is in it (fence and process), and who is not any more.
TAKES = """
import random
import redis
dice = random.Random(seed)
plain = redis.Redis(port=port)
pool = LockPool(name)
over = threading.Event()

def turns():
    while not over.is_set():
        try:
            timeout = dice.choice([0, 0.05, 1.0])
            member = pool.acquire(ttl=ttl, fair=fair or dice.random() < mixed, blocking_timeout=timeout)
        except LockNotAcquired:
            continue
        story, fence = f"story:{member.key}", member.fence
        plain.rpush(story, f"in {fence} {os.getpid()}")
        time.sleep(dice.choice([0, 0, 0.001, 0.02]))
        plain.rpush(story, f"out {fence} {os.getpid()}")
        try:
            member.release()
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


@pytest.mark.parametrize("fair", [False, True], ids=["mixed", "fair"])
def test_no_member_is_held_twice_and_none_is_lost(
    fair: bool, start: Start, client: redis.Redis, server: RedisServer, eventually: Eventually
) -> None:
    print(f"REDISLOCK_TEST_SEED={SEED}")
    dice = random.Random(SEED)
    pool = LockPool(POOL)
    members = set(KEYS)
    pool.extend(members)

    def hire() -> Worker:
        return start(
            TAKES, name=POOL, seed=dice.getrandbits(32), port=server.port, ttl=TTL, fair=fair, mixed=0.5, count=THREADS
        )

    workers = [hire() for _ in range(PROCESSES)]
    killed: set[int] = set()
    end = time.monotonic() + SECONDS
    for worker in workers:
        worker.expect("ready", within=120)
    while time.monotonic() < end:
        time.sleep(dice.uniform(0.0, 0.1))
        some = set(dice.sample(KEYS, dice.randint(1, 4)))
        match dice.choice(["extend", "extend", "shrink", "assign", "kill"]):
            case "extend":
                pool.extend(some)
                members |= some
            case "shrink":
                pool.shrink(some)
                members -= some
            case "assign":
                pool.assign(some)
                members = some
            case "kill" if len(killed) < 4:
                worker = workers.pop(dice.randrange(len(workers)))
                killed.add(worker.pid)
                worker.kill()
                workers.append(hire())
        audit(client)
    for worker in workers:
        worker.tell()
    for worker in workers:
        worker.expect("over", within=120)

    # none is lost: what the dead have held comes back when its lease has ended
    eventually(lambda: set(pool.keys()) == members and not audit(client)["busy"])
    found = audit(client)
    assert (found["free"], found["leaving"], found["locked"]) == (members, set(), set())
    pool.assign(KEYS)
    pool.acquire(fair=True, blocking_timeout=5).release()  # drops the dead who still stand in the queue
    pool.clear()
    assert [key for key in client.keys(f"{PREFIX}*:pool:*") if b":waiters:" not in key] == []
    assert leftovers(client) == []

    # none was held twice
    turns = 0
    for key in KEYS:
        story: list[Any] = client.lrange(f"story:{key}", 0, -1)
        fences, inside = [0], None
        for words in story:
            what, fence, pid = words.decode().split()
            assert what != "lost", f"{key}: the machine stood still for {TTL} s"
            if what == "in":
                assert inside is None or inside[1] in killed, f"{key}: {fence} came while {inside} was in it"
                assert int(fence) > fences[-1]
                fences.append(int(fence))
                inside = int(fence), int(pid)
            else:
                assert inside == (int(fence), int(pid)), f"{key}: {fence} left while {inside} was in it"
                inside = None
        turns += len(fences) - 1
    assert turns > 100
