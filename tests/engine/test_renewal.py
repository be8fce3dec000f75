"""Renewal and loss, where calls overtake them or something fails; and calls and the log while Redis is away."""

import asyncio
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockLost, LockNotOwned, LockUnavailable, locked, locked_view
from redisserver import RedisServer
from tests import inside
from tests.helpers.actors import GENEROUS, Crowd, Other, until
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy, proxy
from tests.helpers.servers import Twins
from tests.helpers.state import LOCK, NAME, QUEUE, holder
from tests.helpers.ways import kill, stopped
from tests.inside import hears, renew_all
from tests.lock.conftest import Block


def hold(ttl: float = 600) -> Lock:
    """Acquire a lock, and hold it until it is treated as a long section."""
    lock = Lock(NAME, ttl=ttl)
    lock.acquire()
    until(inside.all_seen)
    return lock


def renewed(lock: Lock) -> Callable[[], bool]:
    """Whether the lease has been moved on since this was called."""
    end = inside.ends(lock)
    return lambda: inside.ends(lock) > end


def test_a_lock_that_is_lost_while_it_is_extended_stays_lost(crowd: Crowd, network: Proxy) -> None:
    inside.listen()
    until(hears)  # else the lease would be asked about when it is
    losses: list[LockLost] = []
    me, lock = crowd(), Lock(NAME, ttl=1.5, auto_renew=False, on_lost=losses.append)
    me(lock, "acquire")
    held = network.hold_answer("keep")
    extending = me.start(lock, "extend", 600)
    until(lambda: losses)
    held.let_go()
    with pytest.raises(LockLost):
        extending.result(GENEROUS)
    assert me.read(lambda: lock.lost)
    with pytest.raises(LockLost):
        me(lock, "release")
    assert [loss.reason for loss in losses] == [inside.WAS_NOT_RENEWED]


def test_a_lock_that_is_released_just_before_its_renewal_is_not_renewed(
    other: Callable[[], Other], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, thread = Lock(NAME, ttl=600), other()
    thread(lock.acquire)
    over = inside.before_next_round(monkeypatch, lambda: thread(lock.release))
    renew_all()
    assert over.wait(GENEROUS)
    assert "owner-ended" not in caplog.text


def test_leases_are_looked_at_together_and_at_most_20_times_a_second(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, me = inside.rounds_of_looks(monkeypatch), crowd()
    locks = [Lock(f"{NAME}:{number}", ttl=6) for number in range(100)]
    for lock in locks:
        me(lock, "acquire")
    until(lambda: rounds and monotonic() > rounds[0] + 3)
    assert min(later - earlier for earlier, later in pairwise(list(rounds))) > 0.045
    for lock in locks:
        me(lock, "release")  # none is lost: they were renewed


def test_the_shortest_leases_are_renewed_first_without_waiting_for_the_answers_to_all_others(
    crowd: Crowd, network: Proxy
) -> None:
    me, short = crowd(), Lock(f"{NAME}:short", ttl=60)
    locks = [*(Lock(f"{NAME}:{number}", ttl=600) for number in range(260)), short]
    for lock in locks:
        me(lock, "acquire")
    until(inside.all_seen)
    again, stuck = me.read(lambda: renewed(short)), network.hold_request(f"{NAME}:259", times=1000)
    renew_all()
    until(lambda: me.read(again))
    assert stuck.caught.wait(GENEROUS)
    stuck.end()
    for lock in locks:
        me(lock, "release")


def test_a_renewal_that_crosses_detach_or_the_release_is_no_loss(
    network: Proxy, client: redis.Redis, other: Any, caplog: Any
) -> None:
    """Whoever adopts the lock may have released it before this process hears of either. (R12)"""
    thread = other()
    lock = thread(lambda: hold(ttl=60))
    until(lambda: hears() and 10 < inside.due_in(lock) < 30)
    late, asked = network.hold_request("keep"), network.delay_answer("keep", 0, times=1000)
    renew_all()
    assert late.caught.wait(GENEROUS)
    detached = network.hold_answer("detach")
    detaching = thread.start(lock.detach)
    assert detached.caught.wait(GENEROUS)
    client.delete(LOCK)
    late.let_go()
    until(lambda: asked.seen == 1 and 0 < inside.due_in(lock) < 1)
    renew_all()
    until(lambda: 0 < inside.due_in(lock) < 1)
    assert asked.seen == 1  # not while it is being detached
    detached.let_go()
    assert detaching.result(GENEROUS)
    lock = hold(ttl=60)
    late = network.hold_request("keep")
    renew_all()
    assert late.caught.wait(GENEROUS)
    lock.release()
    late.arrive()
    assert not holder(client)
    again = renewed(another := hold(ttl=60))
    renew_all()
    until(again)  # by the thread that has brought that answer
    assert "event=lost" not in caplog.text
    another.release()


def test_extensions_at_once_all_count(network: Proxy, client: redis.Redis) -> None:
    async def extend_twice() -> None:
        async with Lock(NAME, ttl=60, auto_renew=False) as lock:
            await lock.aextend(1)  # the script is known
            held = network.hold_request("keep")
            first = asyncio.create_task(lock.aextend(1000))
            await asyncio.to_thread(held.caught.wait, GENEROUS)
            await lock.aextend(5)
            held.let_go()
            await first
            assert lock.remaining() > 900
            assert int(client.pttl(LOCK)) > 900_000

    asyncio.run(extend_twice())


@pytest.mark.complete
def test_renewals_count_when_as_many_replicas_have_acknowledged_them_as_the_grant_needed(
    own: RedisServer, replica: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with own.client() as master:
        lock, plain, lasting = Lock(NAME, ttl=6, replicas=1), Lock("plain", ttl=6), Lock("lasting", ttl=600, replicas=1)
        extended = Lock("extended", ttl=60, auto_renew=False, replicas=1)
        for each in (lock, plain, lasting, extended):
            assert each.acquire()
        extended.extend(60)
        until(renewed(lock))
        with stopped(replica):
            again, end = renewed(plain), inside.ends(extended)
            with pytest.raises(LockUnavailable, match="Could not extend the lock 'extended': 0 of 1 replicas"):
                extended.extend(60)
            assert inside.ends(extended) == end
            renew_all()
            until(lambda: "renewal-failed" in caplog.text)
            with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
                Lock("refused", replicas=1).acquire()  # and what the master has granted is given back in the background
            until(lambda: not holder(master, "refused"))
            until(lambda: f"event=lost name={NAME}" in caplog.text)
            assert again()
            assert "renewal-recovered" not in caplog.text
        assert holder(master)  # which has renewed it
        assert "NOREPLICAS 0 of 1 replicas acknowledged it" in caplog.text
        with pytest.raises(LockLost):
            lock.release()
        until(lambda: "renewal-recovered" in caplog.text)
        for each in (plain, lasting, extended):
            each.release()


@pytest.mark.complete
@pytest.mark.parametrize("trouble", ["no answer", "no right"])
def test_where_replicas_cannot_be_asked_other_locks_are_renewed(
    trouble: str, own: RedisServer, replica: RedisServer, settings: Any, caplog: Any
) -> None:
    with proxy(own.port) as wire, own.client() as master:
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": wire.url}}
        lock, plain = Lock(NAME, ttl=6, replicas=1), Lock("plain", ttl=6)
        for each in (lock, plain):
            assert each.acquire()
        if trouble == "no answer":
            wire.lose_answer("WAIT", times=1000)
        else:
            master.execute_command("ACL", "SETUSER", "default", "-wait")
        until(lambda: lock.lost)
        assert plain.owned()
        plain.release()
    reason = {"no answer": "Connection closed", "no right": "(this user|User default) has no permissions"}[trouble]
    assert re.search(f"0 of 1 replicas acknowledged it: {reason}", caplog.text)


@pytest.mark.complete
def test_what_is_to_stay_held_does_so_whether_replicas_know_of_it_or_not(
    own: RedisServer, replica: RedisServer
) -> None:
    with own.client() as master, ExitStack() as stack:
        locked(NAME, at_least=600, ttl=60, replicas=1)(lambda: stack.enter_context(stopped(replica)))()
        assert master.pttl(LOCK) > 300_000


def test_what_is_to_stay_held_is_not_released_where_redis_could_not_be_told(
    network: Proxy, client: redis.Redis, retry_for: Callable[[float], None], caplog: Any
) -> None:
    retry_for(0.1)
    locked([NAME, "other"], at_least=600, ttl=60)(network.cut)()
    assert "event=not-released name=other" in caplog.text
    assert "lease_left=60" in caplog.text or "lease_left=59" in caplog.text
    network.mend()
    locked("done")(network.cut)()
    network.mend()
    until(lambda: not holder(client, "done"))  # which is released in the background, after all that was before it
    assert holder(client)
    assert holder(client, "other")


@pytest.mark.complete
def test_a_lock_whose_detaching_failed_can_be_released_or_detached_again(
    crowd: Crowd, own: RedisServer, replica: RedisServer
) -> None:
    me, lock = crowd(), Lock(NAME, ttl=60, replicas=1)
    me(lock, "acquire")
    with stopped(replica), pytest.raises(LockUnavailable, match="Could not detach the lock"):
        me(lock, "detach", 30)
    for method, *seconds in (("extend", 600), ("reacquire",)):
        with pytest.raises(LockNotOwned, match=r"detach\(\) has failed"):
            me(lock, method, *seconds)
    assert me(lock, "detach", 300)
    with own.client() as master:
        assert master.pttl(LOCK) > 200_000


@pytest.mark.complete
def test_a_short_timeout_of_the_socket_leaves_less_time_for_replicas(
    own: RedisServer, replica: RedisServer, settings: Any
) -> None:
    keywords = {"socket_timeout": 0.5}
    alias = {**settings.CACHES["default"], "OPTIONS": {"CONNECTION_POOL_KWARGS": keywords}}
    settings.CACHES = {**settings.CACHES, "default": alias}
    with stopped(replica), pytest.raises(LockUnavailable, match=r"0 of 1 replicas acknowledged it within 0\.4 s\.$"):
        Lock(NAME, replicas=1).acquire()


def test_a_release_in_the_background_drops_any_number_of_dead_waiters(client: redis.Redis) -> None:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    client.zadd(QUEUE, {f"dead-{number}": number + 1 for number in range(6000)})
    inside.abandon(lock)
    until(lambda: not client.exists(LOCK, QUEUE))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lock_is_renewed_though_the_thread_that_sends_or_plans_that_fails_or_cannot_connect(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    fail = Mock(side_effect=ZeroDivisionError)
    lock = hold(ttl=20)
    again = renewed(lock)
    inside.before_next_round(monkeypatch, fail)
    renew_all()
    until(lambda: "event=watchdog-failed" in caplog.text and again())
    caplog.clear()
    again = renewed(lock)
    inside.before_next_look(monkeypatch, fail)
    renew_all()
    until(lambda: "event=watchdog-failed" in caplog.text and again())
    again = renewed(lock)
    with monkeypatch.context() as patch:
        patch.setattr(redis.Connection, "__init__", Mock(side_effect=TypeError("unexpected keyword")))
        kill(client)
        renew_all()
        until(lambda: re.search('event=renewal-failed .*error="unexpected keyword"', caplog.text))
    until(again)
    died = inside.break_sender(monkeypatch)
    renew_all()
    until(died)
    again = renewed(lock)

    def renewed_now() -> bool:
        renew_all()
        return again()

    until(renewed_now)
    lock.release()


def sent(lock: Lock) -> None:
    """Renew it, and wait until the thread that sends has ended."""
    again = renewed(lock)
    renew_all()
    until(lambda: again() and not any(each.name == "redislock-sender" for each in threading.enumerate()))


def test_a_renewal_by_a_connection_that_the_server_has_closed_meanwhile_does_not_fail(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    lock = hold()
    sent(lock)
    kill(client)
    sent(lock)
    assert "renewal-failed" not in caplog.text
    lock.release()


def test_locks_of_different_ttls_are_renewed_by_the_same_connection(client: redis.Redis) -> None:
    inside.listen()
    until(hears)
    made = set[int]()
    for ttl in (6, 12, 6):
        lock = hold(ttl=ttl)
        sent(lock)
        made.add(client.info("stats")["total_connections_received"])
        lock.release()
    assert len(made) == 1


def test_an_interrupted_section_that_cannot_be_undone_is_logged_once_and_keeps_no_other_from_being_undone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise TypeError("unhashable")

    inside.limit(monkeypatch, idle_look=0.05, look_around=0.05)
    undone: list[bool] = []
    for undo in (fail, lambda: undone.append(True)):
        over = inside.interrupt_acquisition(undo)
        with Lock(NAME):  # which wakes it up
            until(over)
    until(lambda: undone and "TypeError: unhashable" in caplog.text)
    assert caplog.text.count("TypeError: unhashable") == 1


def test_code_of_the_sites_is_called_in_a_few_threads_that_end_whatever_it_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def receive(news: int) -> None:
        threads.add(threading.current_thread())
        assert gate.wait(GENEROUS)
        told.append(news)
        if news % 100 == 0:
            raise SystemExit if news % 200 else ZeroDivisionError

    gate, threads, told = threading.Event(), set[threading.Thread](), list[int]()
    for news in range(2000):
        inside.call_soon(partial(receive, news))
    until(lambda: len(threads) == 8)
    gate.set()
    until(lambda: len(told) == 2000)
    assert sorted(told) == list(range(2000))
    assert len(threads) == 8
    until(lambda: not any(thread.is_alive() for thread in threads))
    assert caplog.text.count("event=notifier-failed") == 20


# -- Redis is away for a moment ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["acquire", "reacquire", "release"])
def test_an_operation_is_tried_for_the_time_that_is_set_and_continues_after_an_outage(
    operation: str, crowd: Crowd, network: Proxy, retry_for: Callable[[float], None]
) -> None:
    me, lock = crowd(), Lock(NAME, auto_renew=False, poll=True)  # nothing else speaks to Redis
    if operation != "acquire":
        me(lock, "acquire")
    network.cut()
    # no delay is longer than a quarter of a second; a connection from before is replaced once
    for seconds, least, most in (0, 0, 2), (0.6, 0.3, 20):
        if operation == "acquire":
            most = 40  # what may have been acquired is released in the background, which tries as well
        retry_for(seconds)
        began, before = monotonic(), network.refused
        with pytest.raises(LockUnavailable, match="cannot be reached") as caught:
            me(lock, operation)
        assert least < monotonic() - began
        assert network.refused - before <= most
        assert caught.value.name == NAME
        assert isinstance(caught.value.__cause__, redis.ConnectionError)
    retry_for(GENEROUS)
    refused, trying = network.refused, me.start(lock, operation)
    until(lambda: network.refused >= refused + 4)
    assert not trying.done()
    network.mend()
    trying.result(GENEROUS)


@pytest.mark.parametrize(
    "way",
    [
        *("a block", "a block that raises", "a function", "a function that raises", "a set", "a set that raises"),
        *("a view", "a view of a set"),
    ],
)
def test_what_a_block_could_not_release_is_released_in_the_background(
    way: str, crowd: Crowd, network: Proxy, retry_for: Any, client: Any, rf: Any, caplog: Any, monkeypatch: Any
) -> None:
    """What was done under the lock is done: only the log says that it stays held, and how long. It is tried as long as
    the lease may last: what is given up sooner is what was abandoned in a queue."""
    raises, views = "raises" in way, "view" in way
    names = [NAME, f"{NAME}:2"][: 1 + ("set" in way)]

    def body(*args: Any) -> str:
        network.cut()
        if raises:
            raise ZeroDivisionError
        return "done"

    retry_for(0.1)
    inside.limit(monkeypatch, remember_for=0.0)
    me, twins = crowd(), Twins(locked_view(names, ttl=30) if views else locked(names, ttl=30), body)
    call = (Block(Lock(NAME, ttl=30), body), "run") if "block" in way else (twins, "call", *[rf.get("/")] * views)
    with pytest.raises(ZeroDivisionError) if raises else nullcontext():
        assert me(*call) == "done"
    lines = [text for text in caplog.messages if text.startswith("event=not-released ")]
    assert sorted(re.findall(r"name=(\S+)", " ".join(lines))) == names
    assert all(15 < float(line.rpartition("lease_left=")[2]) < 30 for line in lines)
    assert all(('request="GET /"' in line) is views for line in lines)
    assert all(holder(client, name) for name in names)
    until(lambda: "event=renewal-failed" in caplog.text)
    network.mend()
    until(lambda: not any(holder(client, name) for name in names))


@pytest.mark.complete
@pytest.mark.parametrize(
    ("failed", "recovered"),
    [("renewal-failed", "renewal-recovered"), ("listener-disconnected", "listener-reconnected")],
)
def test_the_log_tells_how_long_redis_has_been_away_and_when_it_is_back(
    failed: str, recovered: str, own: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def outages(event: str) -> list[float]:
        return [float(found) for found in re.findall(rf"event={event} .*?outage=(\S+)", caplog.text)]

    lock = Lock("seat", ttl=12)
    lock.acquire()
    until(inside.hears)
    own.stop()
    until(lambda: len(outages(failed)) >= 3)
    first, second, third = outages(failed)[:3]
    assert first < 1 <= second
    assert third >= 2 * second - 0.1
    own.start()
    until(lambda: outages(recovered))
    assert outages(recovered)[0] > third
    until(lambda: lock.lost)


def test_an_outage_is_logged_when_it_has_doubled_and_at_least_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inside.logs_of_outage(monkeypatch, 200) == [0, 1, 2, 4, 8, 16, 32, 64, 124, 184]


def test_a_process_goes_on_when_the_files_of_the_package_are_gone_or_those_of_another_version(
    start: Callable[..., Worker], tmp_path: Path
) -> None:
    """As after an upgrade: it has to finish what it does."""
    copy = tmp_path / "django_redislock"
    shutil.copytree(Path(django_redislock.__file__).parent, copy)
    code = """
import shutil
lock, permit, pool = Lock("seat"), Semaphore("rooms", limit=2), LockPool("accounts")
lock.acquire()
shutil.rmtree(copy)
lock.reacquire()
assert permit.acquire() and permit.info().waiters == 0
pool.extend(["alice"])
assert pool.acquire().key == "alice"
assert Counter("visits").incr() == 1
lock.release()
say("works")
"""
    start(code, first=f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n", copy=str(copy)).expect("works")


@pytest.mark.parametrize("stand_in", ["Mock", "AtOnce"])
def test_locks_are_renewed_and_losses_told_also_where_a_test_of_the_site_replaces_the_class_of_threads(
    start: Callable[..., Worker], stand_in: str
) -> None:
    code = """
from contextlib import nullcontext
from unittest.mock import Mock, patch
from django_redislock.testing import lose

class AtOnce(threading.Thread):
    def start(self):
        self.run()

for within in (patch("threading.Thread", vars()[stand_in]), nullcontext()):  # and later, too
    with within:
        lock, told = Lock("seat", ttl=6), []
        lock.acquire()
        ends = get_lock("seat").expires
        while get_lock("seat").expires == ends:
            time.sleep(0.05)
        lock.release()
        lost = Lock("lost", on_lost=told.append)
        lost.acquire()
        lose(lost)
        while not told:
            time.sleep(0.05)
    say("works")
"""
    worker = start(code, fresh=True, stand_in=stand_in)
    for _ in range(2):
        worker.expect("works")
