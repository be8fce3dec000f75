"""A cached value that many callers want at once: one computes it, and all others wait for it, or give up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

import pytest
import redis
from django.core.cache import caches

from django_redislock import Lock, LockNotAcquired, LockUnavailable, force_release, list_locks
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.processes import Worker
from tests.inside import values_under_way, waiting_for_values

from .conftest import NAME, Computing, Value

Eventually = Callable[..., Any]
Start = Callable[..., Worker]


def ask(crowd: Crowd, value: Value, number: int, eventually: Eventually) -> list[Future[Any]]:
    """Let so many more callers ask for the value, and wait until they wait for the one that computes it."""
    before = waiting_for_values()
    turns = [crowd().start(value, "get") for _ in range(number)]
    eventually(lambda: waiting_for_values() == before + number)
    return turns


# -- of one process ---------------------------------------------------------------------------------------------------


def test_callers_that_come_meanwhile_wait_and_each_reads_an_object_of_its_own(
    crowd: Crowd, computing: Computing, eventually: Eventually, alias: str
) -> None:
    late = Value("never", using=alias)
    with computing({"a": []}, using=alias) as value:
        turns = ask(crowd, late, 5, eventually)
        value.go.set()
        found = [turn.result(GENEROUS) for turn in turns]
    assert found == [{"a": []}] * 5
    assert len({id(one) for one in found}) == 5
    assert (value.calls, late.calls) == (1, 0)


@pytest.mark.parametrize("leads", ["thread", "task"])
def test_coroutines_and_threads_wait_for_each_other(eventually: Eventually, leads: str) -> None:
    value, late = Value("theirs", held_up=True), Value("never")
    threads, tasks = Crowd(tasks=False), Crowd(tasks=True)
    try:
        turns = [(threads if leads == "thread" else tasks)().start(value, "get")]
        assert value.called.wait(GENEROUS)
        turns += ask(threads, late, 3, eventually) + ask(tasks, late, 3, eventually)
        value.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["theirs"] * 7
    finally:
        value.go.set()
        tasks.close()
        threads.close()
    assert late.calls == 0


@pytest.mark.parametrize("key", ["y", "x"])
def test_other_values_are_computed_meanwhile(me: Any, computing: Computing, key: str) -> None:
    with computing():
        assert me(Value("mine", key=key, version=1 if key == "y" else 2), "get") == "mine"


# -- the next one tries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("no"), LockUnavailable("of another lock", "another")], ids=repr)
def test_an_exception_lets_the_next_one_try(
    error: Exception, crowd: Crowd, computing: Computing, eventually: Eventually
) -> None:
    late = Value("second")
    with computing(error) as value:
        turns = ask(crowd, late, 3, eventually)
        value.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["second"] * 3
    assert (value.calls, late.calls) == (1, 1)


async def test_a_cancelled_coroutine_lets_the_next_one_try(aeventually: Callable[..., Any]) -> None:
    value = Value(held_up=True)
    leader = asyncio.create_task(value.aget())
    await aeventually(value.called.is_set)
    cancelled = asyncio.create_task(Value("never").aget())
    second = asyncio.create_task(Value("second").aget())
    await aeventually(lambda: waiting_for_values() == 2)
    cancelled.cancel()
    leader.cancel()
    assert await asyncio.wait_for(second, GENEROUS) == "second"
    await asyncio.wait([leader, cancelled])
    assert leader.cancelled()
    assert cancelled.cancelled()


# -- of many processes ------------------------------------------------------------------------------------------------

PROCESS = """
from django.conf import settings
settings.CACHES["ours"] = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": url}
calls, got = [], []

def compute():
    calls.append(1)
    time.sleep(0.2)
    return "value"

def ask():
    got.append(locked_get_or_set("x", compute, using="ours"))
"""


def test_another_process_waits_and_reads(
    computing: Computing, start: Start, eventually: Eventually, server: RedisServer
) -> None:
    with computing() as value:
        worker = start(PROCESS + "ask()\nsay('got', *got, 'computed', len(calls))", url=server.url)
        eventually(lambda: list_locks("get_or_set:*")[0].waiters == 1)
        value.go.set()
        assert worker.expect("got") == ["theirs", "computed", "0"]


def test_a_caller_that_gets_the_lock_reads_the_cache_again(crowd: Crowd, eventually: Eventually) -> None:
    elsewhere, late, lock = crowd(), Value("never"), Lock(NAME)
    assert elsewhere(lock, "acquire")
    turn = crowd().start(late, "get")
    eventually(lambda: list_locks()[0].waiters == 1)
    caches["ours"].set("x", "theirs")
    elsewhere(lock, "release")
    assert turn.result(GENEROUS) == "theirs"
    assert late.calls == 0
    eventually(lambda: list_locks() == [])


def test_a_process_that_dies_lets_the_next_one_try(me: Any, start: Start, server: RedisServer) -> None:
    dying = PROCESS.replace("time.sleep(0.2)", "say('computes'); time.sleep(60)")
    worker = start(f"{dying}\nsettings.REDISLOCK = {{'TTL': 0.5}}\nask()", url=server.url)
    worker.expect("computes")
    worker.kill()
    assert me(Value(), "get") == "computed"


FORKS = """
locked_get_or_set("y", 5)
def fork():
    child = os.fork()
    if child == 0:
        os._exit(0 if locked_get_or_set("z", lambda: 5) == 5 else 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
say("child", locked_get_or_set("x", fork))
"""


def test_a_forked_child_computes_for_itself(start: Start) -> None:
    assert start(FORKS).expect("child") == ["0"]


CROWD = """
gate = threading.Barrier(100)
def run():
    gate.wait()
    ask()
crowd = [threading.Thread(target=run) for _ in range(100)]
say("ready")
hear()
for thread in crowd: thread.start()
for thread in crowd: thread.join()
say("done", len(calls), *sorted(set(got)), len(got))
"""


@pytest.mark.complete
def test_200_threads_of_2_processes_compute_it_once(start: Start, client: redis.Redis, server: RedisServer) -> None:
    workers = [start(PROCESS + CROWD, url=server.url) for _ in range(2)]
    for worker in workers:
        worker.expect("ready")
    client.config_resetstat()
    for worker in workers:
        worker.tell()
    answers = [worker.expect("done") for worker in workers]
    assert sum(int(computed) for computed, *_ in answers) == 1
    assert [rest for _, *rest in answers] == [["value", "100"]] * 2
    # each of them looks twice, and each process asks for the lock once, or again when it is woken
    counts: Any = client.info("commandstats")
    assert counts["cmdstat_get"]["calls"] <= 2 * 200 + 100
    assert counts["cmdstat_evalsha"]["calls"] < 20


# -- giving up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in this process", "elsewhere"])
@pytest.mark.parametrize(("patience", "setting"), [(0, None), (0.05, None), (None, 0.05)])
def test_a_caller_whose_timeout_has_passed_gets_an_error(
    crowd: Crowd, computing: Computing, elsewhere: bool, patience: float | None, setting: float | None, settings: Any
) -> None:
    settings.REDISLOCK = {"BLOCKING_TIMEOUT": setting}

    def ask() -> None:
        with pytest.raises(LockNotAcquired, match="'x' in time: it is being computed elsewhere") as raised:
            crowd()(Value("never", blocking_timeout=patience), "get")
        assert raised.value.name == NAME
        assert raised.value.outcome == ("busy" if patience == 0 else "timeout")
        assert raised.value.waited >= (setting or patience or 0)

    if elsewhere:
        crowd()(Lock(NAME), "acquire")
        ask()
        assert not values_under_way()
    else:
        with computing():
            ask()


def test_a_caller_with_a_longer_timeout_outwaits_the_others(crowd: Crowd, eventually: Eventually) -> None:
    crowd()(Lock(NAME), "acquire")
    first = crowd().start(Value("first", blocking_timeout=0.5), "get")
    eventually(values_under_way)
    second = crowd().start(Value("second"), "get")
    with pytest.raises(LockNotAcquired):
        first.result(GENEROUS)
    force_release(NAME)
    assert second.result(GENEROUS) == "second"


def test_a_loop_that_ends_after_a_coroutine_gave_up_gets_no_more_wakes(
    computing: Computing, caplog: pytest.LogCaptureFixture
) -> None:
    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(Value("never").aget(), 0.05)

    with computing():
        asyncio.run(give_up())
    assert not [record for record in caplog.records if record.name in ("asyncio", "concurrent.futures")]


# -- without the Redis server used for locks --------------------------------------------------------------------------


@pytest.fixture
def apart(own: RedisServer, settings: Any) -> RedisServer:
    """The server used for locks; the values are in this process."""
    settings.REDISLOCK = {"CACHE": "default"}
    return own


def test_during_an_outage_a_value_that_is_there_is_read_and_a_missing_one_not_computed(
    crowd: Crowd, apart: RedisServer
) -> None:
    caches["locmem"].set("there", 1)
    apart.stop()
    assert crowd()(Value(key="there", using="locmem"), "get") == 1
    value, begun = Value(using="locmem"), monotonic()
    turns = [crowd().start(value, "get") for _ in range(10)]
    for turn in turns:
        with pytest.raises(LockUnavailable) as raised:
            turn.result(GENEROUS)
        assert raised.value.name == "get_or_set:locmem::1:x"
    assert monotonic() - begun < 6  # not one after the other
    assert value.calls == 0


def test_a_release_that_cannot_be_sent_costs_nobody_the_value(
    me: Any, apart: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    value = Value("mine", using="locmem", held_up=True)
    turn = me.start(value, "get")
    assert value.called.wait(GENEROUS)
    assert list_locks()
    apart.stop()
    value.go.set()
    assert turn.result(GENEROUS) == "mine"
    assert caches["locmem"].get("x") == "mine"
    assert "event=not-released name=get_or_set:locmem::1:x" in caplog.text
