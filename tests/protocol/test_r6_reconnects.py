"""R6: whoever waits is in the queue, whatever becomes of the connection on which messages come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep

import pytest
import redis

from django_redislock import Lock, force_release
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost
from tests.helpers.interrupts import Interrupt
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, QUEUE, WAITERS, holder, value
from tests.inside import Ears
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
def test_all_waiters_are_in_the_queue_again_after_a_reconnect_and_in_order(
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
    listening: Callable[..., Ears],
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
    network: Proxy, line: Line, client: redis.Redis, listening: Callable[..., Ears], eventually: Eventually
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
def test_waiters_that_leave_while_the_listener_reconnects_leave_the_queue(crowd: Crowd, client: redis.Redis) -> None:
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


def interrupt() -> None:
    if threading.current_thread().name != "redislock-listener":  # nobody interrupts that one
        raise Interrupt


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("next_one", ["stands", "is refused"])
def test_when_the_reader_is_interrupted_nobody_overtakes_the_other_waiters_of_its_process(
    next_one: str,
    threads: Line,
    ghost: Callable[..., Ghost],
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it was about to read may be lost, but the subscription counts until another one stands."""
    waiting = [threads.join(Lock(NAME, ttl=LONG)) for _ in range(2)]
    ghost().queue("of-another-process-----", name=NAME, ttl=LONG)
    begun, may_subscribe = threading.Event(), threading.Event()

    def hold_up() -> None:
        begun.set()
        assert may_subscribe.wait(GENEROUS)
        if next_one == "is refused":
            monkeypatch.undo()
            raise redis.ConnectionError("refused")

    inside.before_it_subscribes(monkeypatch, hold_up)
    inside.before_it_reads(monkeypatch, interrupt)
    channel = inside.own_channel()
    eventually(lambda: client.publish(channel, "a message") and any(one.future.done() for one in waiting))
    (reads,) = [one for one in waiting if one.future.done()]
    (stays,) = [one for one in waiting if one is not reads]
    with pytest.raises(Interrupt):
        reads.result()
    assert begun.wait(GENEROUS)
    eventually(lambda: len(listed(client)) == 2)
    force_release(NAME)
    assert value(client)[2] == "h"
    assert value(client)[0] not in (HOLDER, "of-another-process-----")
    may_subscribe.set()
    assert stays.result()
    eventually(lambda: client.pubsub_numsub(channel) == [(channel.encode(), 1)])  # the old one is closed
