"""The end of a process, and the beginning of a forked one: what becomes of its locks, its releases and its sockets."""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.state import FENCE, NAME, holder, queued
from tests.inside import all_seen, hears, listen, own_channel, renew_all

Eventually = Callable[..., Any]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent in the background any more."""
    inside.become_another_process(monkeypatch)
    inside.stop_renewer(monkeypatch)


# -- what is pending ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stopped")
def test_releases_that_were_not_yet_sent_are_sent_before_the_process_ends(client: redis.Redis) -> None:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    inside.release_later(lock)
    assert holder(client)
    inside.end_process()
    assert not holder(client)


def leave_something_pending(patch: pytest.MonkeyPatch) -> None:
    inside.stop_renewer(patch)
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    inside.release_later(lock)


def test_so_they_are_at_the_end_of_a_child_of_multiprocessing(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that is registered with atexit runs there."""
    child = multiprocessing.get_context("fork").Process(target=leave_something_pending, args=(monkeypatch,))
    with warnings.catch_warnings():  # newer Pythons warn of the threads of the tests
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    child.join(GENEROUS)
    assert child.exitcode == 0
    assert int(client.get(FENCE) or 0)  # it was there
    assert not holder(client)


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("withdrawal", [False, True])
def test_a_redis_that_is_away_is_logged_unless_the_caller_has_been_told_before(
    withdrawal: bool, far: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    lock = Lock(NAME, ttl=600, using="far")
    lock.acquire()
    inside.release_later(lock, withdrawal=withdrawal)
    far.cut()
    inside.end_process()
    assert ("event=releases-not-sent alias=far" in caplog.text) is not withdrawal


@pytest.mark.usefixtures("stopped")
def test_servers_that_hang_take_a_process_one_second_in_all_and_keep_nothing_from_the_others(
    server: RedisServer, settings: Any, client: redis.Redis
) -> None:
    with ExitStack() as stack:
        hanging = {f"hanging {number}": stack.enter_context(proxy(server.port)) for number in range(4)}
        default = settings.CACHES["default"]
        settings.CACHES = {
            **settings.CACHES,
            **{alias: {**default, "LOCATION": network.url} for alias, network in hanging.items()},
        }
        for alias in [*hanging, "default"]:
            lock = Lock(alias, ttl=600, using=alias)
            lock.acquire()
            inside.release_later(lock)
        for network in hanging.values():
            network.partition()
        began = monotonic()
        inside.end_process()
        assert monotonic() - began < 1 + 1  # one for a busy machine
        assert not holder(client, "default")
    settings.CACHES = {**settings.CACHES}


@pytest.mark.usefixtures("stopped")
def test_nothing_is_sent_to_a_cluster_that_was_never_reached(far: Proxy, settings: Any) -> None:
    settings.REDISLOCK = {"CLUSTER": ["far"]}
    inside.pass_on_later(NAME, "far")
    inside.end_process()
    assert not far.links


# -- locks at the end --------------------------------------------------------------------------------------------------


def test_a_lock_is_held_and_released_where_no_thread_is_started_any_more(
    ending: Callable[[], None], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 and later start none then."""
    inside.become_another_process(monkeypatch)
    inside.end_process()  # of one that has used no lock
    ending()
    with Lock(NAME, ttl=600):
        assert holder(client)
    assert not holder(client)
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    inside.release_later(lock)
    inside.end_process()
    assert not holder(client)


def test_a_lock_is_renewed_by_the_thread_that_there_is(eventually: Eventually, ending: Callable[[], None]) -> None:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    eventually(all_seen)
    end = inside.ends(lock)
    ending()
    renew_all()
    eventually(lambda: inside.ends(lock) > end)
    lock.release()


def test_waiters_poll_where_no_thread_is_started_any_more(
    other: Callable[[], Other], client: redis.Redis, unused: str, eventually: Eventually, ending: Callable[[], None]
) -> None:
    me, you, held = other(), other(), Lock(NAME)
    me(held.acquire)
    ending()
    waiting = you.start(lambda: Lock(NAME, using=unused).acquire(blocking_timeout=GENEROUS))
    eventually(lambda: queued(client))
    me(held.release)
    assert waiting.result(GENEROUS)


# A process that uses a lock where it ends: in the hook ``atexit``, or in a thread that outlives the main one.
AT_THE_END = """
import atexit

def work():
    lock = Lock(name, ttl=1.5)
    with lock:
        say("acquired")
        ends = time.monotonic() + 1.5
        while renewed and time.monotonic() + lock.remaining() <= ends + 1:
            lock.check()
            time.sleep(0.01)
        lock.check()
    say("released")

def outlive():
    threading.main_thread().join()
    work()

if warm:
    with Lock("warm"):
        pass
if where == "atexit":
    atexit.register(work)
else:
    threading.Thread(target=outlive).start()
"""


@pytest.mark.parametrize("where", ["atexit", "thread"])
@pytest.mark.parametrize("warm", [True, False])
def test_a_lock_is_held_where_the_interpreter_ends(
    where: str, warm: bool, start: Callable[..., Worker], client: redis.Redis
) -> None:
    renewed = warm or sys.version_info < (3, 12)
    worker = start(AT_THE_END, name=NAME, where=where, warm=warm, renewed=renewed)
    worker.expect("acquired")
    worker.expect("released")
    assert worker.process.wait(GENEROUS) == 0
    assert not holder(client)


# A finalizer uses a lock when all other threads have been stopped. That of a generator can send nothing any more.
AT_TEARDOWN = """
from tests.inside import all_seen

class Device:
    def __init__(self):
        self.lock = Lock(name, ttl=60)
        self.lock.acquire()
    def __del__(self):
        self.lock.release()

def only_one():
    with Lock(name, ttl=60):
        yield

if kind == "object":
    device = Device()
else:
    generator = only_one()
    next(generator)
while settled and not all_seen():
    time.sleep(0.01)
say("acquired")
"""


@pytest.mark.parametrize("kind", ["object", "generator"])
@pytest.mark.parametrize("settled", [False, True])
def test_a_finalizer_at_interpreter_exit_never_hangs(
    kind: str, settled: bool, start: Callable[..., Worker], client: redis.Redis
) -> None:
    worker = start(AT_TEARDOWN, name=NAME, kind=kind, settled=settled)
    worker.expect("acquired")
    assert worker.process.wait(GENEROUS) == 0
    assert bool(holder(client)) == (kind == "generator")


def test_nobody_waits_for_a_thread_that_was_stopped_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    inside.become_another_process(monkeypatch, finalizing=True)
    told: list[LockLost] = []
    lock = Lock(NAME, on_lost=told.append)
    lock.acquire()
    inside.finder_of_loss(lock)()
    assert told
    with pytest.raises(LockLost):
        lock.release()


# -- the beginning of a forked one -------------------------------------------------------------------------------------


@pytest.mark.parametrize("subscribed", [True, False])
def test_a_child_closes_the_sockets_of_its_parents_subscription(
    subscribed: bool, far: Proxy, client: redis.Redis, eventually: Eventually
) -> None:
    """Otherwise its parent would count as alive after its death. (Here, it is our own.)"""

    def subscriptions() -> int:
        return int(client.pubsub_numsub(own_channel("far"))[0][1])

    probed = None if subscribed else far.hold_answer("SHARDNUMSUB")  # it is still being made
    listen("far")
    eventually(lambda: subscriptions() == 1 and (probed.caught.is_set() if probed else hears("far")))
    links = len(far.links)
    inside.close_inherited()
    if probed:
        eventually(lambda: subscriptions() == 0, within=3)  # before the probe gives up
        probed.let_go()
    else:
        eventually(lambda: len(far.links) > links and hears("far"))
