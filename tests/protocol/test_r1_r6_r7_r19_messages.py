"""What a message is worth that comes late (R1), to somebody who has left (R7), or not at all (R6, R19)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockPool, LockUnavailable, force_release
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Ghost, server_time
from tests.helpers.interrupts import Interrupt
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, QUEUE, WAITERS, holder, queued, value
from tests.inside import Ears, limit
from tests.protocol.scene import ACQUIRE, HOLDER, LONG, POOL, Eventually, Join, joiner, listed

nobody_looks = pytest.mark.usefixtures("nobody_looks")


@pytest.fixture
def held() -> Lock:
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    return lock


@pytest.fixture
def held_elsewhere(ghost: Callable[..., Ghost]) -> None:
    """Another process holds the lock, and does nothing about it."""
    ghost().queue(HOLDER, name=NAME, ttl=LONG)


# -- R1 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", ["acquire", "reacquire", "handoff"])
def test_however_late_the_news_a_lease_ends_here_no_later_than_in_redis(
    late: str, network: Proxy, crowd: Crowd, join: Join, client: redis.Redis
) -> None:
    lock, first = Lock(NAME, ttl=3, auto_renew=False, using="other"), Lock(NAME)
    if late == "handoff":
        first.acquire()
        waiting = join(lock)
        me = waiting.person
        wake = network.delay_message(f"g {listed(client)[0][0]}", 0.5)
        first.release()
        assert waiting.result()
        assert wake.over.is_set()
    else:
        me = crowd()
        network.delay_answer(ACQUIRE, 0.5)
        assert me(lock, "acquire")
        if late == "reacquire":
            network.delay_answer(LOCK, 0.5)
            me(lock, "reacquire")
    ends_here = me.read(lambda: monotonic() + lock.remaining())
    assert ends_here <= int(client.pttl(LOCK)) / 1000 + monotonic() + 0.001


def test_a_handed_over_lease_is_not_overestimated_when_the_clock_of_the_server_has_jumped_ahead(
    held: Lock, join: Join, listening: Callable[[], Ears], eventually: Eventually
) -> None:
    listening()
    before = inside.clock_of_server()
    waiting = join(Lock(NAME, ttl=3, auto_renew=False))
    eventually(lambda: inside.clock_of_server() != before)
    inside.clock_has_jumped(3600)  # since the server said what it is
    held.release()
    assert waiting.result()
    assert waiting.person.read(waiting.lock.remaining) <= 3


def test_an_answer_that_comes_after_the_end_of_its_lease_grants_nothing(
    network: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    """Redis is asked again."""
    me, lock = crowd(), Lock(NAME, ttl=0.5, auto_renew=False, using="other")
    late = network.delay_answer(ACQUIRE, 0.7)
    assert me(lock, "acquire")
    assert late.over.is_set()
    granted = value(client)
    assert me.read(lambda: (lock.token, lock.fence, lock.remaining() > 0)) == (granted[0], int(granted[3]), True)


@nobody_looks
@pytest.mark.parametrize("at_work", [True, False], ids=["others hold it", "it is free"])
def test_a_wake_that_comes_after_the_end_of_its_lease_is_a_hint_to_look(
    at_work: bool, held: Lock, network: Proxy, join: Join, client: redis.Redis, eventually: Eventually
) -> None:
    waiting = join(Lock(NAME, ttl=0.5, auto_renew=False, using="other"))
    late = network.hold_message(f"g {listed(client)[0][0]}")
    held.release()
    eventually(lambda: not holder(client))
    if at_work:
        held.acquire()
    late.let_go()
    if at_work:
        eventually(lambda: queued(client) == 1)
        held.release()
    assert waiting.result()
    assert value(client)[0] == waiting.id


# -- R6 ---------------------------------------------------------------------------------------------------------------


def cut(client: redis.Redis) -> None:
    """The connections on which messages come."""
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


@nobody_looks
@pytest.mark.usefixtures("held_elsewhere")
def test_all_waiters_are_in_the_queue_again_after_a_reconnect_and_in_order(
    join: Join, client: redis.Redis, eventually: Eventually
) -> None:
    waiting = [join(Lock(NAME)) for _ in range(4)]
    before = listed(client)
    client.delete(QUEUE, WAITERS)  # as those do who find nobody listening while the connection is down
    cut(client)
    eventually(lambda: listed(client) == before)
    force_release(NAME)
    for one in waiting:
        assert one.result()
        one.release()


@nobody_looks
@pytest.mark.usefixtures("held_elsewhere")
def test_a_waiter_queued_by_a_request_from_before_a_reconnect_looks_again(
    network: Proxy, join: Join, client: redis.Redis, listening: Callable[..., Ears], eventually: Eventually
) -> None:
    ears = listening("other")
    answer = network.hold_answer(LOCK)
    waiting = join(Lock(NAME, using="other"))
    assert answer.caught.wait(GENEROUS)
    generation = ears.generation
    cut(client)
    client.delete(QUEUE, WAITERS)
    eventually(lambda: ears.generation > generation and ears.ready)
    answer.let_go()
    eventually(lambda: len(listed(client)) == 1)
    force_release(NAME)
    assert waiting.result()


@nobody_looks
def test_a_wake_that_overtakes_the_answer_to_the_request_finds_its_waiter(
    held: Lock,
    network: Proxy,
    join: Join,
    client: redis.Redis,
    listening: Callable[..., Ears],
    eventually: Eventually,
) -> None:
    """A waiter is known to the listener before its request is sent."""
    ears = listening("other")
    answer = network.hold_answer(LOCK)
    waiting = join(Lock(NAME, using="other"))
    assert answer.caught.wait(GENEROUS)
    heard = ears.heard
    held.release()
    granted = value(client)
    eventually(lambda: ears.heard > heard)
    answer.let_go()
    assert waiting.result()
    assert value(client)[:4] == granted[:4]
    assert inside.own_process("other").known_fence >= int(granted[3])  # a fence that only a message has told


def interrupt() -> None:
    if threading.current_thread().name != "redislock-listener":  # nobody interrupts that one
        raise Interrupt


@nobody_looks
@pytest.mark.usefixtures("held_elsewhere")
@pytest.mark.parametrize("next_one", ["stands", "is refused"])
def test_when_the_reader_is_interrupted_nobody_overtakes_the_other_waiters_of_its_process(
    next_one: str,
    ghost: Callable[..., Ghost],
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it was about to read may be lost, but the subscription counts until another one stands."""
    threads = Crowd(tasks=False)
    join = joiner(threads, client, eventually)
    waiting = [join(Lock(NAME, ttl=LONG)) for _ in range(2)]
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
    reads, stays = sorted(waiting, key=lambda one: not one.future.done())
    with pytest.raises(Interrupt):
        reads.result()
    assert begun.wait(GENEROUS)
    eventually(lambda: len(listed(client)) == 2)
    force_release(NAME)
    assert value(client)[0] not in (HOLDER, "of-another-process-----")
    may_subscribe.set()
    assert stays.result()
    eventually(lambda: client.pubsub_numsub(channel) == [(channel.encode(), 1)])  # the old one is closed
    threads.close()


# -- R7 ---------------------------------------------------------------------------------------------------------------


@nobody_looks
@pytest.mark.parametrize("kind", ["handed over", "left to one that polls", "a member"])
def test_a_message_to_a_waiter_that_has_left_reaches_the_next_at_once(
    kind: str, pool: LockPool, join: Join, client: redis.Redis, listening: Callable[[], Ears]
) -> None:
    listening()
    thing, name = (pool, POOL) if kind == "a member" else (Lock(NAME, ttl=LONG), NAME)
    here, gone = inside.own_process(), "gone-gone-gone-gone-gone"
    held: Any = thing.acquire(ttl=LONG) if thing is pool else thing
    if held is thing:
        held.acquire()
    if kind == "left to one that polls":
        polls = here.request("polls-polls-polls-poll", name=name, ttl=LONG)
        here.acquire(polls, inside.polled(0.5), server_time(client))
    here.acquire(here.request(gone, name=name, ttl=LONG), ticket=server_time(client))
    waiting = join(pool if thing is pool else Lock(NAME), blocking_timeout=GENEROUS)
    assert gone in dict(listed(client, name))
    held.release()
    assert waiting.result(within=15)  # the lease of that handoff is 200 s
    assert listed(client, name) == []


@pytest.mark.complete
def test_a_withdrawal_that_could_not_be_sent_is_sent_later(
    held: Lock, network: Proxy, join: Join, client: redis.Redis, eventually: Eventually
) -> None:
    waiting = join(Lock(NAME, blocking_timeout=2, using="other"))
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


# -- R19 --------------------------------------------------------------------------------------------------------------


@pytest.mark.complete
@pytest.mark.parametrize("ttl", [30, 1], ids=["granted long ago", "its handoff has ended"])
def test_a_scheduled_look_that_finds_an_unannounced_grant_makes_the_listener_reconnect(
    ttl: float,
    held: Lock,
    network: Proxy,
    join: Join,
    client: redis.Redis,
    listening: Callable[..., Ears],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(monkeypatch, look_every=2.0)
    ears = listening("other")
    generation = ears.generation
    waiting = join(Lock(NAME, ttl=ttl, using="other"))
    swallowed = network.swallow_message(f"g {listed(client)[0][0]}")
    held.release()
    assert swallowed.over.wait(GENEROUS)
    assert waiting.result()
    eventually(lambda: ears.generation > generation and ears.ready, within=10)


@nobody_looks
def test_an_incomplete_message_makes_the_listener_reconnect(
    held: Lock, network: Proxy, join: Join, listening: Callable[..., Ears], eventually: Eventually
) -> None:
    """After a second, instead of waiting for its end for ever."""
    ears = listening("other")
    generation = ears.generation
    waiting = join(Lock(NAME, using="other"))
    (link,) = [link for link in network.links if link.down.fileno() >= 0 and link.down.getpeername()[1] == ears.port]
    link.down.sendall(b"*3\r\n$7\r\nmessage\r\n$20\r\nhalf")
    eventually(lambda: ears.generation > generation and ears.ready)
    held.release()
    assert waiting.result()
