"""Redis is away for a moment: which calls are retried, for how long, and what a failed release leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockUnavailable, locked, locked_view
from django_redislock.store.retry import Execute
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, holder
from tests.helpers.twins import Twins

Eventually = Callable[..., Any]
RetryFor = Callable[[float], None]

OPERATIONS: dict[str, tuple[Any, ...]] = {"acquire": (), "extend": (5,), "reacquire": (), "release": ()}


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest, crowd: Crowd, network: Proxy) -> Callable[[], Any]:
    """Calls a method of a lock, which is held where that needs it. Nothing else speaks to Redis."""
    me, lock = crowd(), Lock(NAME, auto_renew=False, poll=True)
    if request.param != "acquire":
        me(lock, "acquire")
    return lambda: me(lock, request.param, *OPERATIONS[request.param])


# -- what is tried again -----------------------------------------------------------------------------------------------


def test_an_operation_continues_after_a_short_outage(
    operation: Callable[[], Any], network: Proxy, retry_for: RetryFor, eventually: Eventually
) -> None:
    def mend() -> None:
        eventually(lambda: network.refused >= 4)
        network.mend()

    retry_for(20)
    network.cut()
    mending = threading.Thread(target=mend)
    mending.start()
    operation()
    mending.join(GENEROUS)
    assert network.refused >= 4


def test_an_operation_gives_up_after_the_time_that_is_set(
    operation: Callable[[], Any], network: Proxy, retry_for: RetryFor
) -> None:
    network.cut()
    retry_for(0.6)
    began = monotonic()
    with pytest.raises(LockUnavailable, match="cannot be reached") as caught:
        operation()
    assert 0.3 < monotonic() - began < 0.6 + 1  # no delay is longer than a quarter of a second
    assert caught.value.name == NAME
    assert isinstance(caught.value.__cause__, redis.ConnectionError)


def test_without_retries_only_stale_connections_are_replaced(
    operation: Callable[[], Any], network: Proxy, retry_for: RetryFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(perform: Callable[[Execute], Any]) -> Callable[[Execute], Any]:
        def perform_noted(request: Execute) -> Any:
            tries.append(request)
            return perform(request)

        return perform_noted

    tries: list[Execute] = []
    for name in ("run", "arun"):
        monkeypatch.setattr(Execute, name, noted(getattr(Execute, name)))
    retry_for(0)
    network.cut()
    with pytest.raises(LockUnavailable):
        operation()
    assert len(tries) == 2
    network.mend()
    operation()


@pytest.mark.parametrize("count", [1, 3])
def test_connections_that_have_gone_stale_are_no_error(
    count: int,
    crowd: Crowd,
    network: Proxy,
    retry_for: RetryFor,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many there are, and although none of them is checked before it is used."""
    for module in ("thread_connections", "loop_connections"):
        monkeypatch.setattr(f"django_redislock.store.{module}.IDLE", 1000.0)
    retry_for(0)
    people, locks = [crowd() for _ in range(count)], [Lock(f"seat:{number}", poll=True) for number in range(count)]
    held = network.hold_answer("seat:", times=count)
    waiting = [me.start(lock, "acquire") for me, lock in zip(people, locks, strict=True)]
    eventually(lambda: held.met == count)
    held.let_go()
    assert all(future.result(GENEROUS) for future in waiting)
    network.cut()
    network.mend()
    for me, lock in zip(people, locks, strict=True):
        me(lock, "release")


async def test_other_coroutines_continue_while_one_retries(network: Proxy, retry_for: RetryFor) -> None:
    retry_for(GENEROUS)
    network.cut()
    trying = asyncio.create_task(Lock(NAME).aacquire())
    while network.refused < 4:
        assert not trying.done()
        await asyncio.sleep(0.001)
    network.mend()
    assert await trying


# -- what a failed release leaves --------------------------------------------------------------------------------------


def test_a_failed_release_says_how_long_the_lock_stays_held_and_can_be_tried_again(
    crowd: Crowd, network: Proxy, retry_for: RetryFor, client: redis.Redis
) -> None:
    retry_for(0.1)
    me, lock = crowd(), Lock(NAME, ttl=20)
    me(lock, "acquire")
    token = me.read(lambda: lock.token)
    network.cut()
    with pytest.raises(LockUnavailable, match=r"not released: unless you .* locked for (1\d|20\.0)") as caught:
        me(lock, "release")
    assert caught.value.lease_left == pytest.approx(me.read(lock.remaining), abs=2)
    assert 10 < caught.value.lease_left < 20
    assert me.read(lambda: lock.token) == token
    network.mend()
    me(lock, "release")
    assert me.read(lambda: lock.token) is None
    assert holder(client) == ""


def test_a_failed_release_after_the_end_of_the_lease_says_that_no_lease_is_left(
    crowd: Crowd, network: Proxy, retry_for: RetryFor
) -> None:
    retry_for(0.5)
    me, lock = crowd(), Lock(NAME, ttl=0.2, auto_renew=False)
    me(lock, "acquire")
    network.cut()
    with pytest.raises(LockUnavailable, match=r"locked for 0(\.0)? s") as caught:
        me(lock, "release")
    assert caught.value.lease_left == 0.0


def test_an_error_of_another_call_than_release_has_no_lease_left(
    crowd: Crowd, network: Proxy, retry_for: RetryFor
) -> None:
    retry_for(0)
    network.cut()
    with pytest.raises(LockUnavailable) as caught:
        crowd()(Lock(NAME), "acquire")
    assert caught.value.lease_left is None


@pytest.mark.parametrize("way", ["a function", "a function that raises", "a view"])
def test_what_a_block_could_not_release_is_released_in_the_background(
    way: str,
    crowd: Crowd,
    network: Proxy,
    retry_for: RetryFor,
    client: redis.Redis,
    eventually: Eventually,
    rf: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The user of a block rarely retries the release. If the block did not raise, the log says how long the lock stays
    held."""

    def body(*args: Any) -> str:
        network.cut()
        if way == "a function that raises":
            raise ZeroDivisionError
        return "done"

    retry_for(0.1)
    me, decorator = crowd(), locked_view(NAME, ttl=30) if way == "a view" else locked(NAME, ttl=30)
    twins: Any = Twins(decorator, body)
    if way == "a view":
        assert me(twins, "call", rf.get("/")) == "done"
    elif way == "a function":
        with pytest.raises(LockUnavailable, match="not released") as caught:
            me(twins, "call")
        assert 15 < caught.value.lease_left < 30
    else:
        with pytest.raises(ZeroDivisionError):
            me(twins, "call")
    lines = [text for text in caplog.messages if text.startswith("event=not-released ")]
    assert len(lines) == (way != "a function")
    assert all(15 < float(line.rpartition("lease_left=")[2]) < 30 for line in lines)
    assert holder(client)
    network.mend()
    eventually(lambda: not holder(client))
