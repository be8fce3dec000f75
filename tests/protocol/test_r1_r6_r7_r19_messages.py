"""What a message is worth that comes late (R1), to somebody who has left (R7), or not at all (R6, R19)."""

from __future__ import annotations

import threading
from contextlib import suppress
from time import monotonic

import pytest
import redis

from django_redislock import Lock, LockPool, LockUnavailable, force_release
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, server_time
from tests.helpers.cancelling import Interrupt
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, QUEUE, WAITERS, holder, queued, value
from tests.inside import limit
from tests.protocol.scene import ACQUIRE, LONG, POOL, Eventually, Ghosts, Join, Listening, listed

nobody_looks = pytest.mark.usefixtures("nobody_looks")


@pytest.fixture
def held() -> Lock:
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    return lock


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
        assert wake.over.wait(GENEROUS)
    else:
        me = crowd()
        network.delay_answer(ACQUIRE, 0.5)
        assert me(lock, "acquire")
        if late == "reacquire":
            network.delay_answer(LOCK, 0.5)
            me(lock, "reacquire")
    ends_here = me.read(lambda: monotonic() + lock.remaining())
    assert ends_here <= int(client.pttl(LOCK)) / 1000 + monotonic() + 0.001


def test_answers_that_come_after_the_end_of_their_lease_grant_nothing(
    network: Proxy, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    late = network.delay_answer(ACQUIRE, 0.1, times=3)
    with pytest.raises(LockUnavailable, match=r"Redis takes longer to respond than the TTL of the lock \(0\.05 s"):
        crowd()(Lock(NAME, ttl=0.05, using="other"), "acquire", blocking=False)
    assert late.met == 3
    eventually(lambda: not holder(client))


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


@nobody_looks
def test_all_waiters_are_in_the_queue_again_after_a_reconnect_and_in_order(
    held: Lock, join: Join, client: redis.Redis, eventually: Eventually
) -> None:
    waiting = [join(Lock(NAME)) for _ in range(4)]
    before = listed(client)
    client.delete(QUEUE, WAITERS)  # as those do who find nobody listening while the connection is down
    client.client_kill_filter(_type="pubsub")
    eventually(lambda: listed(client) == before)
    held.release()
    for one in waiting:
        assert one.result()
        one.release()


@pytest.mark.usefixtures("nobody_looks", "fresh")
@pytest.mark.parametrize("next_one", ["stands", "is refused"])
def test_when_the_reader_is_interrupted_nobody_overtakes_the_other_waiters_of_its_process(
    next_one: str, threads: Join, ghost: Ghosts, client: redis.Redis, eventually: Eventually
) -> None:
    """What it was about to read may be lost, but the subscription counts until another one stands."""
    ghost().queue("the-holder------------", name=NAME, ttl=LONG)
    waiting = [threads(Lock(NAME, ttl=LONG)) for _ in range(2)]
    ghost().queue("of-another-process-----", name=NAME, ttl=LONG)
    begun, may_subscribe, channel = threading.Event(), threading.Event(), inside.own_channel()
    patch = pytest.MonkeyPatch()

    def hold_up() -> None:
        begun.set()
        assert may_subscribe.wait(GENEROUS)
        patch.undo()
        if next_one == "is refused":
            raise redis.ConnectionError("refused")

    def interrupt() -> None:
        if threading.current_thread().name != "redislock-listener":  # nobody interrupts that one
            raise Interrupt

    inside.before_it_subscribes(patch, hold_up)
    inside.before_it_reads(patch, interrupt)
    eventually(lambda: client.publish(channel, "a message") and any(one.future.done() for one in waiting))
    reads, stays = sorted(waiting, key=lambda one: not one.future.done())
    with pytest.raises(Interrupt):
        reads.result()
    assert begun.wait(GENEROUS)
    eventually(lambda: len(listed(client)) == 2)
    force_release(NAME)
    assert value(client)[0] != "of-another-process-----"
    may_subscribe.set()
    assert stays.result()
    eventually(lambda: client.pubsub_numsub(channel) == [(channel.encode(), 1)])  # the old one is closed


# -- R7 ---------------------------------------------------------------------------------------------------------------


@nobody_looks
@pytest.mark.parametrize("kind", ["handed over", "left to one that polls", "a member"])
def test_a_message_to_a_waiter_that_has_left_reaches_the_next_at_once(
    kind: str, held: Lock, pool: LockPool, join: Join, client: redis.Redis, listening: Listening
) -> None:
    listening()
    thing, name = (pool, POOL) if kind == "a member" else (Lock(NAME), NAME)
    lock = pool.acquire(ttl=LONG) if kind == "a member" else held
    here, now = inside.own_process(), server_time(client)
    if kind == "left to one that polls":
        polls = here.request("polls-polls-polls-poll", name=name, ttl=LONG)
        here.acquire(polls, inside.polled(0.5), now)
    here.acquire(here.request("gone-gone-gone-gone-gone", name=name, ttl=LONG), ticket=now + 1)
    waiting = join(thing, blocking_timeout=GENEROUS)
    lock.release()
    assert waiting.result(within=15)  # the lease of that handoff is 200 s
    assert listed(client, name) == []


def test_a_withdrawal_that_could_not_be_sent_is_sent_later(
    held: Lock, network: Proxy, join: Join, client: redis.Redis, eventually: Eventually
) -> None:
    waiting = join(Lock(NAME, blocking_timeout=1, using="other"))
    network.cut()
    with suppress(LockUnavailable):  # that is true as well
        assert not waiting.result()
    assert queued(client) == 1
    network.mend()
    eventually(lambda: queued(client) == 0)


# -- R19 --------------------------------------------------------------------------------------------------------------


@pytest.mark.complete
@pytest.mark.parametrize("ttl", [30, 1], ids=["granted long ago", "its handoff has ended"])
def test_a_look_that_finds_a_grant_of_which_nobody_has_told_makes_the_listener_reconnect(
    ttl: float,
    held: Lock,
    network: Proxy,
    join: Join,
    client: redis.Redis,
    listening: Listening,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(monkeypatch, look_every=2.0)
    ears = listening("other")
    generation = ears.generation
    waiting = join(Lock(NAME, ttl=ttl, using="other"))
    network.swallow_message(f"g {listed(client)[0][0]}")
    held.release()
    assert waiting.result()
    eventually(lambda: ears.generation > generation and ears.ready)


@nobody_looks
def test_an_incomplete_message_makes_the_listener_reconnect(
    held: Lock, network: Proxy, join: Join, listening: Listening, eventually: Eventually
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
