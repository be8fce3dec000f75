"""R4: a stopped process costs the others one handoff lease in all, however many of its threads wait."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import redis

from django_redislock import Lock, LockPool
from tests.helpers.actors import Crowd, Ghost
from tests.helpers.processes import Worker
from tests.helpers.state import NAME, WAITERS, flag, holder, queued
from tests.inside import limit
from tests.protocol.scene import (
    LONG,
    MANY_WAIT,
    Ear,
    Eventually,
    Line,
    Start,
    channel_of,
    freeze,
    listed,
    receivers,
)

STUCK = [f"stuck-stuck-stuck-stuck-{number}" for number in range(4)]
POOL = "pool:accounts:"


def handoffs_to(ear: Ear, ids: list[str]) -> int:
    """How many grants these processes were told of."""
    return sum(kind == "g" and id in ids for kind, id, *_ in ear.heard())


def test_a_stuck_process_with_four_waiters_costs_one_handoff_lease(
    ghost: Callable[..., Ghost], line: Line, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handoff whose lease ended unconfirmed leaves a trace. The script that finds it drops every waiter of that
    process."""
    limit(monkeypatch, look_every=0.3)
    lock, stuck = Lock(NAME), ghost()
    lock.acquire()
    for id in STUCK:
        stuck.queue(id, name=NAME, ttl=1)
    waiting = line.join(Lock(NAME))
    lock.release()
    assert waiting.result()
    assert handoffs_to(ear, STUCK) == 1


def test_a_stuck_process_costs_one_handoff_lease_though_others_are_confirmed_meanwhile(
    ghost: Callable[..., Ghost], line: Line, ear: Ear, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """A suspect process stays suspect until a sign of life."""
    limit(monkeypatch, look_every=0.3)
    lock, stuck = Lock(NAME), ghost()
    lock.acquire()
    stuck.queue(STUCK[0], name=NAME, ttl=1)
    waiting = line.join(Lock(NAME))
    for id in STUCK[1:]:
        stuck.queue(id, name=NAME, ttl=1)
    last = line.join(Lock(NAME))
    lock.release()
    assert waiting.result()
    eventually(lambda: flag(line.client) == "c")
    waiting.release()
    assert last.result()
    assert handoffs_to(ear, STUCK) == 1


def test_a_sign_of_life_clears_a_suspect_process(
    ghost: Callable[..., Ghost], threads: Line, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.3)
    lock, slow = Lock(NAME), ghost()
    lock.acquire()
    slow.queue(STUCK[0], name=NAME, ttl=1)
    waiting = threads.join(Lock(NAME))
    lock.release()
    assert waiting.result()
    assert slow.queue(STUCK[1], name=NAME).unheard
    assert not client.hexists(WAITERS, "?")
    waiting.release()
    assert holder(client) == STUCK[1]


@pytest.mark.parametrize("how", ["release", "confirm"])
def test_a_handoff_that_is_confirmed_or_released_makes_no_process_suspect(
    how: str, ghost: Callable[..., Ghost], client: redis.Redis, eventually: Eventually
) -> None:
    """Only processes that gave no sign of life until the end of the lease leave a trace."""
    lock, one = Lock(NAME), ghost()
    lock.acquire()
    for id in STUCK[:2]:
        one.queue(id, name=NAME, ttl=1)
    lock.release()
    assert holder(client) == STUCK[0]
    request = one.request(STUCK[0], name=NAME, ttl=1)
    if how == "release":
        one.release(request)
    else:
        one.renew(request, "confirm", 1.0)
        eventually(lambda: not holder(client))  # it ends nevertheless
        assert not Lock(NAME).acquire(blocking=False)
    assert holder(client) == STUCK[1]


def test_a_stuck_process_in_the_queue_of_a_pool_costs_one_handoff_lease(
    ghost: Callable[..., Ghost], crowd: Crowd, ear: Ear, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.3)
    pool, stuck, me = LockPool("accounts"), ghost(), crowd()
    pool.extend(["alice"])
    member = pool.acquire()
    for id in STUCK:
        stuck.queue(id, name=POOL, ttl=1)
    waiting = me.start(pool, "acquire", blocking_timeout=30)
    eventually(lambda: pool.info().waiters == 5)
    member.release()
    assert waiting.result(30).key == "alice"
    assert handoffs_to(ear, STUCK) == 1


def stopped_process(start: Start, client: redis.Redis, eventually: Eventually) -> Worker:
    """A stopped process whose four waiters are the first in the queue."""
    worker = start(MANY_WAIT, name=NAME, ttl=1.0, count=4, look_every=LONG)
    worker.expect("ready")
    for number in range(4):
        worker.tell()
        eventually(lambda number=number: queued(client) == number + 1)
    freeze(worker)
    return worker


@pytest.mark.complete
@pytest.mark.parametrize("busy", [True, False], ids=["held", "free"])
def test_the_waiters_of_a_process_that_was_stopped_come_back_with_their_tickets(
    busy: bool,
    start: Start,
    threads: Line,
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dropped, but alive: when the process runs again, all its waiters are back at their places."""
    limit(monkeypatch, look_every=0.3)
    lock = Lock(NAME)
    lock.acquire()
    worker = stopped_process(start, client, eventually)
    before = listed(client)
    waiting = threads.join(Lock(NAME))
    lock.release()
    assert waiting.result()
    assert listed(client) == []
    if not busy:
        waiting.release()
    worker.signal(signal.SIGCONT)
    if busy:
        eventually(lambda: listed(client) == before)
        waiting.release()
    # nobody has to wait for a look by the clock, which would come when the first holder's lease (30 s) would have ended
    entered = [worker.expect("acquired", within=15)[0] for _ in range(4)]
    assert (entered if busy else sorted(entered)) == ["0", "1", "2", "3"]


FORKS = """
def wait():
    Lock(name, blocking_timeout=60).acquire()

other = Lock("other")
other.acquire()
threading.Thread(target=wait, daemon=True).start()
say("ready")
hear()
child = os.fork()
if not child:
    wait()
    time.sleep(60)
say("child", child)
hear()
"""


def test_a_forked_child_does_not_make_its_dead_parent_look_alive(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    """It closes the inherited socket of the listener, and has its own channel."""
    lock = Lock(NAME)
    lock.acquire()
    parent = start(FORKS, name=NAME)
    parent.expect("ready")
    eventually(lambda: queued(client) == 1)
    parent.tell()
    child = int(parent.expect("child")[0])
    try:
        eventually(lambda: queued(client) == 2)
        ids = [id for id, _ in listed(client)]
        channels = [channel_of(client, id) for id in ids]
        assert channels[0] != channels[1]
        eventually(lambda: [receivers(client, channel) for channel in channels] == [1, 1])
        parent.kill()
        eventually(lambda: [receivers(client, channel) for channel in channels] == [0, 1])
        lock.release()
        assert holder(client) == ids[1]
    finally:
        os.kill(child, signal.SIGKILL)
