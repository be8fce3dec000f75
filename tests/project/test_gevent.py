"""Threads that are greenlets: locks in processes that gevent has patched."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.actors import until
from tests.helpers.processes import PRELUDE, ROOT, Worker
from tests.helpers.state import holder as is_held
from tests.helpers.state import queued
from tests.inside import PREFIX

PATCHED = """
from gevent import monkey
monkey.patch_all()
"""

# hear() must not keep the other greenlets from running; and whoever is not told does not look within this test's time
GREENLETS = """
import gevent
from django.conf import settings
from tests.inside import limit
limit(look_every=600)
settings.REDISLOCK = {"SLOW_WAIT": 600}

def hear():
    return gevent.get_hub().threadpool.apply(sys.stdin.readline).strip()

def wait():
    with Lock("seat", blocking_timeout=60):
        return time.monotonic()

def hold(name, **options):
    lock = Lock(name, **options)
    lock.acquire()
    say("got", name)
    while not lock.lost:
        gevent.sleep(0.01)
    say("lost", name)
"""

StartPatched = Callable[..., Worker]


@pytest.fixture
def start_patched(start: Callable[..., Worker]) -> StartPatched:
    """Start worker processes in which gevent patches everything first of all."""

    def start_patched(code: str, **values: Any) -> Worker:
        return start(GREENLETS + code, first=PATCHED, **values)

    return start_patched


@pytest.mark.complete
def test_a_lock_is_renewed_while_its_greenlet_or_thread_waits_for_something_else(
    start_patched: StartPatched, client: Any
) -> None:
    """gevent's threads are of several classes: the main one, its own, and one for each greenlet that is none."""
    worker = start_patched("""
threading.Thread(target=hold, args=["thread"], kwargs={"ttl": 3}, daemon=True).start()
greenlet = gevent.spawn(hold, "greenlet", ttl=3)
raw = gevent.spawn_raw(hold, "raw", ttl=3)
hold("main", ttl=3)
""")
    names = {worker.expect("got")[0] for _ in range(4)}
    assert names == {"thread", "greenlet", "raw", "main"}
    keys = [f"{PREFIX}lock:{name}" for name in names]
    before = client.mget(keys)
    for _ in range(4):  # every third of the TTL
        for key in keys:
            until(lambda key=key: client.pttl(key) < 2300)
        for key in keys:
            until(lambda key=key: client.pttl(key) > 2500)
    assert client.mget(keys) == before


def test_a_release_wakes_waiting_greenlets_at_once_and_those_that_gave_up_leave_no_place_in_the_queue(
    start_patched: StartPatched, client: Any
) -> None:
    worker = start_patched("""
lock = Lock("seat", ttl=600)
lock.acquire()
waiters = [gevent.spawn(wait) for _ in range(5)]
hear()

def give_up():
    with gevent.Timeout(0.2, False):
        wait()

gevent.spawn(give_up).get()
gevent.killall([waiters[0], waiters[2], waiters[4]])  # the first of them may be the one who reads for all
say("left")
hear()
lock.release()
say("got", all(waiter.get() for waiter in (waiters[1], waiters[3])))
""")
    until(lambda: queued(client, "seat") == 5)
    worker.tell()
    worker.expect("left")
    until(lambda: queued(client, "seat") == 2)
    worker.tell()
    assert worker.expect("got") == ["True"]
    assert not is_held(client, "seat")
    assert queued(client, "seat") == 0


@pytest.mark.complete
def test_a_greenlet_that_is_killed_in_a_with_block_releases_the_lock_and_others_that_end_do_not_renew_theirs(
    start_patched: StartPatched, client: Any
) -> None:
    worker = start_patched("""
def block(name):
    with Lock(name, ttl=600):
        say("got", name)
        gevent.sleep(60)

doomed = [gevent.spawn(hold, "killed", ttl=3), gevent.spawn(block, "block")]
alive = gevent.spawn(hold, "alive", ttl=3)
hear()
gevent.killall(doomed)
say("killed")
alive.join()
""")
    assert {worker.expect("got")[0] for _ in range(3)} == {"killed", "block", "alive"}
    worker.tell()
    worker.expect("killed")
    assert not is_held(client, "block")
    until(lambda: not is_held(client, "killed"))
    assert is_held(client, "alive")


def test_each_greenlet_owns_its_own_acquisition_of_a_shared_lock(start_patched: StartPatched) -> None:
    worker = start_patched("""
lock = Lock("seat")

def meddle():
    say("knows", lock.token, lock.owned(), lock.acquire(blocking=False))
    try:
        lock.release()
    except LockNotOwned:
        say("refused", lock.locked())

with lock:
    gevent.spawn(meddle).get()
    say("still", lock.owned())
""")
    assert worker.expect("knows") == ["None", "False", "False"]
    assert worker.expect("refused") == worker.expect("still") == ["True"]


def test_a_process_that_leaves_greenlets_behind_ends_in_silence() -> None:
    code = """
import gevent
for _ in range(3):
    gevent.spawn(gevent.sleep, 60)
gevent.sleep(0)
"""
    ended = subprocess.run([sys.executable, "-c", PATCHED + PRELUDE + code], capture_output=True, cwd=ROOT, check=True)
    assert (ended.stdout, ended.stderr) == (b"", b"")


@pytest.mark.complete
def test_locks_work_where_gevent_patches_after_they_were_imported_and_used(start: Callable[..., Worker]) -> None:
    code = """
with Lock("before"):  # its background threads are no greenlets, and live on
    time.sleep(0.3)
import warnings
warnings.simplefilter("ignore")  # gevent warns that ssl was imported
from gevent import monkey
monkey.patch_all()
import gevent
inside = 0

def work(number):
    global inside
    with Lock("seat", ttl=3, blocking_timeout=60) as lock:
        inside += 1
        assert inside == 1, "two holders at once"
        gevent.sleep(3.6 if number == 0 else 0.01)
        lock.check()  # it was renewed
        inside -= 1

gevent.joinall([gevent.spawn(work, number) for number in range(20)], raise_error=True)
say("through")
"""
    start(code, fresh=True).expect("through", within=60)
