"""The herald: in how many threads it tells, and that nothing is left untold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import Lock, LockLost, force_release, lock_lost
from django_redislock.herald import THREADS, Herald

from .actors import GENEROUS

Eventually = Callable[..., Any]


class Receiver:
    """Slow code of a site's: it goes on when the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.threads: set[threading.Thread] = set()
        self.told: list[int] = []

    def __call__(self, news: int) -> None:
        self.threads.add(threading.current_thread())
        assert self.gate.wait(GENEROUS)
        self.told.append(news)


def test_however_much_is_lost_at_once_few_threads_tell_it_all_and_end(eventually: Eventually) -> None:
    receiver = Receiver()
    herald = Herald(receiver)
    for news in range(3000):
        herald.bring(news)
    eventually(lambda: len(receiver.threads) == THREADS)
    receiver.gate.set()
    eventually(lambda: len(receiver.told) == 3000)
    assert sorted(receiver.told) == list(range(3000))
    assert len(receiver.threads) == THREADS
    eventually(lambda: not any(thread.is_alive() for thread in receiver.threads))


def test_after_its_threads_have_ended_there_is_a_new_one(eventually: Eventually) -> None:
    receiver = Receiver()
    receiver.gate.set()
    herald = Herald(receiver)
    for news in range(3):
        herald.bring(news)
        eventually(lambda news=news: receiver.told == list(range(news + 1)))
        eventually(lambda: not any(thread.is_alive() for thread in receiver.threads))


def test_a_receiver_that_hangs_does_not_silence_the_next_loss(eventually: Eventually) -> None:
    gate = threading.Event()

    def hang(*, name: str, **facts: object) -> None:
        if name == "first":
            gate.wait(2 * GENEROUS)

    losses: list[str | None] = []
    lock_lost.connect(hang)
    try:
        for name in ("first", "second"):
            lock = Lock(name, ttl=600, on_lost=lambda error: losses.append(error.name))
            lock.acquire()
            force_release(name)
            with pytest.raises(LockLost):
                eventually(lock.check)
        eventually(lambda: losses == ["second"])
    finally:
        lock_lost.disconnect(hang)
        gate.set()
    eventually(lambda: losses == ["second", "first"])
