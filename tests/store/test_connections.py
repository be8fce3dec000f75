"""The connections of threads and of coroutines: how many there are, who waits for one, and whose answer it is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from time import monotonic, sleep
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockUnavailable, get_lock, locked
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.proxy import proxy
from tests.helpers.twins import Twins
from tests.helpers.ways import BOTH, DJANGO_REDIS, NAME, alias, caches, connections, kill, stopped
from tests.inside import Wire, distrust, limit, surplus, unused_here

from .conftest import Eventually

AEventually = Callable[..., Awaitable[Any]]

pytestmark = pytest.mark.usefixtures("own_pools")

WIRE = Wire()


def ask_again(ask: Callable[[], Any], expected: Any) -> None:
    """Ask until a call succeeds, as a short timeout may expire on a slow machine; any answer must be the right one."""
    for _ in range(50):
        try:
            assert ask() == expected
        except redis.TimeoutError:
            continue
        return
    pytest.fail("the server never answered in time")


def echo(person: Any, word: str, **options: Any) -> bytes:
    (answer,) = person(WIRE, "exchange", ("ECHO", word), **options)
    return bytes(answer)


# -- how many ---------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("bound", "setting"), [(3, 16), (100, 16), (100, 3)])
def test_the_number_of_connections_is_bounded(
    backend: str, bound: int, setting: int, crowd: Crowd, server: RedisServer, client: redis.Redis, settings: Any
) -> None:
    settings.REDISLOCK = {"MAX_CONNECTIONS": setting}
    with caches(alias(backend, server.url, client_name=NAME, max_connections=bound)):
        uses = Twins(locked("{name}", blocking_timeout=60), lambda name: len(connections(client)))
        using = [crowd().start(uses, "call", f"a:{number % 10}") for number in range(60)]
        most = max(used.result(60) for used in using)
    # the listener's, the watchdog's, that of the scripts of threads, and for a moment the one by which it probes
    assert 1 <= most <= min(bound, setting) + 4


@BOTH
def test_a_holder_can_release_while_many_wait_on_a_pool_of_one(
    backend: str, crowd: Crowd, server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    """Coroutines and threads need the listener of the process only."""
    with caches(alias(backend, server.url, max_connections=1, client_name=NAME)):
        me, lock = crowd(), Lock("a", ttl=60)
        me(lock, "acquire")
        waits = Twins(locked("a", blocking_timeout=60), lambda: len(connections(client)))
        waiting = [crowd().start(waits, "call") for _ in range(40)]
        eventually(lambda: get_lock("a").waiters == 40)  # type: ignore[union-attr]
        assert [connection["sub"] != "0" for connection in connections(client)].count(True) == 1
        me(lock, "release")
        assert max(waited.result(60) for waited in waiting) <= 4  # of coroutines, threads, listener and watchdog


@pytest.mark.parametrize("number", [2, 8])
def test_who_was_busy_and_is_quiet_keeps_one_connection(
    number: int, crowd: Crowd, client: redis.Redis, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    limit(monkeypatch, idle_for_threads=0.0, idle_for_loops=0.0, idle_look=0.05)
    people = [crowd() for _ in range(number)]
    asking = [one.start(WIRE, "exchange", ("BLPOP", "gate", "30")) for one in people]
    eventually(lambda: client.info("clients")["blocked_clients"] == number)
    client.rpush("gate", *range(number))
    assert all(asked.result(GENEROUS) for asked in asking)
    with Lock("a", ttl=60):  # so that the renewer runs
        eventually(lambda: people[0].read(unused_here) == 1)


def test_a_connection_that_somebody_takes_meanwhile_is_not_closed() -> None:
    class Taken(deque[Any]):
        """It seemed to have a connection."""

        lengths = [1, 0]

        def __bool__(self) -> bool:
            return True

        def __len__(self) -> int:
            return self.lengths.pop(0)

    assert surplus([Taken()], 0, in_use=0) == []
    assert surplus([deque()], 1, in_use=2) == []


# -- who waits for one ------------------------------------------------------------------------------------------------


class Busy:
    """The only connection is in use until ``end()``."""

    def __init__(self, person: Any, client: redis.Redis, eventually: Eventually) -> None:
        self._client = client
        self._asked: Future[Any] = person.start(WIRE, "exchange", ("BLPOP", "busy", str(GENEROUS)))
        eventually(lambda: client.info("clients")["blocked_clients"] or self._asked.done())

    def end(self) -> None:
        self._client.rpush("busy", "over")
        assert self._asked.result(GENEROUS) == [[b"busy", b"over"]]


@pytest.fixture
def one(server: RedisServer) -> Iterator[None]:
    """An alias that may have one connection only."""
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1, socket_timeout=GENEROUS, client_name=NAME)):
        yield


def test_who_finds_no_connection_free_is_told_so_in_the_end(
    one: None,
    crowd: Crowd,
    client: redis.Redis,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    retry_for: Callable[[float], None],
) -> None:
    limit(monkeypatch, patience_threads=0.05, patience_loops=0.05)
    retry_for(0.1)
    me, lock, busy = crowd(), Lock("a"), Busy(crowd(), client, eventually)
    with pytest.raises(LockUnavailable, match="no connection became free in time"):
        me(lock, "acquire")
    busy.end()
    assert me(lock, "acquire")


def test_who_waits_gets_the_connection_that_becomes_free_but_not_beyond_its_own_deadline(
    one: None, crowd: Crowd, client: redis.Redis, eventually: Eventually
) -> None:
    me, busy = crowd(), Busy(crowd(), client, eventually)
    waiting = [crowd().start(WIRE, "exchange", ("ECHO", "1")) for _ in range(5)]
    with pytest.raises(redis.TimeoutError, match="no connection became free in time"):
        me(WIRE, "exchange", ("ECHO", "1"), within=0.05)
    assert not any(waited.done() for waited in waiting)
    busy.end()
    assert [waited.result(GENEROUS) for waited in waiting] == [[b"1"]] * 5
    assert echo(me, "1", within=GENEROUS) == b"1"


async def test_a_coroutine_with_time_waits_longer_for_a_connection_than_for_an_answer(
    server: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1, socket_timeout=0.3)):
        ahead = [asyncio.create_task(WIRE.aexchange(("BLPOP", "nothing", "0.2"))) for _ in range(6)]
        await asyncio.sleep(0)
        # not all of those ahead, nor this one, may be answered in time on a slow machine
        acquired = None
        while acquired is None:
            try:
                acquired = await Lock("a").aacquire(blocking_timeout=GENEROUS)
            except LockUnavailable as unavailable:
                if "no answer" not in str(unavailable):
                    raise
        assert acquired
        assert all(asked.done() for asked in ahead)
        await asyncio.gather(*ahead, return_exceptions=True)


async def test_a_release_goes_before_the_coroutines_that_wait_for_a_connection(
    one: None, client: redis.Redis, aeventually: AEventually
) -> None:
    done: list[str] = []

    async def note(what: str, call: Awaitable[object]) -> None:
        await call
        done.append(what)

    lock = Lock("a")
    await lock.aacquire()
    busy = asyncio.create_task(WIRE.aexchange(("BLPOP", "busy", str(GENEROUS))))
    await aeventually(lambda: client.info("clients")["blocked_clients"])
    others = [asyncio.create_task(note("other", Lock("b").alocked())) for _ in range(5)]
    await asyncio.sleep(0)
    # not before this coroutine waits
    asyncio.get_running_loop().call_later(0.05, client.rpush, "busy", "over")
    await note("release", lock.arelease())
    await asyncio.gather(busy, *others)
    assert done == ["release"] + ["other"] * 5


async def test_a_connection_that_becomes_free_in_the_moment_in_which_its_waiter_gives_up_is_used(
    one: None, client: redis.Redis, eventually: Eventually, aeventually: AEventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, patience_loops=1.0)
    busy = asyncio.create_task(WIRE.aexchange(("BLPOP", "busy", str(GENEROUS))))
    await aeventually(lambda: client.info("clients")["blocked_clients"])
    waiting, begun = asyncio.create_task(WIRE.aexchange(("ECHO", "1"))), monotonic()
    await asyncio.sleep(0)
    client.rpush("busy", "over")
    eventually(lambda: not client.info("clients")["blocked_clients"])
    await asyncio.sleep(0)  # the loop reads the answer after this, and looks at the clock after that
    sleep(max(0.0, begun + 1.1 - monotonic()))
    await asyncio.wait([waiting])
    assert await busy == [[b"busy", b"over"]]
    assert waiting.exception() or waiting.result() == [b"1"]
    assert await WIRE.aexchange(("ECHO", "2")) == [b"2"]


class Forgetful(redis.CredentialProvider):
    """A site's own code with a bug, which raises no connection error."""

    def get_credentials(self) -> tuple[str, str]:
        raise RuntimeError("no credentials")


def test_an_error_of_the_sites_own_code_propagates_and_takes_no_connection(me: Any, server: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1, credential_provider=Forgetful())):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no credentials"):
                me(Lock("a"), "acquire")


# -- whose answer it is -----------------------------------------------------------------------------------------------


def test_a_late_answer_is_given_to_nobody_else(me: Any, server: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, server.url, socket_timeout=0.1, max_connections=1)):
        ask_again(lambda: echo(me, "first"), b"first")
        for late in ([("ECHO", "late")], [("ECHO", "late"), ("ECHO", "later")]):
            with stopped(server), pytest.raises(redis.TimeoutError):
                me(WIRE, "exchange", *late)
            ask_again(lambda: echo(me, "next"), b"next")


@pytest.mark.parametrize("warm", [True, False], ids=["connected", "not connected"])
def test_an_answer_is_waited_for_no_longer_than_to_the_deadline(
    warm: bool, one: None, me: Any, server: RedisServer
) -> None:
    assert echo(me, "first") == b"first"
    if not warm:
        distrust()
    begin = monotonic()
    with stopped(server), pytest.raises((redis.TimeoutError, redis.ConnectionError)):
        me(WIRE, "exchange", ("ECHO", "late"), within=0.1)
    assert monotonic() - begin < GENEROUS / 2  # which is the timeout
    assert echo(me, "next") == b"next"


def test_a_connection_that_was_made_under_a_deadline_has_the_timeout_of_the_alias_afterwards(
    server: RedisServer, me: Any
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, socket_timeout=2, max_connections=1)):
        ask_again(lambda: echo(me, "1", within=0.5), b"1")
        begin = monotonic()
        assert me(WIRE, "exchange", ("BLPOP", "nothing", "1")) == [None]
        assert monotonic() - begin > 0.9


async def test_an_answer_that_came_while_the_loop_was_blocked_counts(
    server: RedisServer, retry_for: Callable[[float], None], aeventually: AEventually, eventually: Eventually
) -> None:
    retry_for(0.1)
    with proxy(server.port) as network, caches(alias(DJANGO_REDIS, network.url, socket_timeout=0.5)):
        async with Lock("a"):
            answer = network.hold_answer("lock:a")
            asking = asyncio.create_task(Lock("a").alocked())
            await aeventually(answer.caught.is_set)
            begin = monotonic()
            answer.let_go()
            eventually(lambda: answer.over.is_set() and monotonic() - begin > 0.7)  # blocks
            assert await asking is True


LOOKS = pytest.mark.parametrize("look_after", [-1.0, 1000.0], ids=["looked at", "not looked at"])


@LOOKS
def test_a_connection_killed_while_it_idles_is_replaced(
    look_after: float, one: None, me: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, check_idle_threads=look_after, check_idle_loops=look_after)
    for _ in range(3):
        assert not me(Lock("a"), "locked")
        kill(client)
    assert not me(Lock("a"), "locked")
    assert me.read(unused_here) == 1


@pytest.mark.parametrize("how", ["unasked", "closed"])
def test_a_connection_that_is_not_as_we_left_it_is_not_used(
    how: str, one: None, me: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, check_idle_threads=-1.0, check_idle_loops=-1.0)
    assert echo(me, "1") == b"1"
    me(WIRE, "spoil", how)
    assert echo(me, "2") == b"2"
    assert me.read(unused_here) == 1


@LOOKS
async def test_a_connection_that_was_reset_while_it_idled_is_replaced(
    look_after: float, one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some Pythons fail where it is written to."""
    limit(monkeypatch, check_idle_loops=look_after)
    assert not await Lock("a").alocked()
    await WIRE.aspoil("reset")
    assert not await Lock("a").alocked()


@pytest.mark.parametrize("using", ["default", "memory"])
def test_the_errors_of_single_commands_stand_among_the_answers(using: str, me: Any) -> None:
    wire = Wire(using)
    for _ in range(2):  # the connection is still good
        first, error, second = me(wire, "exchange", ("ECHO", "1"), ("NO-SUCH",), ("ECHO", "2"))
        assert (first, second) == (b"1", b"2")
        assert type(error) is redis.ResponseError


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("MOVED", redis.exceptions.MovedError),
        ("ASK", redis.exceptions.AskError),
        ("TRYAGAIN", redis.exceptions.TryAgainError),
        ("CLUSTERDOWN", redis.exceptions.ClusterDownError),
        ("OOM", redis.exceptions.OutOfMemoryError),
    ],
)
def test_errors_of_a_cluster_have_their_own_classes(word: str, kind: type, me: Any) -> None:
    """redis-py 5 leaves these to the parser of its own cluster client."""
    error: Any
    (error,) = me(WIRE, "exchange", ("EVAL", f"return redis.error_reply('{word} 7 127.0.0.1:6379')", "0"))
    if word == "MOVED":
        assert (error.slot_id, error.host, error.port) == (7, "127.0.0.1", 6379)
    assert type(error) is kind
