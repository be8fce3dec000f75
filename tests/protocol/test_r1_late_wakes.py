"""R1: a message or answer about a lease that comes late makes the lease shorter, and after its end it no longer
counts."""

from __future__ import annotations

import signal
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock
from tests import inside
from tests.helpers.actors import Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import LOCK, NAME, flag, holder, queued, value
from tests.protocol.scene import ACQUIRE, LONG, WAITS, Eventually, Line, Start, freeze, listed


def ends_here(person: Any, lock: Lock) -> float:
    """The end of the lease as this process sees it, at most (monotonic)."""
    ends: float = person.read(lambda: monotonic() + lock.remaining())
    return ends


def ends_there(client: redis.Redis) -> float:
    """The earliest end of the lease in Redis, which counts in milliseconds."""
    return int(client.pttl(LOCK)) / 1000 + monotonic() + 0.001


def test_a_process_stopped_for_longer_than_its_handoff_lease_does_not_enter_on_the_old_wake(
    start: Start, client: redis.Redis, eventually: Eventually
) -> None:
    worker = start(WAITS, name=NAME, ttl=1.0, look_every=LONG)
    worker.expect("ready")
    first, second = Lock(NAME), Lock(NAME)
    first.acquire()
    worker.tell()
    eventually(lambda: queued(client) == 1)
    freeze(worker)
    first.release()
    assert flag(client) == "h", "handed over to the stopped process"
    eventually(lambda: not holder(client))
    second.acquire()
    fence = second.fence or 0
    worker.signal(signal.SIGCONT)
    eventually(lambda: queued(client) == 1)  # it looks again, and finds somebody else
    second.release()
    (its_fence,) = worker.expect("acquired")
    assert int(its_fence) > fence


def test_a_local_lease_counts_from_the_moment_its_request_was_sent(
    network: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=3, auto_renew=False, using="other")
    network.delay_answer(ACQUIRE, 0.5)
    assert me(lock, "acquire")
    assert ends_here(me, lock) <= ends_there(client)
    network.delay_answer(LOCK, 0.5)
    me(lock, "reacquire")
    assert ends_here(me, lock) <= ends_there(client)


def test_a_handed_over_lease_ends_here_no_later_than_in_redis_when_its_wake_comes_late(
    network: Proxy, line: Line, client: redis.Redis
) -> None:
    """The wake tells the server's time of the grant, and the lease counts from there."""
    lock = Lock(NAME)
    lock.acquire()
    waiting = line.join(Lock(NAME, ttl=3, auto_renew=False, using="other"))
    late = network.delay_message(f"g {listed(client)[0][0]}", 0.5)
    released = monotonic()
    lock.release()
    assert waiting.result()
    assert monotonic() - released >= 0.5, "it was the wake that told it"
    assert late.over.wait(10)
    assert ends_here(waiting.person, waiting.lock) <= ends_there(client)


def test_a_handed_over_lease_is_not_overestimated_when_the_clock_of_the_server_has_jumped_ahead(
    line: Line, listening: Callable[[], object], eventually: Eventually
) -> None:
    """Whenever the grant was made, it was not in the future."""
    listening()
    lock = Lock(NAME)
    lock.acquire()
    before = inside.clock_of_server()
    waiting = line.join(Lock(NAME, ttl=3, auto_renew=False))
    eventually(lambda: inside.clock_of_server() != before)
    inside.clock_has_jumped(3600)  # since the server said what it is
    lock.release()
    assert waiting.result()
    assert ends_here(waiting.person, waiting.lock) <= monotonic() + 3


def test_an_answer_that_comes_after_the_end_of_its_lease_grants_nothing(
    network: Proxy, crowd: Crowd, client: redis.Redis
) -> None:
    """Redis is asked again."""
    me, lock = crowd(), Lock(NAME, ttl=1, auto_renew=False, using="other")
    late = network.delay_answer(ACQUIRE, 1.3)
    assert me(lock, "acquire")
    assert me.read(lock.remaining) > 0
    assert late.over.wait(10)
    granted = value(client)
    assert (granted[0], int(granted[3])) == me.read(lambda: (lock.token, lock.fence))


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("at_work", [True, False], ids=["others wait", "alone"])
def test_a_wake_that_comes_after_the_end_of_its_lease_is_a_hint_to_look(
    at_work: bool, network: Proxy, line: Line, client: redis.Redis, eventually: Eventually
) -> None:
    lock = Lock(NAME)
    lock.acquire()
    waiting = line.join(Lock(NAME, ttl=1, auto_renew=False, using="other"))
    ((id, _),) = listed(client)
    late = network.hold_message(f"g {id}")
    lock.release()
    eventually(lambda: not holder(client))
    if at_work:
        lock.acquire()
    late.let_go()
    assert late.over.wait(10)
    if at_work:
        eventually(lambda: queued(client) == 1)
        lock.release()
    assert waiting.result()
    granted = value(client)
    assert (granted[0], int(granted[3])) == (waiting.id, waiting.fence)
