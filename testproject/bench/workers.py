"""The parent's side of the worker processes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

from . import worker

PATIENCE = 60.0  # seconds, in addition to those of the job itself
HEAD_START = 0.02  # seconds for the starting time to reach all workers


class BenchError(RuntimeError):
    """A worker failed."""


@contextmanager
def unreached_by_interrupts() -> Iterator[None]:
    """Processes that are started inside do not get the terminal's Ctrl-C: the parent gets it, and then ends the
    others."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _searched_first(path: str | None) -> Iterator[None]:
    """Put a folder first on the path, as PYTHONPATH would; spawned processes inherit our own ``sys.path``."""
    before = sys.path.copy()
    if path is not None:
        sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path[:] = before


class Workers:
    """Several fresh processes, for the duration of a ``with`` block; at its end they are killed, whatever they are
    doing.

    ``cluster``: the server at ``url`` is a node of one. ``coroutines``: their jobs run in coroutines instead of
    threads. ``path``: where they look for packages first. ``names``: how many names they lock at most.
    """

    def __init__(
        self, url: str, size: int, *, cluster: bool, coroutines: bool, path: str | None = None, names: int = 1
    ) -> None:
        self.url = url
        self.size = size
        self.cluster = cluster
        self.names = names
        self.coroutines = coroutines
        self.path = path
        self._processes: list[SpawnProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> Workers:
        context = get_context("spawn")
        resource_tracker.ensure_running()  # its start unblocks SIGINT
        inside = context.RawArray("l", self.names)
        try:
            with unreached_by_interrupts(), _searched_first(self.path):
                for number in range(self.size):
                    pipe, theirs = context.Pipe()
                    args = (number, theirs, inside, self.url, self.cluster, self.coroutines)
                    process = context.Process(target=worker.main, args=args, daemon=True)
                    self._pipes.append(pipe)
                    process.start()
                    self._processes.append(process)
                    theirs.close()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self, job: worker.Job, *args: Any, seconds: float = 0.0, when_ready: Callable[[], object] | None = None
    ) -> list[Any]:
        """Let all run ``job`` at the same time; return the results. ``seconds``: how long the job normally takes.

        ``when_ready`` is called when all are warmed up, just before they start.
        """
        for pipe in self._pipes:
            pipe.send((job, args))
        for number in range(self.size):
            # so many processes need time to start on few processors
            if self._hear(number, PATIENCE + self.size) != worker.READY:
                raise BenchError(f"{job.__module__}.{job.__name__} did not say that it is ready.")
        if when_ready is not None:
            when_ready()
        start = time.monotonic() + (HEAD_START if self.size > 1 else 0.0)
        for pipe in self._pipes:
            pipe.send(start)
        return [self._hear(number, seconds + PATIENCE) for number in range(self.size)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def _hear(self, number: int, patience: float) -> Any:
        pipe = self._pipes[number]
        try:
            if not pipe.poll(patience):
                raise BenchError(f"Worker {number} gave no answer for {patience:.0f} seconds.")
            answer = pipe.recv()
        except EOFError:
            self._processes[number].join()
            raise BenchError(f"Worker {number} has died ({self._processes[number].exitcode}).") from None
        if isinstance(answer, worker.Failure):
            raise BenchError(f"Worker {number} failed:\n{answer}")
        return answer
