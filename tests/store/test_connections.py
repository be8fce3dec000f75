"""The connections of threads and of coroutines: how many there are, who waits for one, and whose answer it is."""

import asyncio
import gc
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import redis
from freezegun import freeze_time
from redis.utils import HIREDIS_AVAILABLE

import django_redislock
from django_redislock import Lock, LockUnavailable, get_lock, locked
from redisserver import RedisServer, redis_server
from tests.helpers.actors import GENEROUS, Crowd, auntil, never, until
from tests.helpers.proxy import proxy
from tests.helpers.servers import Twins, wsgi_server
from tests.helpers.state import count, put, queued
from tests.helpers.ways import BOTH, DJANGO_REDIS, NAME, alias, caches, connections, kill, stopped
from tests.inside import (
    AskedOnce,
    Wire,
    command,
    ends,
    hears,
    lease_of,
    limit,
    listen,
    put_together,
    renew_all,
    surplus,
    unused_here,
)

from .conftest import use_by_many

WIRE = Wire()


def echo(person: Any, word: str) -> None:
    """Ask until a call succeeds, as a short timeout may expire on a slow machine; any answer must be the right one."""
    for _ in range(50):
        try:
            assert person(WIRE, "exchange", ("ECHO", word)) == [word.encode()]
        except redis.TimeoutError:
            continue
        return
    pytest.fail("the server never answered in time")


@pytest.fixture
def one(server: RedisServer) -> Iterator[None]:
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1, socket_timeout=GENEROUS, client_name=NAME)):
        yield


@BOTH
@pytest.mark.parametrize(("bound", "setting"), [(3, 16), (100, 3)])
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


@pytest.mark.usefixtures("one")
def test_who_finds_no_connection_free_waits_until_its_deadline_and_is_told_so_in_the_end(
    crowd: Crowd, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, retry_for: Any
) -> None:
    retry_for(0.1)
    me, lock, busy = crowd(), Lock("a"), crowd().start(WIRE, "exchange", ("BLPOP", "busy", str(GENEROUS)))
    until(lambda: client.info("clients")["blocked_clients"])
    waiting = [crowd().start(WIRE, "exchange", ("ECHO", "1")) for _ in range(5)]
    with pytest.raises(redis.TimeoutError, match="no connection became free in time"):
        me(WIRE, "exchange", ("ECHO", "1"), within=0.05)
    limit(monkeypatch, patience_threads=0.05, patience_loops=0.05)
    with pytest.raises(LockUnavailable, match="no connection became free in time"):
        me(lock, "acquire")
    assert not any(waited.done() for waited in waiting)
    client.rpush("busy", "over")
    assert busy.result(GENEROUS) == [[b"busy", b"over"]]
    assert [waited.result(GENEROUS) for waited in waiting] == [[b"1"]] * 5
    retry_for(GENEROUS)  # the renewer may use the connection for a moment
    assert me(lock, "acquire")


async def test_a_connection_that_becomes_free_in_the_moment_in_which_its_waiter_gives_up_is_used(
    one: None, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, patience_loops=0.5)
    busy = asyncio.create_task(WIRE.aexchange(("BLPOP", "busy", str(GENEROUS))))
    await auntil(lambda: client.info("clients")["blocked_clients"])
    waiting, begun = asyncio.create_task(WIRE.aexchange(("ECHO", "1"))), monotonic()
    await asyncio.sleep(0)
    client.rpush("busy", "over")
    until(lambda: not client.info("clients")["blocked_clients"])
    await asyncio.sleep(0)  # the loop reads the answer after this, and looks at the clock after that
    sleep(max(0.0, begun + 0.6 - monotonic()))
    await asyncio.wait([waiting])
    assert await busy == [[b"busy", b"over"]]
    assert waiting.exception() or waiting.result() == [b"1"]
    assert await WIRE.aexchange(("ECHO", "2")) == [b"2"]


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


def test_an_error_that_is_kept_keeps_no_connection(
    me: Any, own: RedisServer, retry_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one of the network nor one of the server."""
    kept = []

    def fails(problem: str) -> None:
        for _ in range(3):
            with pytest.raises(LockUnavailable, match=problem) as caught:
                me(Lock("a"), "acquire")
            kept.append(caught.value)

    retry_for(0.0)
    limit(monkeypatch, patience_threads=0.05, patience_loops=0.05)
    with caches(alias(DJANGO_REDIS, "redis://127.0.0.1:1/0", max_connections=1)):
        fails("Error 111 connecting")
    with caches(alias(DJANGO_REDIS, own.url, max_connections=1)), own.client() as client:
        client.replicaof("127.0.0.1", 1)
        fails("read only replica")
        client.replicaof("NO", "ONE")
        assert me(Lock("a"), "acquire")


def is_sending_to(port: int) -> bool:
    """Whether anything that was sent to this port still waits to be delivered."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(there.endswith(f":{port:04X}") and int(queues[:8], 16) for _, _, there, _, queues, *_ in sockets)


@pytest.mark.complete
def test_an_error_of_the_network_names_the_server(me: Any, own: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, own.url, socket_timeout=GENEROUS)):
        me(WIRE, "exchange", ("ECHO", "1"))
        with stopped(own):
            sending = me.start(WIRE, "exchange", ("ECHO", "1" * 50_000_000))
            until(lambda: is_sending_to(own.port))
            own.process.kill()  # type: ignore[union-attr]
            with pytest.raises(redis.ConnectionError, match=f"127.0.0.1:{own.port}"):
                sending.result(GENEROUS)


@pytest.mark.complete
@pytest.mark.parametrize("number", [1, 2], ids=["one command", "two"])
@pytest.mark.parametrize("size", [1, 50_000_000], ids=["no answer", "takes no more"])
def test_a_server_that_hangs_is_given_up_in_time(size: int, number: int, me: Any, own: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, own.url, socket_timeout=0.5)):
        me(WIRE, "exchange", ("ECHO", "1"))
        with stopped(own), pytest.raises(redis.TimeoutError):
            me(WIRE, "exchange", *[("ECHO", "1" * size)] * number)


@pytest.mark.usefixtures("one")
def test_an_answer_is_waited_for_no_longer_than_the_time_that_is_left_and_given_to_nobody_else(
    me: Any, server: RedisServer, client: redis.Redis
) -> None:
    echo(me, "first")  # it is connected
    for late in ([("ECHO", "late")], [("ECHO", "late"), ("ECHO", "later")]):
        with stopped(server), pytest.raises(redis.TimeoutError):
            me(WIRE, "exchange", *late, within=0.1)
        echo(me, "next")
    with pytest.raises(redis.TimeoutError):
        me(WIRE, "exchange", ("BLPOP", "busy", str(GENEROUS)), within=0.05)
    client.rpush("busy", "late")
    echo(me, "next")


@pytest.mark.parametrize(
    ("how", "look_after"),
    [("killed", -1.0), ("killed", 1000.0), ("unasked", -1.0), ("closed", -1.0), ("reset", -1.0), ("reset", 1000.0)],
)
def test_a_connection_that_is_not_as_we_left_it_is_replaced(
    how: str, look_after: float, one: None, me: Any, crowd: Crowd, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, check_idle_threads=look_after, check_idle_loops=look_after)
    for _ in range(2):
        assert not me(Lock("a"), "locked")
        if how == "killed":
            kill(client)
        else:
            me(WIRE, "spoil", how if crowd.awaits or how != "reset" else "closed")
        if look_after < 0:
            assert me(WIRE, "exchange", ("ECHO", "1")) == [b"1"]  # which is not tried again
    assert not me(Lock("a"), "locked")
    assert me.read(unused_here) == 1


def test_the_errors_of_single_commands_stand_among_the_answers(using: str, me: Any) -> None:
    wire = Wire(using)
    for _ in range(2):  # the connection is still good
        first, error, second = me(wire, "exchange", ("ECHO", "1"), ("NO-SUCH",), ("ECHO", "2"))
        assert (first, second) == (b"1", b"2")
        assert type(error) is redis.ResponseError
    with pytest.raises(redis.ResponseError):
        command("NO-SUCH", using=using)


def test_killed_connections_and_a_restart_make_no_call_fail(
    crowd: Crowd, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    me, you, lock, following = crowd(), crowd(), Lock("a", ttl=60), Lock("a", ttl=60)
    use_by_many()  # so that many connections go stale at once
    me(lock, "acquire")
    waiting = you.start(following, "acquire", blocking_timeout=60)
    asking: list[Callable[[], Any]] = [
        lambda: me(lock, "extend", 1),
        lambda: me(lock, "info"),
        lambda: me(django_redislock, "list_locks"),
        lambda: me(Lock("b"), "acquire"),
    ]
    with own.client() as client:
        until(lambda: queued(client, "a") == 1)
        for ask in asking:
            kill(client)
            assert ask()
        until(lambda: queued(client, "a") == 1)
        assert not waiting.done()
        kill(client)
        me(lock, "release")
        assert waiting.result(GENEROUS)
        kill(client)
        you(following, "release")
    for ask in (lambda: me(Lock("a"), "acquire", blocking=False), lambda: me(django_redislock, "list_locks")):
        use_by_many()
        own.stop()
        own.start()
        assert ask() is not None
    own.stop()
    retry_for(0.1)
    with pytest.raises(LockUnavailable, match=r"cannot be reached for the lock 'c' .*alias 'default'"):
        me(Lock("c"), "acquire")
    own.start()
    use_by_many()


def test_an_unknown_script_is_sent_in_full_once(me: Any, client: redis.Redis) -> None:
    client.script_flush()
    client.config_resetstat()
    for _ in range(3):
        me(Lock("a"), "info")
    assert (count(client, "eval"), count(client, "evalsha")) == (1, 3)


def test_whoever_has_little_time_left_connects_within_it(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    connect: Any = redis.Connection.connect
    within: list[float] = []

    def noted(connection: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            within.append(connection.socket_connect_timeout)
        connect(connection)

    limit(monkeypatch, check_idle_threads=-1.0)
    kill(client)
    monkeypatch.setattr(redis.Connection, "connect", noted)
    with suppress(redis.TimeoutError):  # on a slow machine
        WIRE.exchange(("ECHO", "1"), within=3.0)
    assert 0 < within[0] <= 3


@pytest.mark.parametrize(
    ("link", "refused"),
    [("up", r"You can't write against a read only replica\."), ("down", r"MASTERDOWN Link with .*'no'\.")],
)
def test_a_server_that_is_a_replica_is_asked_again_for_a_moment(
    link: str, refused: str, me: Any, server: RedisServer, settings: Any, retry_for: Any
) -> None:
    lock = Lock("a", using="replica")
    with redis_server(replica_serve_stale_data="no") as second, second.client() as replica:
        settings.CACHES = {**settings.CACHES, "replica": alias(DJANGO_REDIS, second.url)}
        replica.replicaof("127.0.0.1", str(server.port) if link == "up" else "1")
        until(lambda: replica.info("replication")["master_link_status"] == link)
        retry_for(0.1)
        with pytest.raises(LockUnavailable, match=rf"^Redis refuses to serve the lock 'a' .*: {refused}$"):
            me(lock, "acquire")
        retry_for(30.0)
        replica.config_resetstat()
        acquired = me.start(lock, "acquire")
        # each time by another connection: an address may lead to another server by now
        until(lambda: acquired.done() or replica.info("stats")["total_connections_received"] > 2)
        assert not acquired.done()
        replica.replicaof("NO", "ONE")
        assert acquired.result(GENEROUS) is True


def test_what_redis_refuses_for_good_is_an_error_at_once(me: Any, own: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, own.url)), own.client() as client:
        lock = Lock("a")
        me(lock, "acquire")  # the scripts are known
        me(lock, "release")
        client.set("redislock{0}:index", "foreign")
        client.config_resetstat()
        with pytest.raises(LockUnavailable, match="Redis refuses to serve the lock 'a'"):
            me(lock, "acquire")
        assert count(client, "evalsha") + count(client, "eval") <= 2
        client.flushall()
        client.config_set("requirepass", "secret")
        kill(client)
        with pytest.raises(LockUnavailable, match=r"The server wants a password|Authentication required"):
            me(Lock("a"), "acquire", blocking=False)
        client.config_set("requirepass", "")


@pytest.fixture(params=["password", "max number of clients", "TLS", "DNS"])
def new_ones_fail(
    request: pytest.FixtureRequest, own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], object]]:
    """From the call on, no new connection of the default alias is of use: the server wants another password, or is
    full (then it hangs up on a TLS handshake), or nobody knows its name."""
    resolve: Any = socket.getaddrinfo

    def resolves(host: Any, *more: Any, **options: Any) -> Any:
        if host == "localhost":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(host, *more, **options)

    if request.param == "DNS":
        with caches(alias(DJANGO_REDIS, own.url.replace("127.0.0.1", "localhost"))):
            yield lambda: monkeypatch.setattr(socket, "getaddrinfo", resolves)
    elif request.param == "TLS":
        path = str(request.getfixturevalue("certificate"))
        files = {"ssl_ca_certs": path, "ssl_certfile": path, "ssl_keyfile": path}
        with (
            proxy(request.getfixturevalue("tls_port")) as network,
            caches(alias(DJANGO_REDIS, network.url.replace("redis:", "rediss:"), **files)),
        ):
            yield lambda: setattr(network, "refusing", True)
    else:
        with own.client() as client, caches(alias(DJANGO_REDIS, own.url.replace("//", "//:old@"))):
            client.config_set("requirepass", "old")
            yield lambda: client.config_set("requirepass" if request.param == "password" else "maxclients", 1)


def test_where_new_connections_are_of_no_use_those_that_there_are_go_on_working(
    new_ones_fail: Callable[[], object], crowd: Crowd, retry_for: Callable[[float], None], caplog: Any
) -> None:
    retry_for(0.1)
    me, lock, another = crowd(), Lock("a", ttl=60), Lock("b")
    me(lock, "acquire")
    new_ones_fail()
    with pytest.raises(LockUnavailable, match=r"cannot be reached|password|max number of clients"):
        another.acquire() if crowd.awaits else asyncio.run(another.aacquire())
    listen()
    until(lambda: hears() or "listener-disconnected" in caplog.text)  # on a busy machine, it has listened before
    until(lambda: me.read(unused_here) == 1)  # the withdrawal of what was refused may use it at this moment
    retry_for(GENEROUS)
    me(lock, "release")


def test_where_new_connections_are_of_no_use_a_lock_is_renewed_over_one_that_threads_have(
    new_ones_fail: Callable[[], object],
) -> None:
    with Lock(NAME, ttl=60) as lock:
        new_ones_fail()
        end = ends(lock)
        renew_all()
        until(lambda: ends(lock) > end)


def test_what_does_not_speak_as_redis_does_cannot_be_reached(me: Any, retry_for: Callable[[float], None]) -> None:
    """A web server on that port, say, or a proxy that answers by itself while Redis is away."""
    retry_for(0.1)
    # redis-py's own parser waits for the end of the line, and the page has none
    reason = "Protocol [eE]rror" if HIREDIS_AVAILABLE else "Connection closed"
    with wsgi_server() as web, caches(alias(DJANGO_REDIS, f"redis://127.0.0.1:{web.port}/0")):
        for what, verb in ((Lock("a"), "acquire"), (django_redislock, "list_locks")):
            with pytest.raises(LockUnavailable, match=rf"cannot be reached for .*alias 'default'\): ({reason})"):
                me(what, verb)


def test_a_question_outlives_those_who_ask_it_and_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, loop = threading.Event(), asyncio.new_event_loop()
    question = AskedOnce(lambda: gate.wait(GENEROUS))
    task = loop.create_task(question.aanswer(GENEROUS))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    for ask in (question.answer, lambda within: asyncio.run(question.aanswer(within))):
        with pytest.raises(redis.TimeoutError, match="did not say in time"):
            ask(0.01)
    gate.set()
    question.answer(None)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("too many")))
    AskedOnce(gate.wait).answer(0.0)


def test_names_stand_for_positions_and_an_unknown_one_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    head = "-- made: up\n-- KEYS index fence\n-- ARGV name\n"
    assert put_together(monkeypatch, f"{head}return {{KEYS.fence, ARGV.name}}\n") == "return {KEYS[2], ARGV[1]}\n"
    with pytest.raises(ValueError, match=r"The script made \(key\) uses a name that its header does not have"):
        put_together(monkeypatch, f"{head}return KEYS.queue\n")


async def test_an_exchange_has_a_limit_after_one_during_which_tests_had_frozen_the_clock(server: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, server.url, socket_timeout=0.3)):
        with freeze_time(real_asyncio=False):
            await WIRE.aexchange(("PING",))
        with pytest.raises(redis.TimeoutError):
            await WIRE.aexchange(("BLPOP", "busy", str(GENEROUS)))


@pytest.mark.complete
async def test_an_exchange_has_a_limit_though_the_clock_was_frozen_after_the_one_before() -> None:
    await WIRE.aexchange(("ECHO", "1"), within=GENEROUS)
    with freeze_time(real_asyncio=False), pytest.raises(redis.TimeoutError):
        await WIRE.aexchange(("BLPOP", "busy", str(GENEROUS)), within=0.3)


async def test_a_connection_whose_exchanges_all_ended_in_time_is_not_closed_when_the_first_would_be_late() -> None:
    await WIRE.aexchange(("PING",))  # it is connected
    before = await WIRE.aexchange(("CLIENT", "ID"), within=1)
    await asyncio.sleep(1.1)
    assert await WIRE.aexchange(("CLIENT", "ID")) == before


async def test_an_answer_that_arrived_while_the_loop_was_blocked_is_in_time(client: redis.Redis) -> None:
    await WIRE.aexchange(("ECHO", "1"))
    asked = asyncio.create_task(WIRE.aexchange(("ECHO", "2"), within=0.1))
    await asyncio.sleep(0)
    client.ping()  # the server has answered by then
    sleep(0.2)
    assert await asked == [b"2"]


@pytest.mark.filterwarnings("ignore")  # of all that is left open
@pytest.mark.usefixtures("server")
def test_an_event_loop_that_is_dropped_without_being_closed_is_collected_and_its_lock_ends() -> None:
    async def hold() -> None:
        async with Lock(NAME, ttl=1):
            await asyncio.sleep(GENEROUS)

    async def fail() -> None:
        holding = asyncio.create_task(hold())
        await auntil(Lock(NAME).alocked)
        raise ValueError(holding)

    def drop() -> "weakref.ref[asyncio.AbstractEventLoop]":
        loop = asyncio.new_event_loop()
        with pytest.raises(ValueError):
            loop.run_until_complete(fail())
        return weakref.ref(loop)

    dropped = drop()
    until(lambda: gc.collect() >= 0 and dropped() is None)
    until(lambda: get_lock(NAME) is None)


@pytest.mark.filterwarnings("ignore")  # of all that is left open
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("found_by", ["another loop", "the renewer"])
def test_an_event_loop_that_was_closed_over_a_waiter_is_collected(
    found_by: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, idle_look=0.05)  # of the renewer

    async def wait() -> None:
        async with Lock(NAME):
            never()

    async def begin() -> "asyncio.Task[None]":
        waiting = asyncio.create_task(wait())
        await auntil(lambda: queued(client, NAME))
        return waiting

    def close() -> "weakref.ref[asyncio.AbstractEventLoop]":
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()
        return weakref.ref(loop)

    put(client, NAME, ttl=600)
    closed = close()
    if found_by == "another loop":
        asyncio.run(Lock(NAME).alocked())
    until(lambda: gc.collect() >= 0 and closed() is None)
    until(lambda: not queued(client, NAME))


@pytest.mark.parametrize("first", ["a newcomer", "a renewal"])
def test_who_meets_a_former_master_hears_the_one_that_took_over_at_its_address(
    first: str, crowd: Crowd, own: RedisServer
) -> None:
    """A proxy, or a name that leads elsewhere; nobody cuts the connections that lead to the former master."""
    me, held = crowd(), Lock("held", ttl=3600 if first == "a newcomer" else 3)
    with (
        redis_server() as other, own.client() as old, other.client() as new,
        proxy(own.port) as network, caches(alias(DJANGO_REDIS, network.url)),
    ):  # fmt: skip
        new.replicaof("127.0.0.1", str(own.port))
        me(held, "acquire")
        until(lambda: hears() and old.pubsub_channels("redislock*") and new.keys("redislock*:lock:held"))
        lease = lease_of(held)
        until(lambda: lease.known > lease.since)  # over a connection that goes on leading to the former master
        network.target = other.port
        new.replicaof("NO", "ONE")
        old.replicaof("127.0.0.1", str(other.port))
        if first == "a newcomer":
            me(Lock(NAME), "acquire")
        until(lambda: new.pubsub_channels("redislock*"))


@pytest.mark.complete
def test_an_event_loop_that_hangs_until_time_is_up_says_nothing_against_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for those who connect nor for those who wait for a connection."""
    limit(monkeypatch, grace=0.1, after_hanging=GENEROUS)

    async def ask_and_hang() -> bool:
        locks = [Lock(f"{NAME}:{number}", blocking_timeout=0) for number in range(40)]
        asking = [asyncio.create_task(lock.aacquire()) for lock in locks]
        await asyncio.sleep(0)
        sleep(0.5)
        answers = await asyncio.gather(*asking, return_exceptions=True)
        for lock, answer in zip(locks, answers, strict=True):
            if answer is True:
                await lock.arelease()
        return answers == [True] * 40

    until(lambda: asyncio.run(ask_and_hang()))  # where the machine is busy, it may take several tries
