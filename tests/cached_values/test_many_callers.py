"""A cached value that many callers want at once: one of them computes it, and all others wait for it and read it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import redis
from django.core.cache import caches

from django_redislock import Lock, list_locks
from django_redislock.computations import Computation
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.processes import Worker

from .conftest import NAME, Computing, Value

Eventually = Callable[..., Any]
Start = Callable[..., Worker]
Joined = list[Computation]


def ask(crowd: Crowd, value: Value, number: int) -> list[Future[Any]]:
    """Let so many more callers ask for the value."""
    return [crowd().start(value, "get") for _ in range(number)]


# -- of one process ---------------------------------------------------------------------------------------------------


def test_a_caller_that_comes_meanwhile_waits_and_reads_the_value(
    crowd: Crowd, computing: Computing, joined: Joined, eventually: Eventually, alias: str
) -> None:
    late = Value("never", using=alias)
    with computing(using=alias) as value:
        turns = ask(crowd, late, 5)
        eventually(lambda: len(joined) == 5)
        value.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["theirs"] * 5
    assert (value.calls, late.calls) == (1, 0)


@pytest.mark.parametrize("leads", ["thread", "task"])
def test_coroutines_and_threads_wait_for_each_other(joined: Joined, eventually: Eventually, leads: str) -> None:
    value, late = Value("theirs", held_up=True), Value("never")
    threads, tasks = Crowd(tasks=False), Crowd(tasks=True)
    try:
        turns = ask(threads if leads == "thread" else tasks, value, 1)
        assert value.called.wait(GENEROUS)
        turns += ask(threads, late, 3) + ask(tasks, late, 3)
        eventually(lambda: len(joined) == 6)
        value.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["theirs"] * 7
    finally:
        value.go.set()
        tasks.close()
        threads.close()
    assert late.calls == 0


def test_each_waiter_gets_an_object_of_its_own(
    crowd: Crowd, computing: Computing, joined: Joined, eventually: Eventually
) -> None:
    with computing({"a": []}) as value:
        turns = ask(crowd, Value(), 2)
        eventually(lambda: len(joined) == 2)
        value.go.set()
        one, two = (turn.result(GENEROUS) for turn in turns)
    assert one == two == {"a": []}
    assert one is not two


@pytest.mark.parametrize("key", ["y", "x"])
def test_other_values_are_computed_meanwhile(me: Any, computing: Computing, key: str) -> None:
    other_value = Value("mine", key=key, version=1 if key == "y" else 2)
    with computing():
        assert me(other_value, "get") == "mine"


# -- the next one tries -----------------------------------------------------------------------------------------------


def test_an_exception_lets_the_next_one_try(
    crowd: Crowd, computing: Computing, joined: Joined, eventually: Eventually
) -> None:
    late = Value("second")
    with computing(ValueError("no")) as value:
        turns = ask(crowd, late, 3)
        eventually(lambda: len(joined) == 3)
        value.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["second"] * 3
    assert (value.calls, late.calls) == (1, 1)


async def test_a_cancelled_coroutine_lets_the_next_one_try(aeventually: Callable[..., Any], joined: Joined) -> None:
    value = Value(held_up=True)
    leader = asyncio.create_task(value.aget())
    await aeventually(value.called.is_set)
    cancelled = asyncio.create_task(Value("never").aget())
    second = asyncio.create_task(Value("second").aget())
    await aeventually(lambda: len(joined) == 2)
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
from django_redislock.computations import computations
locked_get_or_set("y", 5)
def fork():
    child = os.fork()
    if child == 0:
        alone = not computations.get()._under_way
        os._exit(0 if alone and locked_get_or_set("z", lambda: 5) == 5 else 9)
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
