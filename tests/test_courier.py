"""Couriers: who carries which errand, over which connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redislock.connection import Backend
from django_redislock.courier import Couriers, Errand
from redisserver import RedisServer

from .actors import GENEROUS
from .proxy import Proxy, proxy

Eventually = Callable[..., Any]
Settings = Any


class Sender:
    """Sends errands that only say a word, and notes what comes back."""

    def __init__(self, backend: Backend, eventually: Eventually) -> None:
        self.backend = backend
        self.eventually = eventually
        self.answers: list[bytes] = []
        self.errors: list[tuple[list[str], Exception]] = []
        self.couriers = Couriers(self._answered, self._failed)

    def _answered(self, backend: Backend, errands: list[Errand], answers: list[Any], sent: float) -> None:
        self.answers += answers

    def _failed(self, backend: Backend, errands: list[Errand], error: Exception) -> None:
        self.errors.append(([errand.task for errand in errands], error))

    def send(self, word: str, timeout: float = GENEROUS) -> None:
        self.couriers.send(self.backend, [Errand(word, ("ECHO", word), 0.0)], timeout)

    def answered(self, *words: str) -> None:
        """Wait until these have been answered, in this order, and nothing else."""
        self.eventually(lambda: len(self.answers) >= len(words))
        assert self.answers == [word.encode() for word in words]

    def away(self) -> int:
        return len(self.couriers._away.get(self.backend, []))

    def idle(self) -> None:
        self.eventually(lambda: not self.away())


@pytest.fixture
def network(server: RedisServer, settings: Settings) -> Iterator[Proxy]:
    with proxy(server.port) as running:
        settings.CACHES = {
            **settings.CACHES,
            "far": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": running.url},
        }
        yield running


@pytest.fixture
def sender(network: Proxy, eventually: Eventually) -> Iterator[Sender]:
    made = Sender(Backend("far", "redislock"), eventually)
    yield made
    made.backend.close()


def test_errands_for_a_patient_courier_wait_for_it_to_come_back(sender: Sender, network: Proxy) -> None:
    held = network.hold_answer("first")
    sender.send("first", 20)
    assert held.caught.wait(GENEROUS)
    sender.send("second", 20)
    sender.send("third", 25)
    assert (sender.away(), sender.answers) == (1, [])
    held.let_go()
    sender.answered("first", "second", "third")
    assert len(network.links) == 1


def test_an_impatient_errand_sends_another_courier(sender: Sender, network: Proxy) -> None:
    held = network.hold_answer("first")
    sender.send("first", 25)
    assert held.caught.wait(GENEROUS)
    sender.send("second", 20)
    sender.answered("second")
    held.let_go()
    sender.answered("second", "first")
    assert len(network.links) == 2


def test_the_connection_of_the_last_errand_carries_the_next_one(sender: Sender, network: Proxy) -> None:
    for word in ("first", "second"):
        sender.send(word)
        sender.idle()
    sender.answered("first", "second")
    assert len(network.links) == 1


def test_a_connection_of_other_patience_is_not_used_again(sender: Sender, network: Proxy) -> None:
    sender.send("first", 20)
    sender.idle()
    sender.send("second", 10)
    sender.answered("first", "second")
    assert len(network.links) == 2


def test_of_two_connections_one_is_kept(sender: Sender, network: Proxy, eventually: Eventually) -> None:
    held = network.hold_answer("first")
    sender.send("first", 25)
    assert held.caught.wait(GENEROUS)
    sender.send("second", 20)
    sender.answered("second")
    eventually(lambda: sender.away() == 1)
    held.let_go()
    sender.idle()
    eventually(lambda: sum(link.threads[0].is_alive() for link in network.links) == 1)
    assert len(network.links) == 2


def test_what_a_courier_cannot_deliver_is_told_to_its_sender(sender: Sender, network: Proxy) -> None:
    sender.send("before")
    sender.idle()
    network.cut()
    sender.send("lost")
    sender.idle()
    assert [tasks for tasks, _ in sender.errors] == [["lost"]]
    network.mend()
    sender.send("after")
    sender.answered("before", "after")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_courier_that_dies_is_given_nothing_more(
    sender: Sender, network: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*facts: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(sender.couriers, "_failed", fail)
        network.cut()
        sender.send("lost")
        sender.idle()
    network.mend()
    sender.send("after")
    sender.answered("after")


def test_an_alias_that_cannot_make_connections_is_told_to_the_sender(
    network: Proxy, settings: Settings, eventually: Eventually
) -> None:
    far = settings.CACHES["far"]
    settings.CACHES = {**settings.CACHES, "wrong": far | {"OPTIONS": {"CONNECTION_POOL_KWARGS": {"no_such": 1}}}}
    sender = Sender(Backend("wrong", "redislock"), eventually)
    sender.send("never")
    eventually(lambda: sender.errors)
    assert sender.errors[0][0] == ["never"]
    assert isinstance(sender.errors[0][1], TypeError)
    sender.backend.close()


def test_no_connection_is_kept_when_the_settings_change(sender: Sender, network: Proxy, eventually: Eventually) -> None:
    sender.send("first")
    sender.idle()
    sender.backend.close()
    eventually(lambda: not any(link.threads[0].is_alive() for link in network.links))
    sender.send("late")
    sender.answered("first", "late")
    eventually(lambda: not any(link.threads[0].is_alive() for link in network.links))


def test_a_courier_ends_when_it_has_nothing_to_carry(sender: Sender, eventually: Eventually) -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    sender.send("first")
    sender.answered("first")
    eventually(lambda: "redislock-courier" not in names())
