"""Couriers carry renewals and farewells to Redis, so that the watchdog's clock never waits for an answer.

A courier is a short-lived thread with a connection of its own. Usually there is none; while one waits for a Redis that
does not answer, what has as much patience waits for it to come back, and what has less sends another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from redis.connection import Connection
from redis.exceptions import NoScriptError

from .connection import Backend, Command, pipeline
from .scripts import in_full


class Errand(NamedTuple):
    """One command to send. ``task`` and ``due`` are the sender's: what it is for, and how it was planned."""

    task: Any
    command: Command
    due: float


Answered = Callable[[Backend, list[Errand], list[Any], float], None]
Failed = Callable[[Backend, list[Errand], Exception], None]


class _Courier:
    __slots__ = ("errands", "timeout")

    def __init__(self, timeout: float, errands: list[Errand]) -> None:
        self.timeout = timeout
        self.errands = errands


class Couriers:
    """Calls ``answered(backend, errands, answers, sent)`` or ``failed(backend, errands, error)`` in their threads."""

    def __init__(self, answered: Answered, failed: Failed) -> None:
        self._answered = answered
        self._failed = failed
        self._mutex = threading.Lock()
        self._away: dict[Backend, list[_Courier]] = {}
        self._spare: dict[Backend, tuple[float, Connection]] = {}

    def send(self, backend: Backend, errands: list[Errand], timeout: float) -> None:
        """Send ``errands`` in one pipeline. None of its reads and writes takes longer than ``timeout`` seconds."""
        with self._mutex:
            if backend not in self._away:
                self._away[backend] = []
                backend.on_close.append(lambda: self._forget(backend))
            for courier in self._away[backend]:
                if courier.timeout <= timeout:
                    courier.errands += errands
                    return
            courier = _Courier(timeout, errands)
            self._away[backend].append(courier)
        try:
            threading.Thread(target=self._run, args=(backend, courier), name="redislock-courier", daemon=True).start()
        except RuntimeError as error:  # the system gives no more threads: nobody must wait for this one
            with self._mutex:
                self._away[backend].remove(courier)
            self._failed(backend, courier.errands, error)

    def _run(self, backend: Backend, courier: _Courier) -> None:
        try:
            self._carry(backend, courier)
        except BaseException:  # whatever it is: who is not there must be given nothing more
            with self._mutex:
                self._away[backend] = [other for other in self._away[backend] if other is not courier]
            raise

    def _carry(self, backend: Backend, courier: _Courier) -> None:
        connection: Connection | None = None
        while True:
            with self._mutex:
                errands, courier.errands = courier.errands, []
                if not errands:
                    self._away[backend].remove(courier)
                    if connection is not None and backend not in self._spare and not backend.closed:
                        self._spare[backend] = courier.timeout, connection
                        connection = None
                    break
                if connection is None:
                    timeout, spare = self._spare.pop(backend, (0.0, None))
                    if timeout == courier.timeout:
                        connection = spare
                    elif spare is not None:
                        spare.disconnect()
            try:
                connection = connection or backend.connect(courier.timeout)
                answers, sent = exchange(connection, errands)
            except Exception as error:  # whatever it is, the sender must hear of it
                if connection is not None:
                    connection.disconnect()
                self._failed(backend, errands, error)
            else:
                self._answered(backend, errands, answers, sent)
        if connection is not None:
            connection.disconnect()

    def _forget(self, backend: Backend) -> None:
        with self._mutex:
            _, spare = self._spare.pop(backend, (0.0, None))
        if spare is not None:
            spare.disconnect()


def exchange(connection: Connection, errands: list[Errand]) -> tuple[list[Any], float]:
    """The answers, and the monotonic time not before which Redis has seen any of the commands."""
    sent = monotonic()
    answers = pipeline(connection, [errand.command for errand in errands])
    unknown = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if unknown:
        again = pipeline(connection, [in_full(errands[i].command) for i in unknown])
        for i, answer in zip(unknown, again, strict=True):
            answers[i] = answer
    return answers, sent
