"""The background threads of a process: in a forked child, and at the end."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock
from django_redislock.base.per_process import PerProcess
from django_redislock.engine import current_owner
from django_redislock.engine import runtime as module
from django_redislock.engine.runtime import Runtime, runtime
from django_redislock.store.stores import make_store
from tests.helpers.actors import GENEROUS
from tests.helpers.proxy import Proxy
from tests.helpers.state import FENCE, NAME, holder
from tests.inside import listener, reader_of


@pytest.mark.usefixtures("listening")
def test_a_child_closes_the_socket_of_its_parents_listener(eventually: Callable[..., Any]) -> None:
    """As it is told in a fork. (Here, it is our own, which is made anew.)"""
    ears = listener()
    eventually(lambda: (reader := reader_of(ears)) and reader._turn() is not None)
    generation = ears.generation
    runtime().leave_parent()
    eventually(lambda: ears.generation > generation and ears.ready)


def test_a_child_closes_the_socket_of_a_subscription_that_its_parent_was_making(
    far: Proxy, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    ears = listener("far")
    probed = far.hold_answer("SHARDNUMSUB")
    ears.start()
    assert probed.caught.wait(GENEROUS)
    assert client.pubsub_numsub(ears.partition.channel)[0][1] == 1
    runtime().leave_parent()
    eventually(lambda: client.pubsub_numsub(ears.partition.channel)[0][1] == 0, within=3)  # before the probe gives up
    probed.let_go()


def test_what_is_made_for_a_place_that_is_closed_already_is_not_kept() -> None:
    """By a thread that still uses it: nobody would forget it any more."""
    store, made = make_store("default", "closed"), runtime()
    store.close()
    made.listener(store.partition(0)).start()
    assert store.partition(0) not in made._listeners
    assert store not in made._subscribers


def leave_something_pending() -> None:
    watchdog: Any = runtime().watchdog
    watchdog._work = lambda tasks: None  # too slow
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    section = current_owner().section(lock)
    assert section is not None
    section.undo()


def test_what_is_pending_is_sent_at_the_end_of_a_child_of_multiprocessing(client: redis.Redis) -> None:
    """Nothing that is registered with atexit runs there."""
    child = multiprocessing.get_context("fork").Process(target=leave_something_pending)
    with warnings.catch_warnings():  # newer Pythons warn of the threads of the tests
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    child.join(GENEROUS)
    assert child.exitcode == 0
    assert int(client.get(FENCE) or 0)  # it was there
    assert not holder(client)


@pytest.mark.parametrize("used", [True, False], ids=["locks were used", "no lock was used"])
def test_what_is_pending_is_sent_at_the_end_of_a_process(used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    own = PerProcess(Runtime)
    monkeypatch.setattr(module, "_runtime", own)
    monkeypatch.setattr(
        "django_redislock.engine.renewal.watchdog.Watchdog.send_pending", lambda watchdog: sent.append(watchdog)
    )
    if used:
        own.get()
    module._send_pending()
    assert len(sent) == used
