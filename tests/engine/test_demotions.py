"""A master that is demoted by hand. The address then leads to the new one, but connections to the old one stay open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redislock import Lock, LockUnavailable
from django_redislock.base.steps import Steps
from django_redislock.store.lock_store import Partition
from django_redislock.store.probe import counts_us
from redisserver import redis_server
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.proxy import proxy
from tests.helpers.state import NAME
from tests.inside import lease_of, limit, listener

Eventually = Callable[..., Any]


@pytest.fixture
def switch(settings: Any, eventually: Eventually) -> Iterator[Callable[[], None]]:
    """Demotes the master behind the alias ``far``; ``near`` is the new one."""
    with redis_server() as first, redis_server() as second, first.client() as old, second.client() as new:
        old.config_set("repl-diskless-sync-delay", 0)
        new.replicaof("127.0.0.1", str(first.port))
        eventually(lambda: new.info("replication")["master_link_status"] == "up")
        with proxy(first.port) as address:
            default = settings.CACHES["default"]
            far, near = {**default, "LOCATION": address.url}, {**default, "LOCATION": second.url}
            settings.CACHES = {**settings.CACHES, "far": far, "near": near}

            def switch() -> None:
                old.set("latest", "write")
                assert old.wait(1, round(GENEROUS * 1000)) == 1
                new.replicaof("NO", "ONE")
                address.target = second.port
                old.replicaof("127.0.0.1", str(second.port))

            yield switch
            settings.CACHES = {**settings.CACHES}


def test_leases_are_renewed_at_the_new_master(switch: Callable[[], None], eventually: Eventually) -> None:
    lock = Lock(NAME, ttl=3, using="far")
    lock.acquire()
    began = lease_of(lock).ends
    eventually(lambda: lease_of(lock).ends > began)  # the sender keeps its connection
    switch()
    for _ in range(2):
        before = lease_of(lock).ends
        eventually(lambda before=before: lock.lost or lease_of(lock).ends > before)
    assert not lock.lost
    assert Lock(NAME, using="near").locked()
    lock.release()


@pytest.mark.parametrize("answered", [True, False], ids=["", "the first question fails"])
def test_a_waiter_that_the_new_master_does_not_count_queues_again(
    answered: bool,
    switch: Callable[[], None],
    other: Callable[[], Other],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R19: a waiter subscribed at the old master is dropped by every release at the new one, and would wait for
    ever."""
    failures = [] if answered else [LockUnavailable("no answer")]

    def ask(partition: Partition) -> Steps[bool]:
        if failures:
            raise failures.pop()
        return counts_us(partition)

    monkeypatch.setattr("django_redislock.engine.acquiring.wait_loop.counts_us", ask)
    limit(monkeypatch, look_every=0.5)
    ears = listener("far")
    ears.start()
    eventually(lambda: ears.ready)
    generation = ears.generation
    switch()
    held = Lock(NAME, using="near")
    holder = other()
    holder(held.acquire)
    waiting = other().start(Lock(NAME, using="far").acquire)

    def wait(number: int) -> None:
        eventually(lambda: (info := held.info()) is not None and info.waiters == number)

    wait(1)
    for _ in range(2 - answered):
        next_one = other()
        taken = next_one.start(held.acquire)
        wait(2)
        holder(held.release)  # drops the first one, and is never free
        assert taken.result(GENEROUS)
        holder = next_one
        eventually(lambda: not failures)
        wait(1)
    eventually(lambda: ears.ready and ears.generation > generation)
    wait(1)
    holder(held.release)
    assert waiting.result(GENEROUS)
