"""R6: whoever waits is in the queue, whatever becomes of the connection on which messages come."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

import pytest
import redis

from django_redislock import Lock, force_release
from django_redislock.engine.listener import Listener
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, QUEUE, WAITERS, holder, value
from tests.protocol.scene import LONG, Eventually, Line, listed

HOLDER = "holder-holder-holder-1"

pytestmark = pytest.mark.usefixtures("nobody_looks")


@pytest.fixture
def held(ghost: Callable[..., Ghost]) -> None:
    """Another process holds the lock, and does nothing about it."""
    ghost().queue(HOLDER, name=NAME, ttl=LONG)


def cut(client: redis.Redis) -> None:
    """The connections on which messages come."""
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


@pytest.mark.usefixtures("held")
def test_all_waiters_stand_in_the_queue_again_after_a_reconnect_in_their_order(
    line: Line, client: redis.Redis, eventually: Eventually
) -> None:
    """Every subscription lets all waiters of the process queue again, with their tickets, not only the first."""
    fences = [line.visit(Lock(NAME)) for _ in range(6)]
    before = listed(client)
    client.delete(QUEUE, WAITERS)  # as those do who find nobody listening while the connection is down
    cut(client)
    eventually(lambda: listed(client) == before)
    force_release(NAME)
    found = [fence.result(GENEROUS) for fence in fences]
    assert found == sorted(found)


@pytest.mark.usefixtures("held")
def test_a_waiter_queued_by_a_request_from_before_a_reconnect_looks_again(
    network: Proxy,
    line: Line,
    client: redis.Redis,
    listening: Callable[..., Listener],
    eventually: Eventually,
) -> None:
    """ "Queued", said to a request that was sent under an older subscription, does not count."""
    ears = listening("other")
    answer = network.hold_answer(LOCK)
    waiting = line.join(Lock(NAME, using="other"))
    assert answer.caught.wait(GENEROUS)
    generation = ears.generation
    cut(client)
    client.delete(QUEUE, WAITERS)
    eventually(lambda: ears.generation > generation and ears.ready)
    answer.let_go()
    eventually(lambda: len(listed(client)) == 1)
    force_release(NAME)
    assert waiting.result()


def test_a_wake_that_overtakes_the_answer_to_the_request_finds_its_waiter(
    network: Proxy, line: Line, client: redis.Redis, listening: Callable[..., Listener], eventually: Eventually
) -> None:
    """A waiter is known to the listener before its request is sent."""
    ears = listening("other")
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    answer = network.hold_answer(LOCK)
    waiting = line.join(Lock(NAME, using="other"))
    assert answer.caught.wait(GENEROUS)
    heard = ears.heard
    lock.release()
    granted = value(client)
    eventually(lambda: ears.heard > heard)
    answer.let_go()
    assert waiting.result()
    assert (waiting.id, waiting.fence) == (granted[0], int(granted[3]))


@pytest.mark.usefixtures("held")
def test_waiters_that_leave_while_the_listener_reconnects_are_in_no_queue(crowd: Crowd, client: redis.Redis) -> None:
    """The looks of a waiter and its leaving never cross."""
    people = [crowd() for _ in range(20)]
    futures = [
        person.start(Lock(NAME, blocking_timeout=0.05 * (1 + number)), "acquire")
        for number, person in enumerate(people)
    ]
    while not all(future.done() for future in futures):
        cut(client)
        sleep(0.03)
    assert not any(future.result() for future in futures)
    assert listed(client) == []
    assert holder(client) == HOLDER
