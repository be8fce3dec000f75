"""Which thread reads the subscribed connection: a waiting thread, or the listener's."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
import redis
from redis.connection import Connection
from redis.exceptions import ConnectionError, InvalidResponse, TimeoutError

from django_redislock import Lock, force_release
from django_redislock.engine.messages import reader as module
from django_redislock.engine.messages.listener import Listener
from django_redislock.engine.messages.reader import Reader
from django_redislock.engine.messages.receiver import MESSAGE_WITHIN
from django_redislock.engine.messages.waiters import ThreadWaiter
from django_redislock.store.stores import make_store
from tests.helpers.actors import GENEROUS, Other, stands_in
from tests.helpers.state import NAME, queued
from tests.inside import listener, reader_of

Eventually = Callable[..., Any]


class Ears(Listener):
    """A listener whose waiters read by ``reads``."""

    reads: Reader

    def _reader(self) -> Reader:
        return self.reads


class Desk:
    """A reader with a connection of its own; each message is the id of a waiter. ``heard``: (message, thread)."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.partition = make_store("default", "desk").partition(0)
        self.connection = self.partition.node.origin.listening(MESSAGE_WITHIN)
        self.connection.connect()
        self.connection.send_command("SUBSCRIBE", self.partition.channel)
        self.connection.read_response()
        self.heard: list[tuple[str, threading.Thread]] = []
        self.listener = Ears(self.partition, *[lambda *facts: None] * 4)
        self.reader = self.listener.reads = Reader(self.connection, self._handle, lambda: True)
        self.closed = threading.Event()
        self.trouble: list[Exception] = []
        self.sweeper = threading.Thread(target=self._serve, daemon=True)
        self.leaders: list[Other] = []

    def _handle(self, kind: bytes, channel: bytes, data: bytes) -> None:
        self.heard.append((data.decode(), threading.current_thread()))
        waiter = self.listener.waiters.get(data.decode())
        if waiter is not None:
            waiter.tell()

    def _serve(self) -> None:
        try:
            self.reader.serve(self.closed, polls=False)
        except Exception as error:
            self.trouble.append(error)

    def waiter(self, id: str) -> ThreadWaiter:
        waiter = self.listener.make_waiter(id, id, None)
        assert isinstance(waiter, ThreadWaiter)
        self.listener.register(waiter)
        return waiter

    def other(self) -> Other:
        self.leaders.append(Other())
        return self.leaders[-1]

    def say(self, id: str) -> None:
        assert self.client.publish(self.partition.channel, id) == 1

    def close(self) -> None:
        self.closed.set()
        self.reader.end()
        self.listener.tell_all()
        for leader in self.leaders:
            leader.end()
        if self.sweeper.ident is not None:
            self.sweeper.join(GENEROUS)
        assert not self.sweeper.is_alive()
        self.partition.store.close()


@pytest.fixture
def desk(client: redis.Redis) -> Iterator[Desk]:
    made = Desk(client)
    yield made
    made.close()


def leads(desk: Desk) -> bool:
    return desk.reader._turn() is not None


def test_a_waiting_thread_reads_its_own_wake(desk: Desk, eventually: Eventually) -> None:
    leader = desk.other()
    waiting = leader.start(lambda: desk.reader.lead(desk.waiter("one"), GENEROUS))
    eventually(lambda: leads(desk))
    desk.say("one")
    assert waiting.result(GENEROUS) is True
    assert desk.heard == [("one", leader._thread)]


def test_a_second_waiter_is_woken_by_the_reading_of_the_first(desk: Desk, eventually: Eventually) -> None:
    leader, follower = desk.other(), desk.other()
    leading = leader.start(lambda: desk.waiter("one").park(10.0 * GENEROUS))
    eventually(lambda: leads(desk))
    second = desk.waiter("two")
    following = follower.start(lambda: second.park(10.0 * GENEROUS))
    desk.say("two")
    eventually(lambda: second.look)
    following.result(GENEROUS)
    assert not leading.done()
    assert desk.heard == [("two", leader._thread)]


def follows(desk: Desk, waiter: ThreadWaiter) -> bool:
    return waiter in desk.reader._followers


def test_a_waiter_is_not_woken_just_because_another_one_reads(desk: Desk, eventually: Eventually) -> None:
    """Otherwise they would wake each other in turn for as long as they wait."""
    leading = desk.other().start(lambda: desk.waiter("one").park(10.0 * GENEROUS))
    eventually(lambda: leads(desk))
    second, third = desk.waiter("two"), desk.waiter("three")
    for waiter in (second, third, second):
        assert desk.reader.lead(waiter, GENEROUS) is False
    assert (second.told, third.told) == (False, False)
    desk.say("one")
    leading.result(GENEROUS)


def test_a_waiter_that_stops_reading_promotes_another_one(desk: Desk, eventually: Eventually) -> None:
    # each waits for a lock of its own, so nobody else would wake it
    first, second, third = (desk.waiter(id) for id in ("one", "two", "three"))
    leading = desk.other().start(lambda: first.park(10.0 * GENEROUS))
    eventually(lambda: leads(desk))
    follower = desk.other()
    for waiter in (second, third):
        desk.other().start(partial(waiter.park, 10.0 * GENEROUS))
        eventually(partial(follows, desk, waiter))
    desk.say("one")
    leading.result(GENEROUS)
    eventually(lambda: not desk.reader._followers.keys() & {second})
    waiting = follower.start(lambda: second.park(10.0 * GENEROUS))
    eventually(lambda: leads(desk))
    desk.say("three")
    eventually(lambda: not desk.reader._followers)
    assert not waiting.done()
    desk.say("two")
    waiting.result(GENEROUS)
    assert desk.heard[1:] == [("three", follower._thread), ("two", follower._thread)]


def test_a_waiter_that_was_told_is_not_woken_to_read(desk: Desk, eventually: Eventually) -> None:
    told, second = desk.waiter("told"), desk.waiter("two")
    told.told = True
    leading = desk.other().start(lambda: desk.waiter("one").park(10.0 * GENEROUS))
    eventually(lambda: leads(desk))
    desk.reader._followers[told] = None  # as it stands for the moment between its wake and its next step
    waiting = desk.other().start(lambda: second.park(10.0 * GENEROUS))
    eventually(lambda: follows(desk, second))
    desk.say("one")
    leading.result(GENEROUS)
    waiting.result(GENEROUS)


def test_a_turn_that_is_given_up_while_a_waiter_lines_up_is_taken_by_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = desk.reader._take
    # somebody else's, until the waiter has lined up
    monkeypatch.setattr(desk.reader, "_take", lambda turn: bool(desk.reader._followers) and take(turn))
    waiter = desk.waiter("one")
    assert desk.reader.lead(waiter, 0) is True
    assert not follows(desk, waiter)


def test_the_turn_of_a_reader_that_is_gone_is_free(desk: Desk) -> None:
    """It was interrupted twice: while it took the turn, and while it gave it up (R18)."""
    assert desk.reader._take(module._Turn())
    assert desk.reader.lead(desk.waiter("one"), 0) is True


def test_a_waiter_starts_reading_when_the_listener_has_read_a_message(
    desk: Desk, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_EVERY", float(10 * GENEROUS))
    desk.sweeper.start()
    eventually(lambda: stands_in(desk.sweeper, "serve", "can_read(None)"))
    waiter, reading = desk.waiter("one"), desk.other()

    def wait() -> None:
        while not desk.heard[1:]:
            waiter.park(10.0 * GENEROUS)

    waiting = reading.start(wait)
    eventually(lambda: follows(desk, waiter))
    desk.say("somebody else")
    eventually(lambda: desk.heard and leads(desk))
    desk.say("one")
    waiting.result(GENEROUS)
    assert len(desk.heard) == 2


def test_a_waiter_whose_time_is_up_reads_no_longer(desk: Desk) -> None:
    assert desk.reader.lead(desk.waiter("one"), 0.01) is True
    assert desk.reader.lead(desk.waiter("two"), 0) is True
    assert not leads(desk)


def test_messages_arrive_after_the_leader_has_left(
    desk: Desk, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HOT_FOR", float(10 * GENEROUS))
    assert desk.reader.lead(desk.waiter("one"), 0) is True
    desk.sweeper.start()
    desk.say("one")
    desk.say("two")
    eventually(lambda: len(desk.heard) == 2)
    assert desk.heard == [("one", desk.sweeper), ("two", desk.sweeper)]


def test_a_waiter_leads_while_the_listener_sweeps(
    desk: Desk, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HOT_FOR", float(10 * GENEROUS))
    assert desk.reader.lead(desk.waiter("one"), 0) is True
    desk.sweeper.start()
    waiter = desk.waiter("two")
    eventually(lambda: desk.reader.lead(waiter, 0))


def test_the_listener_leaves_the_reading_to_a_waiter_that_leads(
    desk: Desk, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(turn: Any, **options: Any) -> bool:
        taken = take(turn, **options)
        if not taken:
            refused.append(threading.current_thread())
        return taken

    refused: list[threading.Thread] = []
    take = desk.reader._take
    monkeypatch.setattr(desk.reader, "_take", watched)
    monkeypatch.setattr(module, "HOT_FOR", float(10 * GENEROUS))
    leader = desk.other()
    leading = leader.start(lambda: desk.waiter("one").park(10.0 * GENEROUS))
    eventually(lambda: leads(desk))
    desk.sweeper.start()
    eventually(lambda: refused.count(desk.sweeper) >= 3)
    desk.say("one")
    leading.result(GENEROUS)
    assert desk.heard == [("one", leader._thread)]


def test_where_nobody_has_waited_for_a_while_the_listener_blocks_in_the_read(
    desk: Desk, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HOT_FOR", 0.0)
    desk.reader.lead(desk.waiter("one"), 0)
    desk.sweeper.start()
    eventually(lambda: stands_in(desk.sweeper, "serve", "can_read(None)"))
    assert desk.reader.lead(desk.waiter("two"), GENEROUS) is False
    desk.say("two")
    eventually(lambda: desk.heard)
    assert desk.heard == [("two", desk.sweeper)]


def test_the_listener_does_not_block_in_the_read_when_others_have_waited_meanwhile(
    desk: Desk, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HOT_FOR", 0.0)
    leading = desk.other().start(lambda: desk.reader.lead(desk.waiter("one"), GENEROUS))
    eventually(lambda: leads(desk))
    desk.sweeper.start()
    eventually(lambda: stands_in(desk.sweeper, "_take", "_freed.wait"))
    monkeypatch.setattr(module, "HOT_FOR", float(10 * GENEROUS))
    second = desk.waiter("two")
    assert desk.reader.lead(second, GENEROUS) is False
    desk.say("one")
    assert leading.result(GENEROUS) is True
    eventually(lambda: desk.reader.lead(second, 0))


def test_the_trouble_that_a_leader_meets_is_raised_by_the_listener(desk: Desk, eventually: Eventually) -> None:
    leading = desk.other().start(lambda: desk.reader.lead(desk.waiter("one"), GENEROUS))
    eventually(lambda: leads(desk))
    desk.client.client_kill_filter(_type="pubsub", skipme=True)
    assert leading.result(GENEROUS) is False  # it must wait for the next connection
    desk.sweeper.start()
    desk.sweeper.join(GENEROUS)
    assert [type(error) for error in desk.trouble] == [ConnectionError]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_exception_that_interrupts_reading_propagates_and_ends_the_connection(
    desk: Desk, error: type[BaseException]
) -> None:
    def interrupt(kind: bytes, channel: bytes, data: bytes) -> None:
        raise error

    desk.reader._handle = interrupt
    desk.say("one")
    with pytest.raises(error):
        desk.reader.lead(desk.waiter("one"), GENEROUS)
    assert desk.reader.lead(desk.waiter("two"), GENEROUS) is False
    assert str(desk.reader._trouble) == "reading was interrupted"


def test_nonsense_that_a_leader_reads_ends_the_connection_and_is_no_error_of_the_leader(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TLS connection that is cut while it is read yields bytes that are still encrypted."""

    def read_response() -> None:
        raise InvalidResponse("Protocol error")

    monkeypatch.setattr(desk.connection, "can_read", lambda timeout: True)
    monkeypatch.setattr(desk.connection, "read_response", read_response)
    assert desk.reader.lead(desk.waiter("one"), GENEROUS) is False
    assert isinstance(desk.reader.trouble, InvalidResponse)
    assert desk.reader.trouble.__traceback__ is None  # or it would keep the turn, and its reader


def test_what_ssl_raises_when_its_socket_is_cut_under_the_leader_is_no_error_of_the_leader(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def can_read(timeout: float) -> bool:
        desk.reader.end()
        raise ValueError("Read on closed or unwrapped SSL socket.")

    monkeypatch.setattr(desk.connection, "can_read", can_read)
    assert desk.reader.lead(desk.waiter("one"), GENEROUS) is False


def test_a_connection_that_a_fork_has_left_behind_is_not_made_again(desk: Desk) -> None:
    """A thread that was reading it when it forked goes on in the child, where nothing is subscribed."""
    desk.reader.leave_parent()
    with pytest.raises(ConnectionError, match="the subscription has ended"):
        desk.connection.can_read(0)
    assert desk.reader.lead(desk.waiter("one"), GENEROUS) is False


def test_an_incomplete_message_is_an_error() -> None:
    """R19: waiting for its end without a limit would go unnoticed."""

    def greet(connection: Any) -> None:
        connection._parser.on_connect(connection)  # and nothing that would have to be answered

    with socket.create_server(("127.0.0.1", 0)) as door:
        connection = Connection(port=door.getsockname()[1], socket_timeout=0.2, redis_connect_func=greet)
        connection.connect()
        speaker, _ = door.accept()
        reader = Reader(connection, lambda *message: None, lambda: True)
        with speaker:
            speaker.sendall(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$9\r\nhalf")
            waiter = ThreadWaiter("one", NAME, lambda: reader)
            assert reader.lead(waiter, GENEROUS) is False
        assert isinstance(reader._trouble, TimeoutError)
        connection.disconnect()


def test_the_listener_that_is_about_to_read_when_the_connection_is_cut_does_not_connect_again(
    desk: Desk, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would wait for ever on a connection without a subscription."""
    can_read = desk.connection.can_read

    def cut_first(timeout: float = 0) -> bool:
        desk.reader.end()
        return can_read(timeout)

    monkeypatch.setattr(desk.connection, "can_read", cut_first)
    desk.sweeper.start()
    eventually(lambda: desk.trouble)
    assert desk.connection._sock is None


@pytest.mark.parametrize("who", ["the listener", "a waiting thread"])
def test_no_other_socket_gets_the_number_of_one_that_is_about_to_be_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Otherwise the reader of a connection that was just cut would wait for the messages of another one."""
    number, cut = Future[int](), threading.Event()

    def wait_late(timeout: float | None = 0) -> bool:
        sock: Any = desk.connection._sock
        number.set_result(sock.fileno())
        assert cut.wait(GENEROUS)
        poller = select.poll()
        poller.register(number.result(), select.POLLIN)
        assert poller.poll(GENEROUS * 1000), "waits for another socket"
        raise ConnectionError("closed")

    monkeypatch.setattr(desk.connection, "can_read", wait_late)
    reading: Future[Any] = desk.other().start(
        desk._serve if who == "the listener" else lambda: desk.reader.lead(desk.waiter("one"), None)
    )
    number.result(GENEROUS)
    desk.reader.end()
    others = [one for _ in range(5) for one in socket.socketpair()]
    try:
        cut.set()
        reading.result(GENEROUS)
        assert number.result() not in [other.fileno() for other in others]
        assert desk.connection._sock is None  # closed when nobody read any more
    finally:
        for other in others:
            other.close()


def test_a_reader_that_has_ended_reads_nothing_more(desk: Desk) -> None:
    desk.reader.end()
    assert desk.reader.lead(desk.waiter("one"), GENEROUS) is False
    desk.sweeper.start()
    desk.sweeper.join(GENEROUS)
    assert str(desk.trouble[0]) == "wakes do not arrive any more"
    assert desk.heard == []


# -- the same with locks --------------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Lock:
    lock = Lock(NAME, ttl=600)
    lock.acquire()
    return lock


@pytest.fixture
def waiting(held: Lock, other: Callable[[], Other], client: redis.Redis, eventually: Eventually) -> Future[bool]:
    """A thread that waits for the lock NAME, and reads."""
    waiting = other().start(lambda: Lock(NAME).acquire(blocking_timeout=10 * GENEROUS))
    eventually(lambda: queued(client))
    ears = listener()
    eventually(lambda: (reader := reader_of(ears)) and reader._turn() is not None and ears.ready)
    return waiting


def test_a_force_release_is_received_while_others_read(waiting: Future[bool], eventually: Eventually) -> None:
    forced = Lock("forced", ttl=600)
    forced.acquire()
    assert force_release("forced")
    eventually(lambda: forced.lost)
    assert not waiting.done()
    assert force_release(NAME)
    assert waiting.result(GENEROUS) is True


def test_an_error_that_the_leader_meets_makes_the_listener_subscribe_again(
    held: Lock, waiting: Future[bool], client: redis.Redis, eventually: Eventually
) -> None:
    ears = listener()
    before = ears.generation
    client.client_kill_filter(_type="pubsub", skipme=True)
    eventually(lambda: ears.ready and ears.generation > before)
    assert not waiting.done()
    held.release()
    assert waiting.result(GENEROUS) is True


@pytest.mark.parametrize(
    "cut", [Listener.reconnect, lambda listener: listener.partition.store.close()], ids=["reconnect", "close"]
)
def test_a_connection_that_is_cut_under_the_thread_that_reads_it_is_no_error_of_that_thread(
    cut: Callable[[Listener], object], held: Lock, waiting: Future[bool]
) -> None:
    cut(listener())
    held.release()
    assert waiting.result(GENEROUS) is True
