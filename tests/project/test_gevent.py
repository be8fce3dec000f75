"""Threads that are greenlets: locks in processes that gevent has patched."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from django_redislock import Lock, force_release
from tests.helpers.processes import Worker

PREFIX = "redislock{0}:"

PATCHED = """
from gevent import monkey
monkey.patch_all()
"""

# hear() must not keep the other greenlets from running. A greenlet's frames tell where it stands.
GREENLETS = """
import gevent

def hear():
    return gevent.get_hub().threadpool.apply(sys.stdin.readline).strip()

def until(condition):
    while not condition():
        gevent.sleep(0.002)

def stands_in(greenlet, function):
    frame = greenlet.gr_frame
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None

def run(function, *arguments):
    return gevent.spawn(function, *arguments).get()
"""

Eventually = Callable[..., Any]
StartPatched = Callable[..., Worker]


@pytest.fixture
def start_patched(start: Callable[..., Worker]) -> StartPatched:
    """Start worker processes in which gevent patches everything first of all."""

    def start_patched(code: str, **values: Any) -> Worker:
        return start(GREENLETS + code, first=PATCHED, **values)

    return start_patched


def queued(client: Any, name: str = "seat") -> int:
    """How many wait, by whichever key has more of them."""
    return max(int(client.zcard(f"{PREFIX}queue:{name}")), int(client.hlen(f"{PREFIX}waiters:{name}")))


def is_held(client: Any, name: str = "seat") -> bool:
    return bool(client.exists(f"{PREFIX}lock:{name}"))


HOLD = """
def hold(name):
    Lock(name, ttl=1).acquire()
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
            eventually(lambda key=key: client.pttl(key) < 800)
        for key in keys:
            eventually(lambda key=key: client.pttl(key) > 850, within=5)
    assert client.mget(keys) == before


@pytest.mark.complete
def test_a_release_in_another_process_wakes_a_waiting_greenlet_at_once(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    code = """
lock = Lock("seat", blocking_timeout=60)
lock.acquire()
say("got", time.monotonic())
hear()
"""
    holder = Lock("seat")
    assert holder.acquire()
    worker = start_patched(code)
    eventually(lambda: queued(client) == 1)
    released = monotonic()
    holder.release()
    (when,) = worker.expect("got")
    assert float(when) - released < 0.25  # those who are not woken look after 5 s


def test_a_release_in_the_same_process_wakes_a_waiting_greenlet_at_once(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    code = """
def wait():
    with Lock("seat", blocking_timeout=60):
        return time.monotonic()

with Lock("seat"):
    waiters = [gevent.spawn(wait) for _ in range(3)]
    hear()
    released = time.monotonic()
say("got", max(waiter.get() for waiter in waiters) - released)
"""
    worker = start_patched(code)
    eventually(lambda: queued(client) == 3)
    worker.tell()
    (took,) = worker.expect("got")
    assert float(took) < 0.25
    assert not is_held(client)


@pytest.mark.complete
def test_1000_greenlets_get_the_lock_in_the_order_of_the_queue_over_a_bounded_number_of_connections(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    code = """
from django_redislock.store.stores import get_partition
lock = Lock("seat", blocking_timeout=90)
order, inside = [], 0

def wait():
    global inside
    with lock:
        inside += 1
        assert inside == 1, "two holders at once"
        order.append(lock.token)
        if len(order) % 100 == 0:
            gevent.sleep(0.001)
        inside -= 1

say("ready", get_partition().store.bound)
hear()
greenlets = [gevent.spawn(wait) for _ in range(1000)]
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
    eventually(lambda: queued(client) == 1000, within=60)
    order = [token.decode() for token in client.zrange(f"{PREFIX}queue:seat", 0, -1)]
    assert client.info("clients")["connected_clients"] - already <= int(bound) + 2  # the listener, the watchdog
    holder.release()
    assert worker.expect("order") == order
    assert queued(client) == 0
    assert not is_held(client)


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
    run(meddle)
    say("still", lock.owned(), lock.lost)
say("free", lock.locked())
"""
    worker = start_patched(code)
    assert worker.expect("knows") == ["None", "None", "False", "False"]
    worker.expect("refused")
    assert worker.expect("still") == ["True", "False"]
    assert worker.expect("free") == ["False"]


def test_a_greenlet_can_wait_for_the_lock_that_the_one_who_spawned_it_holds(start_patched: StartPatched) -> None:
    """It is not taken for one that would wait for itself."""
    code = """
lock = Lock("seat", blocking_timeout=60)

def follow():
    with lock:
        return lock.fence

with lock:
    mine = lock.fence
    follower = gevent.spawn(follow)
    until(lambda: lock.info().waiters)
say("fences", mine, follower.get())
"""
    first, second = start_patched(code).expect("fences")
    assert int(first) < int(second)


@pytest.mark.complete
def test_greenlets_that_are_killed_or_timed_out_while_they_wait_leave_no_place_in_the_queue(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    code = """
def wait():
    with Lock("seat", blocking_timeout=60):
        return time.monotonic()

def give_up():
    with gevent.Timeout(0.2, False):
        wait()
    return "gave up"

waiters = [gevent.spawn(wait) for _ in range(5)]
hear()
gevent.killall([waiters[0], waiters[2], waiters[4]])  # the first of them may be the one who reads for all
say(gevent.spawn(give_up).get())
hear()
say("got", *sorted(waiter.get() for waiter in (waiters[1], waiters[3])))
hear()
"""
    holder = Lock("seat")
    assert holder.acquire()
    worker = start_patched(code)
    eventually(lambda: queued(client) == 5)
    worker.tell()
    worker.expect("gave")
    eventually(lambda: queued(client) == 2)
    released = monotonic()
    holder.release()
    worker.tell()
    assert all(float(when) - released < 0.5 for when in worker.expect("got"))
    assert queued(client) == 0


@pytest.mark.complete
def test_a_greenlet_killed_in_a_with_block_releases_the_lock(start_patched: StartPatched, client: Any) -> None:
    code = """
def hold():
    with Lock("seat", ttl=600):
        say("got")
        gevent.sleep(60)

greenlet = gevent.spawn(hold)
hear()
greenlet.kill()
say("killed")
hear()
"""
    worker = start_patched(code)
    worker.expect("got")
    assert is_held(client)
    worker.tell()
    worker.expect("killed")
    assert not is_held(client)


@pytest.mark.complete
def test_the_lock_of_a_greenlet_that_ended_or_was_killed_is_not_renewed_and_ends(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    code = (
        HOLD
        + """
def die(name):
    Lock(name, ttl=1).acquire()
    say("got", name)
    raise gevent.GreenletExit

ended = gevent.spawn(die, "ended")
killed = gevent.spawn(hold, "killed")
alive = gevent.spawn(hold, "alive")
hear()
killed.kill()
say("killed")
alive.join()
"""
    )
    worker = start_patched(code)
    assert {worker.expect("got")[0] for _ in range(3)} == {"ended", "killed", "alive"}
    worker.tell()
    worker.expect("killed")
    eventually(lambda: not is_held(client, "ended") and not is_held(client, "killed"), within=5)
    assert is_held(client, "alive")


def test_a_greenlet_hears_at_once_that_its_lock_was_force_released(start_patched: StartPatched) -> None:
    code = """
from tests.inside import hears

def hold():
    lock = Lock("seat", on_lost=lambda error: say("told", error.name))
    lock.acquire()
    until(hears)  # it listens when it has held for 0.1 s
    say("got")
    until(lambda: lock.lost)
    say("lost", time.monotonic())
    hear()

run(hold)
"""
    worker = start_patched(code)
    worker.expect("got")
    forced = monotonic()
    assert force_release("seat") is not None
    (when,) = worker.expect("lost")
    assert float(when) - forced < 0.25  # the next renewal would be 10 s later


@pytest.mark.complete
def test_other_greenlets_run_on_while_greenlets_wait(
    start_patched: StartPatched, client: Any, eventually: Eventually
) -> None:
    """Neither who reads for the others, nor who only waits, holds up the hub."""
    code = """
def wait():
    with Lock("seat", blocking_timeout=60):
        pass

waiters = [gevent.spawn(wait) for _ in range(20)]
hear()
gaps, last = [], time.monotonic()
for _ in range(200):
    gevent.sleep(0.001)
    gaps.append(time.monotonic() - last)
    last = time.monotonic()
say("ticked", sum(gap > 0.25 for gap in gaps), *(waiter.ready() for waiter in waiters))
gevent.joinall(waiters, raise_error=True)
say("through")
"""
    holder = Lock("seat")
    assert holder.acquire()
    worker = start_patched(code)
    eventually(lambda: queued(client) == 20)
    worker.tell()
    held_up, *ready = worker.expect("ticked")
    assert int(held_up) < 5  # by a busy machine, now and then
    assert ready == ["False"] * 20
    holder.release()
    worker.expect("through")


@pytest.mark.complete
def test_a_greenlet_that_reads_for_the_others_waits_on_when_its_connection_is_cut(
    start_patched: StartPatched, client: Any
) -> None:
    code = """
from django_redislock.store.stores import get_partition
from django_redislock.engine.runtime import runtime
from django_redislock.store.probe import probe_command

def wait():
    with Lock("seat", blocking_timeout=60):
        return "through"

def somebody_reads():
    partition.execute(probe_command(partition))  # whoever reads now makes room for one who waits
    return any(stands_in(waiter, "lead") for waiter in waiters)

partition = get_partition()
listener = runtime().listener(partition)
lock = Lock("seat")
with lock:
    waiters = [gevent.spawn(wait) for _ in range(3)]
    until(lambda: listener.ready and lock.info().waiters == 3)
    until(somebody_reads)
    generation = listener.generation
    listener.reconnect()
    until(lambda: listener.generation > generation)
    until(somebody_reads)
    say("waits", *(waiter.ready() for waiter in waiters))
say("got", *(waiter.get() for waiter in waiters))
"""
    worker = start_patched(code)
    assert worker.expect("waits") == ["False"] * 3
    assert worker.expect("got") == ["through"] * 3


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
