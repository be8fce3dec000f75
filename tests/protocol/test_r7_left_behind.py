"""R7: what reaches somebody who has left is passed on at once, and who leaves is in no queue in the end."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import redis

from django_redislock import Lock, LockPool, LockUnavailable
from tests import inside
from tests.helpers.actors import Crowd, server_time
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, holder, queued
from tests.inside import Ears
from tests.protocol.scene import LONG, Eventually, Line, Start, listed

GONE = "gone-gone-gone-gone-gone"
POOL = "pool:accounts:"


def queue_and_leave(client: redis.Redis, name: str) -> None:
    """Somebody in this process has queued, and nobody here knows it any more."""
    here = inside.own_process()
    taken = here.acquire(here.request(GONE, name=name, ttl=LONG), ticket=server_time(client))
    assert taken.state == inside.REQUEUED


@pytest.mark.usefixtures("nobody_looks")
def test_a_lock_handed_to_a_waiter_that_has_left_goes_to_the_next_at_once(
    line: Line, client: redis.Redis, listening: Callable[[], Ears]
) -> None:
    """A wake for an id that nobody here waits with is answered with a release."""
    listening()
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    queue_and_leave(client, NAME)
    waiting = line.join(Lock(NAME))
    assert listed(client)[0][0] == GONE
    lock.release()
    assert waiting.result(within=15)  # the lease of that handoff is 200 s


@pytest.mark.usefixtures("nobody_looks")
def test_a_lock_left_to_a_polling_waiter_is_watched_by_the_waiters_that_remain(
    line: Line, client: redis.Redis, listening: Callable[[], Ears], eventually: Eventually
) -> None:
    """The same where somebody is only told to look: to one who has left, another one of the queue is told."""
    listening()
    lock, here = Lock(NAME, ttl=LONG), inside.own_process()
    lock.acquire()
    request = here.request("polls-polls-polls-poll", name=NAME, ttl=LONG)
    here.acquire(request, inside.polled(0.5), server_time(client))
    queue_and_leave(client, NAME)
    waiting = line.join(Lock(NAME))
    assert [id for id, _ in listed(client)][1] == GONE
    lock.release()
    eventually(lambda: GONE not in dict(listed(client)))
    assert waiting.result()


@pytest.mark.usefixtures("nobody_looks")
def test_a_member_handed_to_a_waiter_that_has_left_goes_to_the_next_at_once(
    crowd: Crowd, client: redis.Redis, listening: Callable[[], Ears], eventually: Eventually
) -> None:
    listening()
    pool, me = LockPool("accounts"), crowd()
    pool.extend(["alice"])
    member = pool.acquire(ttl=LONG)
    queue_and_leave(client, POOL)
    waiting = me.start(pool, "acquire", blocking_timeout=30)
    eventually(lambda: pool.info().waiters == 2)
    member.release()
    assert waiting.result(15).key == "alice"


@pytest.mark.complete
def test_a_withdrawal_that_could_not_be_sent_is_sent_later(
    network: Proxy, line: Line, client: redis.Redis, eventually: Eventually
) -> None:
    Lock(NAME, ttl=LONG).acquire()
    waiting = line.join(Lock(NAME, blocking_timeout=5, using="other"))
    network.cut()
    try:
        assert not waiting.result()
    except LockUnavailable:
        pass  # that is true as well
    assert queued(client) == 1
    refused = network.refused
    eventually(lambda: network.refused >= refused + 5)  # the first tries in the background among them
    network.mend()
    eventually(lambda: queued(client) == 0)


def test_an_interrupted_waiter_leaves_the_queue(start: Start, client: redis.Redis, eventually: Eventually) -> None:
    """Whatever ends a wait, Redis is told; here it is Ctrl-C."""
    code = """
lock = Lock(name, blocking_timeout=60)
say("ready")
hear()
try:
    lock.acquire()
except KeyboardInterrupt:
    say("interrupted")
hear()
"""
    worker = start(code, name=NAME)
    worker.expect("ready")
    lock = Lock(NAME)
    lock.acquire()
    worker.tell()
    eventually(lambda: queued(client) == 1)
    worker.signal(signal.SIGINT)
    worker.expect("interrupted")
    eventually(lambda: queued(client) == 0)
    assert holder(client) == lock.token
