"""Who waits and cannot be told anything (R3), has been stopped (R4), is dead (R9), or sleeps past an end (R5)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockPool
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Ghost
from tests.helpers.state import NAME, TOKEN, WAITERS, count, flag, holder, queued
from tests.inside import PREFIX, Ears, change_probe, limit
from tests.protocol.scene import (
    LONG,
    POOL,
    WAITS,
    Eventually,
    Join,
    Start,
    channel_of,
    freeze,
    lapse,
    listed,
    receivers,
    told,
)

# -- R3 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh")
def test_somebody_who_watches_all_channels_does_not_make_a_process_poll(join: Join, client: redis.Redis) -> None:
    """PUBLISH counts them too, such as a PSUBSCRIBE on somebody's console."""
    with client.pubsub() as console:
        console.psubscribe(f"{PREFIX}wake:*")
        assert console.get_message(timeout=GENEROUS)
        Lock(NAME, ttl=LONG).acquire()
        join(Lock(NAME, blocking_timeout=0.1))
        assert channel_of(client, listed(client)[0][0]) != "-"


@pytest.fixture(params=["no right to channels", "the probe is not counted"])
def polled(request: pytest.FixtureRequest, server: RedisServer, add_alias: Callable[..., str]) -> Iterator[str]:
    """An alias for which messages do not reliably reach waiters."""
    if request.param == "no right to channels":
        yield request.getfixturevalue("allow_only")("resetchannels")
        return
    with pytest.MonkeyPatch.context() as patch:
        change_probe(patch, lambda text: text.replace("listeners(ARGV[1])", "0"))
        yield add_alias(server.url)


def test_waiters_that_get_no_messages_poll_and_keep_their_places(
    polled: str, join: Join, client: redis.Redis, eventually: Eventually
) -> None:
    """They are never handed the lock, which is left for the first of them. It counts as gone if it does not look."""
    lock = Lock(NAME, using=polled)
    lock.acquire()
    leaves, *waiting = (join(Lock(NAME, using=polled, blocking_timeout=seconds)) for seconds in (0.5, 30, 30))
    assert not leaves.result()
    ids = [id for id, _ in listed(client)]
    assert [channel_of(client, id) for id in ids] == ["-", "-"]

    def alive_until() -> int:
        entry: Any = client.hget(WAITERS, ids[0])
        return int(entry.split(b" ")[2])

    first = alive_until()
    eventually(lambda: alive_until() > first + 1_000_000)
    lock.release()
    assert not Lock(NAME, using=polled).acquire(blocking=False)
    for id, one in zip(ids, waiting, strict=True):
        assert one.result()
        assert (holder(client), flag(client)) == (id, "c")
        one.release()


def test_a_listener_that_is_refused_for_a_moment_soon_gets_messages_again(
    allow_only: Callable[..., str], client: redis.Redis, listening: Callable[..., Ears], eventually: Eventually
) -> None:
    """A process that may not subscribe polls; only one that will never get the right does so for half a minute."""
    ears = listening(allow_only("resetchannels"))
    assert ears.polled
    client.execute_command("ACL", "SETUSER", "limited", "allchannels")
    allowed = monotonic()
    eventually(lambda: ears.ready and not ears.polled)
    assert monotonic() - allowed < inside.RESUBSCRIBE_EVERY / 2


# -- R4 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [NAME, POOL], ids=["lock", "pool"])
def test_a_stuck_process_with_four_waiters_costs_one_handoff_lease(
    name: str, pool: LockPool, ghost: Callable[..., Ghost], join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handoff whose lease ended unconfirmed leaves a trace. The script that finds it drops every waiter of that
    process."""
    limit(monkeypatch, look_every=0.3)
    held: Any = pool.acquire() if name == POOL else Lock(NAME)
    stuck = ghost()
    if name == NAME:
        held.acquire()
    for number in range(4):
        stuck.queue(f"stuck-stuck-stuck-stuck-{number}", name=name, ttl=0.5)
    waiting = join(pool if name == POOL else Lock(NAME), blocking_timeout=GENEROUS)
    held.release()
    assert waiting.result()
    assert told(stuck) == [["g", "stuck-stuck-stuck-stuck-0"]]


@pytest.mark.complete
@pytest.mark.parametrize("busy", [True, False], ids=["held", "free"])
def test_the_waiters_of_a_process_that_was_stopped_come_back_with_their_tickets(
    busy: bool,
    start: Start,
    join: Join,
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dropped, but alive: when the process runs again, all its waiters are back at their places."""
    limit(monkeypatch, look_every=0.3)
    lock, worker = Lock(NAME), start(WAITS, name=NAME, ttl=1.0)
    lock.acquire()
    worker.expect("ready")
    for number in range(4):
        worker.tell()
        eventually(lambda number=number: queued(client) == number + 1)
    freeze(worker)
    before = listed(client)
    waiting = join(Lock(NAME))
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

threading.Thread(target=wait, daemon=True).start()
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
    eventually(lambda: queued(client) == 1)
    parent.tell()
    child = int(parent.expect("child")[0])
    try:
        eventually(lambda: queued(client) == 2)
        ids = [id for id, _ in listed(client)]
        channels = [channel_of(client, id) for id in ids]
        eventually(lambda: [receivers(client, channel) for channel in channels] == [1, 1])
        parent.kill()
        eventually(lambda: [receivers(client, channel) for channel in channels] == [0, 1])
        lock.release()
        assert holder(client) == ids[1]
    finally:
        os.kill(child, signal.SIGKILL)


# -- R5 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.complete
@pytest.mark.usefixtures("nobody_looks")
def test_every_process_looks_again_when_the_lease_of_the_new_holder_ends(start: Start, join: Join) -> None:
    """Of whoever holds the lock now, not of whoever held it at first."""
    worker = start(WAITS, name=NAME, ttl=30.0)
    worker.expect("ready")
    Lock(NAME, ttl=1.5, auto_renew=False).acquire()  # never released
    second = join(Lock(NAME, ttl=1.5, auto_renew=False))  # nor this
    worker.tell()
    assert second.result()
    worker.expect("acquired", within=15)


def test_waiters_look_now_and_then_and_the_next_of_a_process_inherits_that_from_one_that_leaves(
    join: Join, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.5)
    Lock(NAME, ttl=LONG).acquire()
    leaves = join(Lock(NAME, blocking_timeout=0.3))
    stays = join(Lock(NAME))
    assert not leaves.result()
    lapse(client)
    assert stays.result()


def test_many_waiters_of_one_process_look_no_more_often_than_one(
    join: Join, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, look_every=0.2)
    Lock(NAME, ttl=LONG).acquire()
    for _ in range(10):
        join(Lock(NAME, blocking_timeout=2))
    before, began = count(client, "evalsha"), monotonic()
    eventually(lambda: count(client, "evalsha") >= before + 5)
    assert monotonic() - began > 4 * 0.2


# -- R9 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dead"), [(NAME, 1), (NAME, 1200), (POOL, 250)])
def test_who_finds_a_lock_free_behind_dead_waiters_takes_it_in_a_single_try_and_tells_nobody(
    name: str, dead: int, pool: LockPool, crowd: Any, ghost: Callable[..., Ghost], client: redis.Redis
) -> None:
    """After dropping them, the script decides again; where they are very many, it is called again."""
    me, gone, thing = crowd(), ghost(alive=False), pool if name == POOL else Lock(NAME)
    thing.acquire()
    for number in range(dead):
        gone.queue(f"{TOKEN}-{number}", name=name, age=10)
    lapse(client, name)
    before = count(client, "publish")
    assert me(pool if name == POOL else Lock(NAME), "acquire", blocking_timeout=0)
    assert listed(client, name) == []
    assert count(client, "publish") == before


def test_a_waiter_that_finds_the_lock_free_behind_a_dead_one_takes_it_and_tells_nobody(
    join: Join, ghost: Callable[..., Ghost], client: redis.Redis, listening: Callable[[], Ears]
) -> None:
    listening()
    Lock(NAME, ttl=0.5, auto_renew=False).acquire()
    ghost(alive=False).queue(TOKEN, name=NAME, age=1)
    before = count(client, "publish")
    waiting = join(Lock(NAME))
    assert waiting.result()
    assert (holder(client), flag(client), queued(client)) == (waiting.id, "c", 0)
    assert count(client, "publish") == before
