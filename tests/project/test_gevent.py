"""Threads that are greenlets: locks in processes that gevent has patched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import Lock, force_release
from tests.helpers.processes import Worker
from tests.helpers.state import holder as is_held
from tests.helpers.state import queued
from tests.inside import PREFIX

PATCHED = """
from gevent import monkey
monkey.patch_all()
"""

# hear() must not keep the other greenlets from running
GREENLETS = """
import gevent

def hear():
    return gevent.get_hub().threadpool.apply(sys.stdin.readline).strip()

def until(condition):
    while not condition():
        gevent.sleep(0.002)

def wait():
    with Lock("seat", blocking_timeout=60):
        return time.monotonic()
"""

# from now on, whoever is not told does not look within this test's time
NO_LOOKS = """
from django.conf import settings
from tests.inside import limit
limit(look_every=600)
settings.REDISLOCK = {"SLOW_WAIT": 600}
"""

Eventually = Callable[..., Any]
StartPatched = Callable[..., Worker]


@pytest.fixture
def start_patched(start: Callable[..., Worker]) -> StartPatched:
    """Start worker processes in which gevent patches everything first of all."""

    def start_patched(code: str, **values: Any) -> Worker:
        return start(GREENLETS + code, first=PATCHED, **values)

    return start_patched


HOLD = """
def hold(name):
    Lock(name, ttl=3).acquire()
    say("got", name)
    gevent.sleep(60)
"""


@pytest.mark.complete
def test_a_lock_is_renewed_while_its_greenlet_or_thread_waits_for_something_else(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    """gevent's threads are of several classes: the main one, its own, and one for each greenlet that is none."""
    code = (
        HOLD
        + """
threading.Thread(target=hold, args=["thread"], daemon=True).start()
greenlet = gevent.spawn(hold, "greenlet")
raw = gevent.spawn_raw(hold, "raw")
hold("main")
"""
    )
    worker = start_patched(code)
    names = {worker.expect("got")[0] for _ in range(4)}
    assert names == {"thread", "greenlet", "raw", "main"}
    keys = [f"{PREFIX}lock:{name}" for name in names]
    before = client.mget(keys)
    for _ in range(4):  # every third of the TTL
        for key in keys:
            eventually(lambda key=key: client.pttl(key) < 2400)
        for key in keys:
            eventually(lambda key=key: client.pttl(key) > 2550)
    assert client.mget(keys) == before


@pytest.mark.parametrize("where", ["in another process", "by the greenlet that spawned them"])
def test_a_release_wakes_waiting_greenlets_at_once(
    where: str, start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    code = (
        NO_LOOKS
        + """
lock = Lock("seat", ttl=600)
if where != "in another process":
    lock.acquire()
waiters = [gevent.spawn(wait) for _ in range(3)]
hear()
if lock.owned():
    lock.release()
say("got", all(waiter.get() for waiter in waiters))
"""
    )
    holder = Lock("seat", ttl=600)
    if where == "in another process":
        holder.acquire()
    worker = start_patched(code, where=where)
    eventually(lambda: queued(client, "seat") == 3)
    if where == "in another process":
        holder.release()
    worker.tell()
    assert worker.expect("got") == ["True"]
    assert not is_held(client, "seat")


@pytest.mark.complete
def test_1000_greenlets_get_the_lock_in_the_order_of_the_queue_over_a_bounded_number_of_connections(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    code = """
from tests.inside import most_connections
lock = Lock("seat", blocking_timeout=90)
order, inside = [], 0

def enter():
    global inside
    with lock:
        inside += 1
        assert inside == 1, "two holders at once"
        order.append(lock.token)
        if len(order) % 100 == 0:
            gevent.sleep(0.001)
        inside -= 1

say("ready", most_connections())
hear()
greenlets = [gevent.spawn(enter) for _ in range(1000)]
gevent.joinall(greenlets, raise_error=True)
say("order", *order)
hear()
"""
    worker = start_patched(code)
    (bound,) = worker.expect("ready")
    holder = Lock("seat")
    assert holder.acquire()
    already = client.info("clients")["connected_clients"]
    worker.tell()
    eventually(lambda: queued(client, "seat") == 1000, within=60)
    order = [token.decode() for token in client.zrange(f"{PREFIX}queue:seat", 0, -1)]
    assert client.info("clients")["connected_clients"] - already <= int(bound) + 2  # the listener, the watchdog
    holder.release()
    assert worker.expect("order") == order
    assert queued(client, "seat") == 0
    assert not is_held(client, "seat")


def test_each_greenlet_owns_its_own_acquisition_of_a_shared_lock(start_patched: StartPatched, client: Any) -> None:
    code = """
from tests.helpers.state import fence_of
lock = Lock("seat")

def meddle():
    say("knows", fence_of(lock), lock.token, lock.owned(), lock.acquire(blocking=False))
    try:
        lock.release()
    except LockNotOwned:
        say("refused")

with lock:
    gevent.spawn(meddle).get()
    say("still", lock.owned(), lock.lost)
say("free", lock.locked())
"""
    worker = start_patched(code)
    assert worker.expect("knows") == ["None", "None", "False", "False"]
    worker.expect("refused")
    assert worker.expect("still") == ["True", "False"]
    assert worker.expect("free") == ["False"]


@pytest.mark.complete
def test_greenlets_that_are_killed_or_timed_out_while_they_wait_leave_no_place_in_the_queue(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    code = (
        NO_LOOKS
        + """
def give_up():
    with gevent.Timeout(0.2, False):
        wait()
    return "gave up"

waiters = [gevent.spawn(wait) for _ in range(5)]
hear()
gevent.killall([waiters[0], waiters[2], waiters[4]])  # the first of them may be the one who reads for all
say(gevent.spawn(give_up).get())
hear()
say("got", all(waiter.get() for waiter in (waiters[1], waiters[3])))
hear()
"""
    )
    holder = Lock("seat", ttl=600)
    assert holder.acquire()
    worker = start_patched(code)
    eventually(lambda: queued(client, "seat") == 5)
    worker.tell()
    worker.expect("gave")
    eventually(lambda: queued(client, "seat") == 2)
    holder.release()
    worker.tell()
    assert worker.expect("got") == ["True"]
    assert queued(client, "seat") == 0


@pytest.mark.complete
def test_a_greenlet_that_is_killed_in_a_with_block_releases_the_lock_and_others_that_end_do_not_renew_theirs(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    code = (
        HOLD
        + """
def die(name):
    Lock(name, ttl=1).acquire()
    say("got", name)
    raise gevent.GreenletExit

def block(name):
    with Lock(name, ttl=600):
        say("got", name)
        gevent.sleep(60)

gevent.spawn(die, "ended")
doomed = [gevent.spawn(hold, "killed"), gevent.spawn(block, "block")]
alive = gevent.spawn(hold, "alive")
hear()
gevent.killall(doomed)
say("killed")
alive.join()
"""
    )
    worker = start_patched(code)
    assert {worker.expect("got")[0] for _ in range(4)} == {"ended", "killed", "block", "alive"}
    worker.tell()
    worker.expect("killed")
    assert not is_held(client, "block")
    eventually(lambda: not is_held(client, "ended") and not is_held(client, "killed"))
    assert is_held(client, "alive")


def test_a_greenlet_hears_at_once_that_its_lock_was_force_released(start_patched: StartPatched) -> None:
    code = """
from tests.inside import hears

def hold():
    lock = Lock("seat", ttl=600, on_lost=lambda error: say("told", error.name))
    lock.acquire()
    until(hears)  # it listens when it has held for 0.1 s
    say("got")
    until(lambda: lock.lost)
    say("lost")
    hear()

gevent.spawn(hold).get()
"""
    worker = start_patched(code)
    worker.expect("got")
    assert force_release("seat") is not None
    worker.expect("lost")  # the next renewal would be 200 s later


@pytest.mark.complete
def test_other_greenlets_run_on_while_greenlets_wait(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    """Neither who reads for the others, nor who only waits, holds up the hub."""
    code = """
waiters = [gevent.spawn(wait) for _ in range(20)]
hear()
for _ in range(200):
    gevent.sleep(0.001)
say("ticked", *(waiter.ready() for waiter in waiters))
gevent.joinall(waiters, raise_error=True)
say("through")
"""
    holder = Lock("seat")
    assert holder.acquire()
    worker = start_patched(code)
    eventually(lambda: queued(client, "seat") == 20)
    worker.tell()
    assert worker.expect("ticked") == ["False"] * 20  # each tick takes a millisecond, if nothing holds up the hub
    holder.release()
    worker.expect("through")


@pytest.mark.complete
def test_a_greenlet_that_reads_for_the_others_waits_on_when_its_connection_is_cut(
    start_patched: StartPatched, client: Any
) -> None:
    code = """
from tests.inside import Ears, greenlet_reads

ears, lock = Ears(), Lock("seat")
with lock:
    waiters = [gevent.spawn(wait) for _ in range(3)]
    until(lambda: ears.ready and lock.info().waiters == 3)
    until(lambda: any(map(greenlet_reads, waiters)))
    generation = ears.generation
    say("reads")
    until(lambda: ears.generation > generation)
    until(lambda: any(map(greenlet_reads, waiters)))
    say("waits", *(waiter.ready() for waiter in waiters))
say("got", all(waiter.get() for waiter in waiters))
"""
    worker = start_patched(code)
    worker.expect("reads")
    client.client_kill_filter(_type="pubsub")
    assert worker.expect("waits") == ["False"] * 3
    assert worker.expect("got") == ["True"]


@pytest.mark.complete
@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_locks_work_where_gevent_patches_after_they_were_imported(used: bool, start: Callable[..., Worker]) -> None:
    code = """
if used:  # its background threads are no greenlets, and live on
    with Lock("before"):
        time.sleep(0.3)
import warnings
warnings.simplefilter("ignore")  # gevent warns that ssl was imported
from gevent import monkey
monkey.patch_all()
import gevent
inside = 0

def work(number):
    global inside
    with Lock("seat", ttl=1, blocking_timeout=60) as lock:
        inside += 1
        assert inside == 1, "two holders at once"
        gevent.sleep(1.2 if number == 0 else 0.01)
        lock.check()  # it was renewed
        inside -= 1

greenlets = [gevent.spawn(work, number) for number in range(20)]
gevent.joinall(greenlets, raise_error=True)
say("through")
"""
    start(code, used=used).expect("through", within=60)
