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
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import NAME, TOKEN, WAITERS, count, flag, holder, queued
from tests.inside import change_probe
from tests.protocol.scene import LONG, POOL, Eventually, Ghosts, Join, Listening, Start, lapse, listed, told

# -- R3 ---------------------------------------------------------------------------------------------------------------


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
    polled: str,
    join: Join,
    client: redis.Redis,
    listening: Listening,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are never handed the lock, which is left for the first of them. It counts as gone if it does not look."""
    listening(polled).end()
    listening(polled)  # refused once more, for the same reason
    assert caplog.text.count("event=not-subscribed") <= 1
    lock = Lock(NAME, using=polled)
    lock.acquire()
    leaves, *waiting = (join(Lock(NAME, using=polled, blocking_timeout=seconds)) for seconds in (0.5, 30, 30))
    assert not leaves.result()
    ids = [id for id, _ in listed(client)]

    def alive_until() -> int:
        entry: Any = client.hget(WAITERS, ids[0])
        assert entry.startswith(b"- ")
        return int(entry.split(b" ")[2])

    first = alive_until()
    eventually(lambda: alive_until() > first + 100_000)
    lock.release()
    assert not Lock(NAME, using=polled).acquire(blocking=False)
    for id, one in zip(ids, waiting, strict=True):
        assert one.result()
        assert (holder(client), flag(client)) == (id, "c")
        one.release()


# -- R4 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("look_soon")
@pytest.mark.parametrize("kind", ["lock", "pool"])
def test_a_stuck_process_with_four_waiters_costs_one_handoff_lease(
    kind: str, pool: LockPool, ghost: Ghosts, join: Join
) -> None:
    """A handoff whose lease ended unconfirmed leaves a trace. Who finds it drops every waiter of that process."""
    stuck, lock, held = ghost(), Lock(NAME), pool.acquire()
    lock.acquire()
    for number in range(4):
        stuck.queue(f"stuck-stuck-stuck-stuck-{number}", name=POOL if kind == "pool" else NAME, ttl=0.5)
    waiting = join(pool if kind == "pool" else Lock(NAME), blocking_timeout=GENEROUS)
    (held if kind == "pool" else lock).release()
    assert waiting.result()
    assert told(stuck) == [["g", "stuck-stuck-stuck-stuck-0"]]


# a process that starts a thread whenever it is told to, which waits for the lock and releases it
WAITS = """
from tests.inside import limit
limit(look_every=600.0)

def wait(number):
    with Lock(name, ttl=1, blocking_timeout=60):
        say("acquired", number)

for number in range(4):
    hear()
    threading.Thread(target=wait, args=(number,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.complete
@pytest.mark.usefixtures("look_soon")
@pytest.mark.parametrize("busy", [True, False], ids=["held", "free"])
def test_the_waiters_of_a_process_that_was_stopped_come_back_with_their_tickets(
    busy: bool, start: Start, join: Join, client: redis.Redis, eventually: Eventually
) -> None:
    """Dropped, but alive: when the process runs again, all its waiters are back at their places."""
    lock, worker = Lock(NAME), start(WAITS, name=NAME)
    lock.acquire()
    for number in range(4):
        worker.tell()
        eventually(lambda number=number: queued(client) == number + 1)
    worker.signal(signal.SIGSTOP)
    os.waitpid(worker.pid, os.WUNTRACED)  # until it has stopped
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

Lock("other").acquire()
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
    lock, parent = Lock(NAME), start(FORKS, name=NAME)
    lock.acquire()
    eventually(lambda: queued(client) == 1)
    parent.tell()
    child = int(parent.expect("child")[0])
    try:
        eventually(lambda: queued(client) == 2)
        ids = [id for id, _ in listed(client)]
        channels = [entry.split()[0] for entry in client.hmget(WAITERS, ids) if entry]
        parent.kill()
        eventually(lambda: [number for _, number in client.pubsub_numsub(*channels)] == [0, 1])
        lock.release()
        assert holder(client) == ids[1]
    finally:
        os.kill(child, signal.SIGKILL)


# -- R5 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nobody_looks")
def test_waiters_look_when_the_lease_ends_of_whoever_holds_the_lock_now(join: Join) -> None:
    Lock(NAME, ttl=0.3, auto_renew=False).acquire()
    second, third = (join(Lock(NAME, ttl=0.5, auto_renew=False)) for _ in range(2))
    assert second.result()  # and nobody releases it
    assert third.result()


@pytest.mark.usefixtures("look_soon")
def test_waiters_of_a_process_look_no_more_often_than_one_and_the_next_goes_on_with_it(
    join: Join, client: redis.Redis, eventually: Eventually
) -> None:
    Lock(NAME, ttl=LONG).acquire()
    leave = [join(Lock(NAME, blocking_timeout=1.5)) for _ in range(5)]
    stays = join(Lock(NAME))
    before, began = count(client, "evalsha"), monotonic()
    eventually(lambda: count(client, "evalsha") >= before + 4)
    assert monotonic() - began > 3 * 0.3
    assert not any(one.result() for one in leave)
    lapse(client)
    assert stays.result()


# -- R9 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dead"), [(NAME, 1), (NAME, 1200), (POOL, 250)])
def test_who_finds_a_lock_free_behind_dead_waiters_takes_it_in_a_single_try_and_tells_nobody(
    name: str, dead: int, pool: LockPool, crowd: Crowd, ghost: Ghosts, client: redis.Redis
) -> None:
    """After dropping them, the script decides again; where they are very many, it is called again."""
    gone, thing = ghost(alive=False), pool if name == POOL else Lock(NAME)
    thing.acquire()
    for number in range(dead):
        gone.queue(f"{TOKEN}-{number}", name=name, age=10)
    lapse(client, name)
    before = count(client, "publish")
    assert crowd()(pool if name == POOL else Lock(NAME), "acquire", blocking_timeout=0)
    assert listed(client, name) == []
    assert count(client, "publish") == before
