"""The site's own code, such as receivers of signals: in how many threads it is called, and that nothing is left out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from django_redislock import Lock, LockLost, force_release, lock_lost
from tests.helpers.actors import GENEROUS
from tests.inside import call_soon

Eventually = Callable[..., Any]

THREADS = 8


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


def test_a_few_threads_make_any_number_of_calls_and_end(eventually: Eventually) -> None:
    for _ in range(2):
        receiver = Receiver()
        for news in range(2000):
            call_soon(partial(receiver, news))
        eventually(lambda receiver=receiver: len(receiver.threads) == THREADS)
        receiver.gate.set()
        eventually(lambda receiver=receiver: len(receiver.told) == 2000)
        assert sorted(receiver.told) == list(range(2000))
        assert len(receiver.threads) == THREADS
        eventually(lambda receiver=receiver: not any(thread.is_alive() for thread in receiver.threads))


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_call_that_raises_is_logged_and_the_next_one_is_made(
    error: type[BaseException], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    receiver = Receiver()
    receiver.gate.set()
    for news in range(2 * THREADS):
        call_soon(fail)
        call_soon(partial(receiver, news))
    eventually(lambda: len(receiver.told) == 2 * THREADS)
    eventually(lambda: caplog.text.count("event=notifier-failed") == 2 * THREADS)


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
