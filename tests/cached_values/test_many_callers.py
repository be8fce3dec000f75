"""A cached value that many callers want at once: one computes it, and all others wait for it, or give up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from time import monotonic, sleep
from typing import Any

import pytest
import redis
from django.core.cache import caches

from django_redislock import Lock, LockNotAcquired, LockUnavailable, force_release, list_locks
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.processes import Worker
from tests.inside import limit, waiting_for_values

from .conftest import NAME, Computing, Value

Eventually = Callable[..., Any]


def ask(crowd: Crowd, value: Value, number: int, eventually: Eventually) -> list[Future[Any]]:
    """Let so many more callers ask for the value, and wait until they wait for the one that computes it."""
    before = waiting_for_values()
    turns = [crowd().start(value, "get") for _ in range(number)]
    eventually(lambda: waiting_for_values() == before + number)
    return turns


@pytest.mark.parametrize("alias", ["ours", "locmem"])
def test_callers_that_come_meanwhile_wait_and_each_reads_an_object_of_its_own(
    crowd: Crowd, computing: Computing, eventually: Eventually, alias: str
) -> None:
    late = Value("never", using=alias)
    with computing({"a": []}, using=alias) as value:
        assert crowd()(Value("mine", using=alias, version=2), "get") == "mine"
        turns = ask(crowd, late, 5, eventually)
        value.go.set()
        found = [turn.result(GENEROUS) for turn in turns]
    assert found == [{"a": []}] * 5
    assert len({id(one) for one in found}) == 5
    assert (value.calls, late.calls) == (1, 0)


def test_coroutines_and_threads_wait_for_each_other_however_long(
    crowd: Crowd, computing: Computing, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, value_look=0.001)
    others, late = Crowd(tasks=not crowd.awaits), Value("never")
    try:
        with computing() as value:
            turns = ask(others, late, 3, eventually) + ask(crowd, late, 3, eventually)
            sleep(0.1)  # many looks
            value.go.set()
            assert [turn.result(GENEROUS) for turn in turns] == ["theirs"] * 6
    finally:
        others.close()
    assert late.calls == 0


@pytest.mark.parametrize("end", [ValueError("no"), LockUnavailable("of another lock", "another"), "force-released"])
def test_if_the_one_that_computes_fails_or_loses_its_lock_the_next_one_tries(
    end: Any, crowd: Crowd, computing: Computing, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, value_look=0.05)
    late = Value("second")
    with computing(end) as value:
        turns = ask(crowd, late, 3, eventually)
        if end == "force-released":
            assert force_release(NAME)
        else:
            value.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["second"] * 3
    assert (value.calls, late.calls) == (1, 1)
    # what was stored meanwhile takes precedence, and the loss costs nobody the value
    assert (end == "force-released" and value.turn.result() == "second") or value.turn.exception() is end


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


@pytest.mark.parametrize("how", ["released", "died"])
def test_a_caller_waits_for_another_process_and_reads_the_cache_again(
    how: str, crowd: Crowd, eventually: Eventually
) -> None:
    elsewhere, late, lock = crowd(), Value("mine"), Lock(NAME, ttl=1, auto_renew=False)
    assert elsewhere(lock, "acquire")
    turn = crowd().start(late, "get")
    eventually(lambda: list_locks()[0].waiters == 1)
    if how == "released":
        caches["ours"].set("x", "theirs")
        elsewhere(lock, "release")
    assert turn.result(GENEROUS) == ("theirs" if how == "released" else "mine")
    assert late.calls == (how == "died")
    eventually(lambda: list_locks() == [])


PROCESS = """
from django.conf import settings
settings.CACHES["ours"] = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": url}
calls, got, gate = [], [], threading.Barrier(100)

def compute():
    calls.append(1)
    time.sleep(0.2)
    return "value"

def ask():
    gate.wait()
    got.append(locked_get_or_set("x", compute, using="ours"))

crowd = [threading.Thread(target=ask) for _ in range(100)]
say("ready")
hear()
for thread in crowd: thread.start()
for thread in crowd: thread.join()
say("done", len(calls), *sorted(set(got)), len(got))
"""


@pytest.mark.complete
def test_200_threads_of_2_processes_compute_it_once(
    start: Callable[..., Worker], client: redis.Redis, server: RedisServer
) -> None:
    workers = [start(PROCESS, url=server.url) for _ in range(2)]
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


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in this process", "elsewhere"])
@pytest.mark.parametrize(("patience", "setting"), [(0, None), (0.05, None), (None, 0.05)])
def test_a_caller_whose_timeout_has_passed_gets_an_error(
    crowd: Crowd, computing: Computing, elsewhere: bool, patience: float | None, setting: float | None, settings: Any
) -> None:
    settings.REDISLOCK = {"BLOCKING_TIMEOUT": setting}
    with ExitStack() as stack:
        if elsewhere:
            crowd()(Lock(NAME), "acquire")
        else:
            stack.enter_context(computing())
        with pytest.raises(LockNotAcquired, match="'x' in time: it is being computed elsewhere") as raised:
            crowd()(Value("never", blocking_timeout=patience), "get")
    assert raised.value.name == NAME
    assert raised.value.outcome == ("busy" if patience == 0 else "timeout")
    assert raised.value.waited >= (setting or patience or 0)


def test_an_outage_costs_nobody_a_value_that_is_there_and_a_missing_one_is_not_computed(
    crowd: Crowd, own: RedisServer, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDISLOCK = {"CACHE": "default", "RETRY_FOR": 0.5}  # the values are in this process
    there, missing = Value(using="locmem", held_up=True), Value(key="y", using="locmem")
    turn = crowd().start(there, "get")
    assert there.called.wait(GENEROUS)
    assert list_locks()
    own.stop()
    there.go.set()
    assert turn.result(GENEROUS) == "computed"
    assert "event=not-released name=get_or_set:locmem::1:x" in caplog.text
    assert crowd()(Value("never", using="locmem"), "get") == "computed"
    begun = monotonic()
    turns = [crowd().start(missing, "get") for _ in range(10)]
    for turn in turns:
        with pytest.raises(LockUnavailable) as raised:
            turn.result(GENEROUS)
        assert raised.value.name == "get_or_set:locmem::1:y"
    assert monotonic() - begun < 4  # not one after the other
    assert missing.calls == 0
