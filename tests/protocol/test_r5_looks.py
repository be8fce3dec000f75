"""R5: waiters also look at scheduled times, in every process, and so rarely that it costs almost nothing."""

from __future__ import annotations

from time import monotonic, sleep

import pytest
import redis

from django_redislock import Lock, force_release
from tests.helpers.actors import GENEROUS
from tests.helpers.state import LOCK, NAME, QUEUE, count, queued
from tests.inside import limit
from tests.protocol.scene import LONG, WAITS, Eventually, Line, Start, listed, vanish


@pytest.mark.complete
@pytest.mark.usefixtures("nobody_looks")
def test_every_process_looks_again_when_the_lease_of_the_new_holder_ends(
    start: Start, line: Line, client: redis.Redis, eventually: Eventually
) -> None:
    """Of whoever holds the lock now, not of whoever held it at first."""
    worker = start(WAITS, name=NAME, ttl=30.0, look_every=LONG)
    worker.expect("ready")
    Lock(NAME, ttl=1.5, auto_renew=False).acquire()  # never released
    second = line.join(Lock(NAME, ttl=1.5, auto_renew=False))  # nor this
    worker.tell()
    assert second.result()
    worker.expect("acquired", within=15)


def test_a_lock_that_vanished_is_found_long_before_the_end_of_the_lease_that_it_had(
    line: Line, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks come at the latest every 5 s (here 0.3 s)."""
    limit(monkeypatch, look_every=0.3)
    Lock(NAME, ttl=LONG).acquire()
    waiting = line.join(Lock(NAME))
    vanish(client, NAME)
    assert waiting.result()


@pytest.mark.complete
def test_the_next_waiter_of_a_process_inherits_the_looks_of_one_that_leaves(
    line: Line, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made on behalf of the oldest waiter."""
    limit(monkeypatch, look_every=2.0)
    Lock(NAME, ttl=LONG).acquire()
    leaves = line.join(Lock(NAME, blocking_timeout=1))
    stays = line.join(Lock(NAME))
    assert not leaves.result()
    vanish(client, NAME)
    assert stays.result()


def test_twenty_waiters_of_one_process_look_no_more_often_than_one(
    line: Line, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks are planned for each process and name, not for each waiter."""
    limit(monkeypatch, look_every=0.2)
    lock = Lock(NAME, ttl=LONG)
    lock.acquire()
    fences = [line.visit(Lock(NAME)) for _ in range(20)]
    assert queued(client) == 20
    before, began = count(client, "evalsha"), monotonic()
    eventually(lambda: count(client, "evalsha") >= before + 8)
    assert monotonic() - began > 7 * 0.2
    lock.release()
    assert all(fence.result(GENEROUS) for fence in fences)


def test_newcomers_do_not_delay_the_looks_of_a_process(
    line: Line, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has just come has looked for itself alone."""
    limit(monkeypatch, look_every=1.0)
    client.set(LOCK, "foreign")  # without an end
    first = line.join(Lock(NAME))
    ((id, _),) = listed(client)
    client.zrem(QUEUE, id)  # its next look brings it back
    began, others = monotonic(), []
    while client.zscore(QUEUE, id) is None:
        assert monotonic() - began < 10
        others.append(line.visit(Lock(NAME)))
        sleep(0.3)
    force_release(NAME)
    assert first.result()
    first.release()
    assert all(fence.result(GENEROUS) for fence in others)
