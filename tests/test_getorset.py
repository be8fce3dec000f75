"""A cached value that is computed once, while the others wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from django_redislock import (
    Lock,
    LockError,
    LockNotAcquired,
    LockUnavailable,
    alist_locks,
    alocked_get_or_set,
    force_release,
    list_locks,
    lock_lost,
    locked_get_or_set,
)
from django_redislock.getorset import _flights
from redisserver import RedisServer

from .actors import GENEROUS, Actor, Other
from .databases import Account
from .processes import Worker
from .ways import Eventually

OURS = "django_redislock.cache.RedisCache"
BACKENDS = {
    "ours": OURS,
    "django-redis": "django_redis.cache.RedisCache",
    "django": "django.core.cache.backends.redis.RedisCache",
    "locmem": "django.core.cache.backends.locmem.LocMemCache",
    "dummy": "django.core.cache.backends.dummy.DummyCache",
}
EACH = pytest.mark.parametrize("alias", ["ours", "django-redis", "django", "locmem"])
NAME = "get_or_set:ours::1:x"


@pytest.fixture(autouse=True)
def _aliases(settings: Any, server: RedisServer) -> None:
    settings.CACHES = {
        **settings.CACHES,
        **{
            alias: {"BACKEND": backend, "LOCATION": server.url if "edis" in backend else ""}
            for alias, backend in BACKENDS.items()
        },
    }
    caches["locmem"].clear()


class Default:
    """A default that counts its calls, and can be held up."""

    def __init__(self, value: Any = "computed") -> None:
        self.value = value
        self.calls = 0
        self.called = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def __call__(self) -> Any:
        self.calls += 1
        self.called.set()
        assert self.go.wait(GENEROUS)
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


@pytest.fixture
def computing(other: Callable[[], Other]) -> Callable[..., Any]:
    """Another thread computes the value ``x``, until the default that is answered is let go."""

    @contextmanager
    def computing(value: Any = "theirs", alias: str = "ours") -> Iterator[Default]:
        default = Default(value)
        default.go.clear()
        turn = other().start(lambda: locked_get_or_set("x", default, using=alias))
        assert default.called.wait(GENEROUS)
        try:
            yield default
        finally:
            default.go.set()
            turn.exception(GENEROUS)

    return computing


def waiting() -> int:
    """How many of this process wait for one that computes."""
    found: list[Any] = [flight.future for flight in _flights.values()]
    return sum(len(future._waiters) + len(future._done_callbacks) for future in found)


# -- one caller -----------------------------------------------------------------------------------------------------


@EACH
def test_a_missing_value_is_computed_under_a_lock_and_kept(alias: str) -> None:
    default = Default([1, 2])

    def compute() -> Any:
        assert [lock.name for lock in list_locks()] == [f"get_or_set:{alias}::1:x"]
        return default()

    assert locked_get_or_set("x", compute, using=alias) == [1, 2]
    assert caches[alias].get("x") == [1, 2]
    assert locked_get_or_set("x", compute, using=alias) == [1, 2]
    assert default.calls == 1
    assert list_locks() == []
    assert not _flights


@EACH
async def test_a_coroutine_function_may_compute_it(alias: str) -> None:
    default = Default([1, 2])

    async def compute() -> Any:
        assert [lock.name for lock in await alist_locks()] == [f"get_or_set:{alias}::1:x"]
        return default()

    assert await alocked_get_or_set("x", compute, using=alias) == [1, 2]
    assert await caches[alias].aget("x") == [1, 2]
    assert await alocked_get_or_set("x", compute, using=alias) == [1, 2]
    assert default.calls == 1
    assert await alist_locks() == []
    assert not _flights


async def test_a_plain_function_is_called_in_a_thread_and_what_it_answers_is_awaited() -> None:
    async def compute() -> str:
        return "awaited"

    assert await alocked_get_or_set("x", lambda: compute()) == "awaited"
    assert await alocked_get_or_set("y", asyncio._get_running_loop) is None


def test_the_backend_has_it_as_methods() -> None:
    cache: Any = caches["ours"]
    assert cache.locked_get_or_set("x", lambda: 1, 60, 2, 5) == 1
    assert cache.get("x", version=2) == 1
    assert asyncio.run(cache.alocked_get_or_set("x", lambda: 2, None, 3, None)) == 2
    assert cache.get("x", version=3) == 2
    assert cache.get("x") is None


@EACH
def test_a_value_needs_no_lock(alias: str, client: redis.Redis) -> None:
    client.config_resetstat()
    assert locked_get_or_set("x", 42, using=alias) == 42
    assert caches[alias].get("x") == 42
    assert "cmdstat_evalsha" not in client.info("commandstats")


@pytest.mark.parametrize("alias", ["ours", "django-redis", "django"])
def test_a_value_that_is_there_costs_one_get(alias: str, client: redis.Redis) -> None:
    caches[alias].set("x", 1)
    client.config_resetstat()
    assert locked_get_or_set("x", Default(), using=alias) == 1
    commands = {key: stat["calls"] for key, stat in client.info("commandstats").items()}
    assert {key: calls for key, calls in commands.items() if "config" not in key} == {"cmdstat_get": 1}


@EACH
def test_none_is_a_value(alias: str) -> None:
    default = Default(None)
    assert locked_get_or_set("x", default, using=alias) is None
    assert locked_get_or_set("x", default, using=alias) is None
    assert caches[alias].get_or_set("x", default) is None
    assert default.calls == 1


def test_the_timeout_and_version_are_those_of_the_cache(client: redis.Redis) -> None:
    locked_get_or_set("x", lambda: 1, timeout=60, version=2, using="ours")
    assert 55 < client.ttl(":2:x") <= 60
    locked_get_or_set("y", lambda: 1, timeout=None, using="ours")
    assert client.ttl(":1:y") == -1
    locked_get_or_set("z", lambda: 1, using="ours")
    assert 295 < client.ttl(":1:z") <= 300


def test_what_somebody_stored_meanwhile_counts_more() -> None:
    def compute() -> str:
        caches["ours"].set("x", "theirs")
        return "mine"

    assert locked_get_or_set("x", compute, using="ours") == "theirs"


def test_a_value_that_the_cache_does_not_keep_is_computed_each_time() -> None:
    default = Default()
    assert [locked_get_or_set("x", default, using="dummy") for _ in range(2)] == ["computed"] * 2
    assert default.calls == 2


def test_any_key_can_be_computed() -> None:
    assert locked_get_or_set("ü" * 400 + "\n", lambda: 1, using="ours") == 1


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(7), KeyboardInterrupt()])
def test_what_the_default_raises_goes_up_and_leaves_no_lock(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        locked_get_or_set("x", Default(error), using="ours")
    assert raised.value is error
    assert list_locks() == []
    assert locked_get_or_set("x", Default(), using="ours") == "computed"


def test_inside_a_transaction_it_does_not_warn(account: Account) -> None:
    with transaction.atomic():
        assert locked_get_or_set("x", Default(), using="ours") == "computed"


# -- many callers ---------------------------------------------------------------------------------------------------


@EACH
def test_who_comes_meanwhile_waits_and_reads(
    computing: Callable[..., Any], other: Callable[[], Other], eventually: Eventually, alias: str
) -> None:
    with computing(alias=alias) as default:
        late = Default("never")
        turns = [other().start(lambda: locked_get_or_set("x", late, using=alias)) for _ in range(5)]
        eventually(lambda: waiting() == 5)
        default.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["theirs"] * 5
    assert (default.calls, late.calls) == (1, 0)


async def test_coroutines_and_threads_wait_for_each_other(
    other: Callable[[], Other], actor: Callable[[], Actor], aeventually: Callable[..., Any]
) -> None:
    go = asyncio.Event()
    late = Default("never")

    async def compute() -> str:
        await go.wait()
        return "theirs"

    tasks = [actor().start(lambda: alocked_get_or_set("x", compute, using="ours"))]
    await aeventually(alist_locks)
    tasks += [actor().start(lambda: alocked_get_or_set("x", late, using="ours")) for _ in range(3)]
    turns = [other().start(lambda: locked_get_or_set("x", late, using="ours")) for _ in range(3)]
    await aeventually(lambda: waiting() == 6)
    go.set()
    assert await asyncio.wait_for(asyncio.gather(*tasks), GENEROUS) == ["theirs"] * 4
    assert [await asyncio.wrap_future(turn) for turn in turns] == ["theirs"] * 3
    assert late.calls == 0


def test_who_waits_has_an_object_of_its_own(
    computing: Callable[..., Any], other: Callable[[], Other], eventually: Eventually
) -> None:
    with computing({"a": []}) as default:
        turns = [other().start(lambda: locked_get_or_set("x", Default(), using="ours")) for _ in range(2)]
        eventually(lambda: waiting() == 2)
        default.go.set()
        one, two = (turn.result(GENEROUS) for turn in turns)
    assert one == two == {"a": []}
    assert one is not two


def test_another_process_waits_and_reads(
    computing: Callable[..., Any], start: Callable[..., Worker], eventually: Eventually, server: RedisServer
) -> None:
    with computing() as default:
        worker = start(PROCESS + "ask()\nsay('got', *got, 'computed', len(calls))", url=server.url, threads=1)
        eventually(lambda: list_locks("get_or_set:*")[0].waiters == 1)
        default.go.set()
        assert worker.expect("got") == ["theirs", "computed", "0"]


def test_who_gets_the_lock_looks_again(other: Callable[[], Other], eventually: Eventually) -> None:
    elsewhere, late = other(), Default("never")
    lock = Lock(NAME)
    assert elsewhere(lock.acquire)
    turn = other().start(lambda: locked_get_or_set("x", late, using="ours"))
    eventually(lambda: list_locks()[0].waiters == 1)
    caches["ours"].set("x", "theirs")
    elsewhere(lock.release)
    assert turn.result(GENEROUS) == "theirs"
    assert late.calls == 0
    eventually(lambda: list_locks() == [])


def test_an_exception_lets_the_next_one_try(
    computing: Callable[..., Any], other: Callable[[], Other], eventually: Eventually
) -> None:
    with computing(ValueError("no")) as default:
        late = Default("second")
        turns = [other().start(lambda: locked_get_or_set("x", late, using="ours")) for _ in range(3)]
        eventually(lambda: waiting() == 3)
        default.go.set()
        assert [turn.result(GENEROUS) for turn in turns] == ["second"] * 3
    assert (default.calls, late.calls) == (1, 1)


def test_the_process_that_dies_lets_the_next_one_try(start: Callable[..., Worker], server: RedisServer) -> None:
    code = PROCESS.replace("time.sleep(0.2)", "say('computing'); time.sleep(60)") + "ask()"
    worker = start(
        "from django.conf import settings\nsettings.REDISLOCK = {'TTL': 1}\n" + code, url=server.url, threads=1
    )
    worker.expect("computing")
    worker.kill()
    assert locked_get_or_set("x", Default(), using="ours") == "computed"


# -- lock_timeout ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("patience", [0, 0.05])
def test_who_is_out_of_patience_gets_an_error(computing: Callable[..., Any], elsewhere: bool, patience: float) -> None:
    def ask() -> None:
        begun = monotonic()
        with pytest.raises(LockNotAcquired, match="'x' is being computed by somebody else") as raised:
            locked_get_or_set("x", Default("never"), lock_timeout=patience, using="ours")
        assert monotonic() - begun >= patience
        assert raised.value.name == NAME

    if elsewhere:
        foreign = Lock(NAME).acquire
        thread = threading.Thread(target=foreign)
        thread.start()
        thread.join()
        ask()
        assert not _flights
    else:
        with computing():
            ask()


async def test_a_coroutine_out_of_patience_gets_an_error(computing: Callable[..., Any]) -> None:
    with computing(), pytest.raises(LockNotAcquired):
        await alocked_get_or_set("x", Default("never"), lock_timeout=0.05, using="ours")


def test_the_setting_is_the_patience_of_who_names_none(computing: Callable[..., Any], settings: Any) -> None:
    settings.REDISLOCK = {"BLOCKING_TIMEOUT": 0.05}
    with computing(), pytest.raises(LockNotAcquired):
        locked_get_or_set("x", Default("never"), using="ours")


def test_who_has_patience_outwaits_those_who_have_none(
    computing: Callable[..., Any], other: Callable[[], Other], eventually: Eventually
) -> None:
    holder = other()
    assert holder(Lock(NAME).acquire)
    first = other().start(lambda: locked_get_or_set("x", Default("first"), lock_timeout=0.2, using="ours"))
    eventually(lambda: _flights)
    second = other().start(lambda: locked_get_or_set("x", Default("second"), using="ours"))
    with pytest.raises(LockNotAcquired):
        first.result(GENEROUS)
    force_release(NAME)
    assert second.result(GENEROUS) == "second"


# -- what can go wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, "1", float("nan")])
def test_a_wrong_patience_is_an_error_even_where_the_value_is(wrong: Any) -> None:
    caches["ours"].set("x", 1)
    with pytest.raises((ValueError, TypeError), match="lock_timeout must be"):
        locked_get_or_set("x", Default(), lock_timeout=wrong, using="ours")


def test_an_unknown_alias_is_named() -> None:
    with pytest.raises(InvalidCacheBackendError, match="nowhere"):
        locked_get_or_set("x", Default(), using="nowhere")


def test_a_coroutine_function_is_for_coroutines() -> None:
    async def compute() -> None: ...

    with pytest.raises(TypeError, match="await alocked_get_or_set"):
        locked_get_or_set("x", compute)


async def test_it_refuses_to_block_an_event_loop() -> None:
    with pytest.raises(SynchronousOnlyOperation, match="alocked_get_or_set"):
        locked_get_or_set("x", Default())


def test_a_default_that_asks_for_its_own_value_gets_an_error() -> None:
    def compute() -> Any:
        return locked_get_or_set("x", compute, using="ours")

    with pytest.raises(LockError, match="would wait for itself"):
        locked_get_or_set("x", compute, using="ours")
    assert list_locks() == []


def test_a_default_may_ask_for_another_value() -> None:
    def compute() -> Any:
        return locked_get_or_set("y", lambda: 20, using="ours") + 1

    assert locked_get_or_set("x", compute, using="ours") == 21


def test_a_lock_that_is_lost_meanwhile_costs_nobody_the_value() -> None:
    lost = []
    receiver = lambda **facts: lost.append(facts["name"])  # noqa: E731
    lock_lost.connect(receiver)

    def compute() -> str:
        assert force_release(NAME)
        return "mine"

    assert locked_get_or_set("x", compute, using="ours") == "mine"
    lock_lost.disconnect(receiver)
    assert lost == [NAME]


@pytest.fixture
def apart(own: RedisServer, settings: Any) -> RedisServer:
    """The locks' own server; the values are in this process."""
    settings.REDISLOCK = {"CACHE": "default"}
    return own


def test_without_the_redis_of_the_locks_a_value_that_is_there_is_read(apart: RedisServer) -> None:
    caches["locmem"].set("x", 1)
    apart.stop()
    assert locked_get_or_set("x", Default(), using="locmem") == 1


def test_without_the_redis_of_the_locks_nothing_is_computed(
    apart: RedisServer, other: Callable[[], Other], eventually: Eventually
) -> None:
    apart.stop()
    default = Default()
    turns = [other().start(lambda: locked_get_or_set("x", default, using="locmem")) for _ in range(10)]
    begun = monotonic()
    for turn in turns:
        with pytest.raises(LockUnavailable) as raised:
            turn.result(GENEROUS)
        assert raised.value.name == "get_or_set:locmem::1:x"
    assert monotonic() - begun < 8  # not one after the other
    assert default.calls == 0


def test_an_outage_that_the_default_meets_is_its_own(
    computing: Callable[..., Any], other: Callable[[], Other], eventually: Eventually
) -> None:
    with computing(LockUnavailable("another lock", "another")) as default:
        turn = other().start(lambda: locked_get_or_set("x", Default("second"), using="ours"))
        eventually(lambda: waiting() == 1)
        default.go.set()
        assert turn.result(GENEROUS) == "second"


def test_a_release_that_cannot_be_sent_costs_nobody_the_value(
    apart: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def compute() -> str:
        apart.stop()
        return "mine"

    assert locked_get_or_set("x", compute, using="locmem") == "mine"
    assert caches["locmem"].get("x") == "mine"
    assert "event=not-released name=get_or_set:locmem::1:x" in caplog.text


async def test_a_coroutine_that_is_cancelled_lets_the_next_one_try(
    actor: Callable[[], Actor], aeventually: Callable[..., Any]
) -> None:
    task = asyncio.create_task(alocked_get_or_set("x", asyncio.Event().wait, using="ours"))
    await aeventually(alist_locks)
    cancelled = asyncio.create_task(alocked_get_or_set("x", Default("never"), using="ours"))
    second = actor().start(lambda: alocked_get_or_set("x", Default("second"), using="ours"))
    await aeventually(lambda: waiting() == 2)
    cancelled.cancel()
    task.cancel()
    assert await asyncio.wait_for(second, GENEROUS) == "second"
    assert task.cancelled() or (await asyncio.wait([task]))[0]
    assert cancelled.cancelled()


def test_a_loop_that_ends_with_waiters_in_it_is_not_told(
    computing: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(alocked_get_or_set("x", Default("never"), using="ours"), 0.05)

    with computing():
        asyncio.run(give_up())
    assert not [record for record in caplog.records if record.name in ("asyncio", "concurrent.futures")]


def test_a_forked_child_computes_for_itself(start: Callable[..., Worker], server: RedisServer) -> None:
    code = """
child = []
def fork():
    child.append(os.fork())
    if child[0] == 0:
        os._exit(0 if locked_get_or_set("y", 5) == 5 and not getorset._flights else 9)
    return 1
from django_redislock import getorset
assert locked_get_or_set("x", fork) == 1
say("child", os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]))
"""
    assert start(code).expect("child") == ["0"]


# -- the pile -------------------------------------------------------------------------------------------------------

PROCESS = """
from django.conf import settings
settings.CACHES["ours"] = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": url}
from django.core.cache import caches

calls, got = [], []

def compute():
    calls.append(1)
    time.sleep(0.2)
    return "value"

def ask():
    got.append(locked_get_or_set("x", compute, using="ours"))
"""


def test_200_threads_in_4_processes_compute_it_once(
    start: Callable[..., Worker], client: redis.Redis, server: RedisServer
) -> None:
    code = (
        PROCESS
        + """
gate = threading.Barrier(threads + 1)
def run():
    gate.wait()
    ask()
crowd = [threading.Thread(target=run) for _ in range(threads)]
for thread in crowd: thread.start()
say("ready")
hear()
gate.wait()
for thread in crowd: thread.join()
say("done", len(calls), *sorted(set(got)), len(got))
"""
    )
    workers = [start(code, url=server.url, threads=50) for _ in range(4)]
    for worker in workers:
        worker.expect("ready")
    client.config_resetstat()
    for worker in workers:
        worker.tell()
    answers = [worker.expect("done") for worker in workers]
    assert sum(int(computed) for computed, *_ in answers) == 1
    assert [rest for _, *rest in answers] == [["value", "50"]] * 4
    # each of them looks twice, and each process asks for the lock once, or again when it is woken
    commands = client.info("commandstats")
    assert commands["cmdstat_get"]["calls"] <= 2 * 200 + 100
    assert commands["cmdstat_evalsha"]["calls"] < 40
