"""Fixtures of the tests of the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from redisserver import RedisServer
from tests.helpers import bridges
from tests.helpers.actors import GENEROUS
from tests.helpers.bridges import InThread
from tests.helpers.cancelling import add_gates, until
from tests.helpers.interrupts import Interrupt
from tests.helpers.proxy import Proxy, proxy
from tests.inside import limit, listener


@pytest.fixture
def network(server: RedisServer, settings: Any) -> Iterator[Proxy]:
    """A proxy between the default alias and the server."""
    with proxy(server.port) as running:
        default = {**settings.CACHES["default"], "LOCATION": running.url}
        settings.CACHES = {**settings.CACHES, "default": default}
        yield running
        settings.CACHES = {**settings.CACHES}


@pytest.fixture
def far(server: RedisServer, settings: Any) -> Iterator[Proxy]:
    """A proxy in front of the server, through which the alias ``far`` connects."""
    with proxy(server.port) as running:
        settings.CACHES = {**settings.CACHES, "far": {**settings.CACHES["default"], "LOCATION": running.url}}
        yield running


@pytest.fixture
def no_look_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters do not look by themselves: they must be woken."""
    limit(monkeypatch, look_every=1000.0)


@pytest.fixture
def listening(fresh: None) -> None:
    """Subscribe first, so that waiters queue at once; and start without leftovers of other tests."""
    ears = listener()
    ears.start()
    until(lambda: ears.ready)


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> None:
    add_gates(monkeypatch)


@pytest.fixture
def no_threads() -> Iterator[Callable[[bool], object]]:
    """Make it impossible to start threads, with a stack size that is too large."""

    def no_threads(really: bool) -> None:
        threading.stack_size(1 << 48 if really else 0)

    yield no_threads
    no_threads(False)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Pretend that the interpreter is shutting down, as Python 3.12 reports it when a thread is started."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    return lambda: monkeypatch.setattr(threading.Thread, "start", start)


class _Beginning:
    """Stands for what tells that a thread lives: whoever waits for it is interrupted, and it is only told later."""

    def __init__(self, event: threading.Event, gate: threading.Event) -> None:
        self._event = event
        self._gate = gate

    def wait(self, timeout: float | None = None) -> bool:
        raise Interrupt

    def set(self) -> None:
        assert self._gate.wait(GENEROUS)
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()


class InterruptedStart:
    """Whoever starts the first thread of this name is interrupted in there, before that lives, or (late) after."""

    def __init__(self, name: str, *, late: bool) -> None:
        self.name = name
        self.late = late
        self.thread: threading.Thread | None = None
        self.gate = threading.Event()  # not before this is set does the thread live
        self._start = threading.Thread.start

    def start(self, thread: threading.Thread) -> None:
        strikes = thread.name == self.name and self.thread is None
        if strikes:
            self.thread = thread
            if not self.late:
                thread._started = _Beginning(thread._started, self.gate)  # type: ignore[attr-defined]
        self._start(thread)
        if strikes:
            raise Interrupt

    def others(self, before: Collection[threading.Thread]) -> int:
        """How many other threads with this name there are."""
        return sum(thread.name == self.name and thread not in before for thread in threading.enumerate())


@pytest.fixture
def interrupted_start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., InterruptedStart]:
    def interrupted_start(name: str, *, late: bool) -> InterruptedStart:
        made = InterruptedStart(name, late=late)
        monkeypatch.setattr(threading.Thread, "start", lambda thread: made.start(thread))
        return made

    return interrupted_start


@pytest.fixture
def one_connection(settings: Any) -> None:
    """For each event loop."""
    default = {**settings.CACHES["default"], "OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 1}}}
    settings.CACHES = {**settings.CACHES, "default": default}


@pytest.fixture(
    params=[bridges.in_thread, bridges.in_any_thread, bridges.to_thread],
    ids=["thread-sensitive", "any thread", "to_thread"],
)
def in_thread(request: pytest.FixtureRequest) -> InThread:
    """Call a function in a thread, on behalf of the task."""
    return request.param  # type: ignore[no-any-return]
