"""The listener: when its thread starts, how many of it there are, and whom it keeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redislock import connection, listener
from django_redislock.connection import Backend, get_backend

from .actors import GENEROUS, NAME, TOKEN, Other, stands_at

Eventually = Callable[..., Any]


def together(ask: Callable[[], Any], mutex: threading.Lock, eventually: Eventually) -> list[Any]:
    """What several threads get that all come while nobody has been there before them."""
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(ask()), daemon=True) for _ in range(3)]
    with mutex:
        for thread in threads:
            thread.start()
        eventually(lambda: all(stands_at(thread, ask.__name__, "with _mutex") for thread in threads))
    for thread in threads:
        thread.join(GENEROUS)
    return got


def test_threads_that_need_a_listener_together_share_one(eventually: Eventually) -> None:
    backend = Backend("default", "together")

    def get_listener() -> listener.Listener:
        return listener.get_listener(backend)

    first, second, third = together(get_listener, listener._mutex, eventually)
    assert first is second is third is listener.get_listener(backend)
    backend.close()


def test_threads_that_need_a_backend_together_share_one(eventually: Eventually, settings: Any) -> None:
    settings.CACHES = {**settings.CACHES}  # nobody has been there yet

    def get_backend() -> Backend:
        return connection.get_backend()

    first, second, third = together(get_backend, connection._mutex, eventually)
    assert first is second is third is connection.get_backend()


def test_a_listener_that_was_closed_does_not_start_any_more() -> None:
    backend = Backend("default", "closed")
    ears = listener.get_listener(backend)
    backend.close()
    ears.start()
    assert ears._thread is None
    assert not ears.ready


def test_a_listener_that_is_started_twice_has_one_thread(eventually: Eventually) -> None:
    backend = Backend("default", "twice")
    ears = listener.get_listener(backend)
    ears.start()
    thread = ears._thread
    eventually(lambda: ears.ready)
    ears.start()
    assert ears._thread is thread
    backend.close()
    assert thread is not None
    thread.join(GENEROUS)
    assert not thread.is_alive()


def test_whatever_goes_wrong_before_it_has_a_connection_the_listener_goes_on(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Backend("default", "clumsy")
    connect, troubles = backend.connect, [ZeroDivisionError("of the site's own class")]

    def clumsy(timeout: float | None) -> Any:
        if troubles:
            raise troubles.pop()
        return connect(timeout)

    monkeypatch.setattr(backend, "connect", clumsy)
    ears = listener.get_listener(backend)
    ears.start()
    eventually(lambda: ears.ready)
    assert "event=listener-disconnected" in caplog.text
    backend.close()


@pytest.fixture
def ears() -> Iterator[listener.Listener]:
    """A listener that notes whose messages are passed on, instead of passing them on."""
    backend = Backend("default", "ears")
    made = listener.Listener(backend)
    yield made
    backend.close()


@pytest.fixture
def passed_on(ears: listener.Listener, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tokens: list[str] = []
    monkeypatch.setattr(ears, "on_stray", lambda backend, kind, token, name: tokens.append(token))
    return tokens


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_all_who_wait_in_a_loop_that_has_ended_are_passed_over_at_once(
    ears: listener.Listener, passed_on: list[str], loop: asyncio.AbstractEventLoop
) -> None:
    gone = [ears.register(NAME, f"gone-{number}", loop) for number in range(2000)]
    alive = ears.register(NAME, "alive")
    loop.close()
    gone[0].tell()
    assert ears.waiters == {"alive": alive}
    assert passed_on == [waiter.token for waiter in gone]
    for waiter in gone:  # which are collected at some time
        ears.unregister(waiter)
    assert ears._tasks == 0
    ears.unregister(alive)
    assert not ears._groups


def test_a_waiter_that_was_passed_over_leaves_another_one_with_its_token_alone(
    ears: listener.Listener, passed_on: list[str], loop: asyncio.AbstractEventLoop
) -> None:
    gone = ears.register(NAME, TOKEN, loop)
    loop.close()
    gone.tell()
    alive = ears.register(NAME, TOKEN)
    ears.unregister(gone)
    assert ears.waiters == {TOKEN: alive}


def test_a_waiter_that_is_collected_while_the_listener_is_busy_does_not_block_it(
    ears: listener.Listener, other: Callable[[], Other]
) -> None:
    gone, alive = ears.register(NAME, "gone"), ears.register(NAME, "alive")

    def collect() -> None:
        with ears._mutex:  # the garbage collection strikes anywhere
            ears.unregister(gone)

    other()(collect)
    assert ears.waiters == {"alive": alive}


def test_a_changed_setting_gives_a_listener_of_its_own() -> None:
    backend = get_backend()
    ears = listener.get_listener(backend)
    assert listener.get_listener(backend) is ears
    other = Backend("default", "redislock")
    assert listener.get_listener(other) is not ears
    other.close()


def test_where_the_probe_is_refused_waiters_poll(eventually: Eventually, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PROBE", ("NO-SUCH-COMMAND",))
    backend = Backend("default", "probed")
    ears = listener.get_listener(backend)
    ears.start()
    eventually(lambda: ears.polled)
    backend.close()
