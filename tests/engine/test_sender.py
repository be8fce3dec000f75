"""The sender: which thread sends what, over which connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from django_redislock.engine.renewal.sender import Parcel, Sender
from django_redislock.store import calls
from django_redislock.store.lock_store import LockStore
from django_redislock.store.node import Node
from django_redislock.store.stores import make_store
from tests import inside
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME
from tests.inside import keys_of

Eventually = Callable[..., Any]


class Desk:
    """Sends simple test requests, and records the answers."""

    def __init__(self, store: LockStore, eventually: Eventually) -> None:
        self.store = store
        self.partition = store.partition(0)
        self.node = self.partition.node
        self.eventually = eventually
        self.answers: list[bytes] = []
        self.errors: list[tuple[list[str], Exception]] = []
        self.sender = Sender(self._answered, self._failed)

    def _answered(self, node: Node, parcels: list[Parcel], answers: list[Any], sent: float) -> None:
        self.answers += answers

    def _failed(self, node: Node, parcels: list[Parcel], error: Exception) -> None:
        self.errors.append(([parcel.task for parcel in parcels], error))

    def send(self, word: str, timeout: float = GENEROUS) -> None:
        self.sender.send(self.node, [Parcel(word, ("ECHO", word), 0.0)], timeout)

    def answered(self, *words: str) -> None:
        """Wait until these have been answered, in this order, and nothing else."""
        self.eventually(lambda: len(self.answers) >= len(words))
        assert self.answers == [word.encode() for word in words]

    def trips(self) -> int:
        return len(self.sender._trips.get(self.node, []))

    def idle(self) -> None:
        self.eventually(lambda: not self.trips())


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "redislock-sender"]


@pytest.fixture
def desk(far: Proxy, eventually: Eventually) -> Iterator[Desk]:
    made = Desk(make_store("far", "redislock"), eventually)
    yield made
    made.store.close()


def test_what_has_patience_waits_for_the_trip_that_is_under_way(desk: Desk, far: Proxy) -> None:
    held = far.hold_answer("first")
    desk.send("first", 20)
    assert held.caught.wait(GENEROUS)
    desk.send("second", 20)
    desk.send("third", 25)
    assert (desk.trips(), desk.answers) == (1, [])
    held.let_go()
    desk.answered("first", "second", "third")
    assert len(far.links) == 1


def test_what_has_less_patience_gets_a_trip_of_its_own(desk: Desk, far: Proxy) -> None:
    held = far.hold_answer("first")
    desk.send("first", 25)
    assert held.caught.wait(GENEROUS)
    desk.send("second", 20)
    desk.answered("second")
    held.let_go()
    desk.answered("second", "first")
    assert len(far.links) == 2


def test_the_connection_of_the_last_trip_serves_the_next_one(desk: Desk, far: Proxy) -> None:
    for word in ("first", "second"):
        desk.send(word)
        desk.idle()
    desk.answered("first", "second")
    assert len(far.links) == 1


def test_a_connection_of_other_patience_is_not_used_again(desk: Desk, far: Proxy) -> None:
    desk.send("first", 20)
    desk.idle()
    desk.send("second", 10)
    desk.answered("first", "second")
    assert len(far.links) == 2


def test_of_two_connections_one_is_kept(desk: Desk, far: Proxy, eventually: Eventually) -> None:
    held = far.hold_answer("first")
    desk.send("first", 25)
    assert held.caught.wait(GENEROUS)
    desk.send("second", 20)
    desk.answered("second")
    eventually(lambda: desk.trips() == 1)
    held.let_go()
    desk.idle()
    eventually(lambda: sum(link.threads[0].is_alive() for link in far.links) == 1)
    assert len(far.links) == 2


def test_a_finalizer_that_runs_in_the_middle_of_it_may_close_the_node(desk: Desk, other: Callable[[], Other]) -> None:
    """One that uses a lock, and learns that the node has left the cluster."""

    def send() -> None:
        with desk.sender._mutex:
            desk.sender._forget(desk.node)

    other().start(send).result(GENEROUS)


def test_what_could_not_be_delivered_is_told(desk: Desk, far: Proxy) -> None:
    desk.send("before")
    desk.idle()
    far.cut()
    desk.send("lost")
    desk.idle()
    assert [tasks for tasks, _ in desk.errors] == [["lost"]]
    far.mend()
    desk.send("after")
    desk.answered("before", "after")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_is_given_nothing_more(
    desk: Desk, far: Proxy, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    def fail(*facts: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(desk.sender, "_failed", fail)
        far.cut()
        desk.send("lost")
        desk.idle()
    eventually(lambda: not threads())  # with its error
    far.mend()
    desk.send("after")
    desk.answered("after")


@pytest.mark.usefixtures("far")
def test_that_no_connection_can_be_made_is_told(desk: Desk, eventually: Eventually) -> None:
    origin = desk.node.origin
    desk.node.origin = replace(origin, keywords={**origin.keywords, "no_such": 1})
    desk.send("never")
    eventually(lambda: desk.errors)
    assert desk.errors[0][0] == ["never"]
    assert isinstance(desk.errors[0][1], TypeError)


def test_no_connection_is_kept_when_the_settings_change(desk: Desk, far: Proxy, eventually: Eventually) -> None:
    desk.send("first")
    desk.idle()
    desk.store.close()
    eventually(lambda: not any(link.threads[0].is_alive() for link in far.links))
    desk.send("late")
    desk.answered("first", "late")
    eventually(lambda: not any(link.threads[0].is_alive() for link in far.links))


def test_a_thread_ends_when_it_has_nothing_to_carry(desk: Desk, eventually: Eventually) -> None:
    desk.send("first")
    desk.answered("first")
    eventually(lambda: not threads())


def test_where_no_thread_can_be_started_that_is_told_and_the_next_one_is_tried(desk: Desk) -> None:
    threading.stack_size(1 << 48)  # no stack is that large
    try:
        desk.send("lost")
    finally:
        threading.stack_size(0)
    assert [tasks for tasks, _ in desk.errors] == [["lost"]]
    assert not desk.trips()
    desk.send("after")
    desk.answered("after")


def test_a_script_that_redis_does_not_know_is_sent_with_its_text(
    desk: Desk, client: redis.Redis, eventually: Eventually
) -> None:
    """R14: for each of several commands in one write."""
    keys = keys_of(NAME, desk.partition.prefix)
    known = calls.release_command(inside.Request(desk.partition, keys, NAME, "i" * 22), unknown=False)
    client.script_flush()
    parcels = [Parcel(number, command, 0.0) for number, command in enumerate([("ECHO", "one"), known, ("ECHO", "two")])]
    desk.sender.send(desk.node, parcels, GENEROUS)
    eventually(lambda: desk.answers)
    assert desk.answers == [b"one", [0, 0], b"two"]
