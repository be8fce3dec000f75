"""The notifier: in how many threads it calls the site's code, and that nothing is left out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from django_redislock import Lock, LockLost, force_release, lock_lost
from django_redislock.engine.background import notifier as notifier_module
from django_redislock.engine.background.notifier import THREADS, Notifier
from tests.helpers.actors import GENEROUS
from tests.helpers.interrupts import Interrupt, Interrupter

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


def test_a_few_threads_make_any_number_of_calls_and_end(eventually: Eventually) -> None:
    receiver, notifier = Receiver(), Notifier()
    for news in range(3000):
        notifier.call(partial(receiver, news))
    eventually(lambda: len(receiver.threads) == THREADS)
    receiver.gate.set()
    eventually(lambda: len(receiver.told) == 3000)
    assert sorted(receiver.told) == list(range(3000))
    assert len(receiver.threads) == THREADS
    eventually(lambda: not any(thread.is_alive() for thread in receiver.threads))


def test_after_its_threads_have_ended_a_new_one_is_started(eventually: Eventually) -> None:
    receiver, notifier = Receiver(), Notifier()
    receiver.gate.set()
    for news in range(3):
        notifier.call(partial(receiver, news))
        eventually(lambda news=news: receiver.told == list(range(news + 1)))
        eventually(lambda: not any(thread.is_alive() for thread in receiver.threads))


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_call_that_raises_is_logged_and_the_next_one_is_made(
    error: type[BaseException], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    receiver, notifier = Receiver(), Notifier()
    receiver.gate.set()
    for news in range(2 * THREADS):
        notifier.call(fail)
        notifier.call(partial(receiver, news))
    eventually(lambda: len(receiver.told) == 2 * THREADS)
    eventually(lambda: caplog.text.count("event=notifier-failed") == 2 * THREADS)


def test_calls_that_are_interrupted_use_up_no_threads(eventually: Eventually) -> None:
    receiver, notifier = Receiver(), Notifier()
    receiver.gate.set()

    def interrupted_at(place: int | None) -> Interrupter:
        one = Interrupter(lambda file: file == notifier_module.__file__, place)
        with suppress(Interrupt):
            one.run(lambda: notifier.call(partial(receiver, 0)))
        return one

    places = max(interrupted_at(None).places for _ in range(2))  # Python 3.13 tells of few the first time
    assert places > 5
    for _ in range(THREADS):
        for place in range(places):
            interrupted_at(place)
            eventually(lambda: not any(thread.is_alive() for thread in notifier._threads))
    notifier.call(partial(receiver, 1))
    eventually(lambda: 1 in receiver.told)


def test_at_interpreter_exit_calls_are_made_without_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 and 3.11 would wait for ever for the thread to begin."""
    monkeypatch.setattr("django_redislock.base.threads.sys", SimpleNamespace(is_finalizing=lambda: True))
    made: list[threading.Thread] = []
    Notifier().call(lambda: made.append(threading.current_thread()))
    assert made == [threading.current_thread()]


def test_a_call_from_within_a_call_is_made_as_well(eventually: Eventually) -> None:
    """A finalizer may run in any of its threads and find out a loss."""
    told: list[str] = []
    notifier = Notifier()
    notifier.call(lambda: notifier.call(lambda: told.append("inner")))
    eventually(lambda: told == ["inner"])


def test_a_record_that_no_handler_wants_starts_no_thread(
    caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    notifier = Notifier()
    with caplog.at_level(logging.ERROR, "django_redislock"):
        notifier.log(logging.WARNING, "lost", name="a")
        assert not notifier.jobs
        assert not notifier._threads
        notifier.log(logging.ERROR, "on-lost-failed", name="a")
        eventually(lambda: caplog.messages == ["event=on-lost-failed name=a"])


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


def test_no_code_of_the_site_runs_in_the_thread_that_discovers_the_loss(eventually: Eventually) -> None:
    told_in: list[str] = []
    lock = Lock("a", ttl=600, on_lost=lambda error: told_in.append(threading.current_thread().name))
    lock.acquire()
    force_release("a")
    with pytest.raises(LockLost):
        lock.release()  # finds it out by itself, or was told before
    eventually(lambda: told_in == ["redislock-notifier"])
