"""The end of a process, and the beginning of a forked one: what becomes of its locks, its releases and its sockets."""

import asyncio
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any

import billiard  # type: ignore[import-untyped]
import pytest
import redis
from celery.concurrency.prefork import process_destructor  # type: ignore[import-untyped]
from django.http import HttpRequest
from django.test import RequestFactory

from django_redislock import Lock, LockLost, LockSet, locked, locked_view
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, auntil, until
from tests.helpers.processes import Worker
from tests.helpers.proxy import proxy
from tests.helpers.servers import lock_names
from tests.helpers.state import FENCE, NAME, holder, queued


def refuse_to_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")  # as Python 3.12 reports it


def leave_something_pending(patch: pytest.MonkeyPatch, name: str = NAME, using: str | None = None) -> None:
    inside.stop_renewer(patch)
    lock = Lock(name, ttl=600, using=using)
    lock.acquire()
    inside.abandon(lock, withdrawal=name == "withdrawn")


def end_as_in_celerys_pool(patch: pytest.MonkeyPatch) -> None:
    leave_something_pending(patch)
    process_destructor(os.getpid(), 0)
    os._exit(0)


CHILDREN: dict[str, tuple[Any, Callable[..., None]]] = {
    "multiprocessing": (multiprocessing, leave_something_pending),
    "billiard": (billiard, leave_something_pending),
    "celery": (billiard, end_as_in_celerys_pool),
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_child_that_calls_nothing_of_atexit_sends_what_is_pending_and_leaves_its_parents_subscription(
    kind: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.listen()
    until(inside.hears)
    package, target = CHILDREN[kind]
    child = package.get_context("fork").Process(target=target, args=(monkeypatch,))
    with warnings.catch_warnings():  # newer Pythons warn of the threads of the tests
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    child.join(GENEROUS)
    assert child.exitcode == 0
    assert int(client.get(FENCE) or 0)  # it was there
    assert not holder(client)
    assert inside.hears()


def test_servers_that_hang_take_a_process_one_second_in_all_and_keep_nothing_from_the_others(
    server: RedisServer, settings: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    inside.become_another_process(monkeypatch)
    default = settings.CACHES["default"]
    with ExitStack() as stack:
        hanging = {name: stack.enter_context(proxy(server.port)) for name in ("one", "two", "withdrawn")}
        others = {alias: {**default, "LOCATION": network.url} for alias, network in hanging.items()}
        settings.CACHES = {**settings.CACHES, **others}
        for alias in [*hanging, "default"]:
            leave_something_pending(monkeypatch, alias, alias)
        for network in hanging.values():
            network.partition()
        inside.limit(monkeypatch, last_words=3)
        began = monotonic()
        inside.end_process()
        assert monotonic() - began < 3 * 3 - 1  # not one after the other
        assert not holder(client, "default")
    # of the third, the caller has been told before
    assert [alias for alias in others if f"event=releases-not-sent alias={alias}" in caplog.text] == ["one", "two"]
    settings.CACHES = {**settings.CACHES}


def test_where_no_thread_is_started_any_more_locks_are_renewed_by_the_one_there_is_and_waiters_poll(
    other: Any, client: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CACHES = {**settings.CACHES, "unused": settings.CACHES["default"]}
    me, you, lock, held = other(), other(), Lock("renewed", ttl=600), Lock(NAME)
    lock.acquire()
    me(held.acquire)
    until(inside.all_seen)
    end = inside.ends(lock)
    monkeypatch.setattr(threading.Thread, "start", refuse_to_start)
    inside.renew_all()
    until(lambda: inside.ends(lock) > end)
    lock.release()
    waiting = you.start(lambda: Lock(NAME, using="unused").acquire(blocking_timeout=GENEROUS))
    until(lambda: queued(client))
    me(held.release)
    assert waiting.result(GENEROUS)
    inside.become_another_process(monkeypatch)
    inside.end_process()  # of one that has used no lock
    with Lock("held", ttl=600):
        assert holder(client, "held")
    assert not holder(client, "held")


@pytest.mark.parametrize("lock", [Lock(NAME, ttl=600), LockSet(NAME, ttl=600)], ids=["lock", "set"])
def test_a_process_that_a_signal_handler_ends_where_its_block_ends_leaves_no_lock(
    lock: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.become_another_process(monkeypatch)
    monkeypatch.setattr(threading.Thread, "start", refuse_to_start)  # no background thread is faster
    end = lock.__exit__  # a with statement looks it up, and keeps it until its block has ended
    lock.__enter__()
    del end  # it ends with SystemExit before its first line
    assert holder(client)
    inside.end_process()
    assert not holder(client)


# A process that uses a lock where it ends: in the hook ``atexit``, in a thread that outlives the main one, or in a
# finalizer, when all other threads have been stopped. That of a generator can send nothing any more.
AT_THE_END = """
import atexit

def work():
    lock = Lock(name, ttl=4)
    with lock:
        say("acquired")
        ends = time.monotonic() + 4
        while renewed and time.monotonic() + lock.remaining() <= ends + 0.3:
            lock.check()
            time.sleep(0.01)
        lock.check()
    say("released")

def outlive():
    threading.main_thread().join()
    work()

class Device:
    def __init__(self):
        self.lock = Lock(name, ttl=60)
        self.lock.acquire()
        say("acquired")
    def __del__(self):
        self.lock.release()

def only_one():
    with Lock(name, ttl=60):
        say("acquired")
        yield

if warm:
    with Lock("warm"):
        pass
if where == "atexit":
    atexit.register(work)
elif where == "thread":
    threading.Thread(target=outlive).start()
elif where == "finalizer":
    device = Device()
else:
    generator = only_one()
    next(generator)
"""


@pytest.mark.parametrize("where", ["atexit", "thread", "finalizer", "generator"])
@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.complete)])
def test_a_lock_is_held_where_the_interpreter_ends(
    where: str, warm: bool, start: Callable[..., Worker], client: redis.Redis
) -> None:
    renewed = warm or sys.version_info < (3, 12)
    worker = start(AT_THE_END, fresh=True, name=NAME, where=where, warm=warm, renewed=renewed)
    worker.expect("acquired")
    if where in ("atexit", "thread"):
        worker.expect("released")
    assert worker.process.wait(GENEROUS) == 0
    assert bool(holder(client)) == (where == "generator")


@contextmanager
def stopped_in(*running: Coroutine[Any, Any, Any]) -> Iterator[Callable[..., Any]]:
    """An event loop that runs these until something is so, and stops there; they are cancelled after the block."""
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(each) for each in running]
    try:
        yield lambda condition: loop.run_until_complete(auntil(condition))
    finally:
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_where_an_event_loop_was_stopped_in_the_middle_the_end_of_the_process_gives_back_the_locks_of_blocks(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As daphne does, in the middle of requests. Its own waiters, which nobody wakes any more, get none of them."""

    async def block(lock: Any) -> None:
        async with lock:
            await asyncio.sleep(600)

    @locked("function", ttl=600)
    async def function() -> None:
        await asyncio.sleep(600)

    async def view(request: HttpRequest) -> Any:
        await asyncio.sleep(600)

    inside.become_another_process(monkeypatch)
    kept, request = Lock("kept", ttl=600), RequestFactory().get("/")
    blocks = block(Lock(NAME, ttl=600)), block(Lock(NAME)), block(LockSet("a", "b", ttl=600)), function()
    with stopped_in(*blocks, locked_view("view", ttl=600)(view)(request), kept.aacquire()) as run_until:
        run_until(lambda: len(lock_names(client)) == 6 and queued(client))
        inside.end_process()
        assert lock_names(client) == ["kept"]


def test_where_no_thread_can_be_started_the_end_of_the_process_still_leaves_the_queues(
    other: Any, client: redis.Redis, no_threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other()(Lock(NAME).acquire)
    inside.become_another_process(monkeypatch)
    no_threads(True)
    with stopped_in(Lock(NAME).aacquire()) as run_until:
        run_until(lambda: queued(client))
        inside.end_process()
        assert not queued(client)


def test_nobody_waits_for_a_thread_that_was_stopped_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    inside.become_another_process(monkeypatch, finalizing=True)
    told: list[LockLost] = []
    lock = Lock(NAME, on_lost=told.append)
    lock.acquire()
    inside.finder_of_loss(lock)()
    assert told
    with pytest.raises(LockLost):
        lock.release()
