"""The parent's side of the worker processes, and what a mode measures with."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from . import worker
from .serverstats import Observer

PATIENCE = 60.0  # seconds, in addition to those of the job itself
HEAD_START = 0.02  # seconds for the starting time to reach all workers


class BenchError(RuntimeError):
    """A worker failed."""


@contextmanager
def unreached_by_interrupts() -> Iterator[None]:
    """Processes that are started inside do not get the terminal's Ctrl-C: the parent gets it, and then ends the
    others."""
    resource_tracker.ensure_running()  # its start unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Workers:
    """Several fresh processes, for the duration of a ``with`` block; at its end they are killed, whatever they are
    doing.

    ``url``: of the server, or of a node of the ``cluster``. ``coroutines``: their jobs run in coroutines instead of
    threads. ``names``: how many names they lock at most. ``path``: where they look for packages first.
    """

    def __init__(
        self, url: str, size: int, *, cluster: bool, coroutines: bool, names: int = 1, path: Path | None = None
    ) -> None:
        self.size = size
        self._processes: list[SpawnProcess] = []
        self._pipes: list[Connection] = []
        context = get_context("spawn")
        inside = context.RawArray("l", names)
        # as PYTHONPATH would: spawned processes inherit our own path
        searched = [str(path), *sys.path] if path else sys.path
        with unreached_by_interrupts(), patch.object(sys, "path", searched):
            for number in range(size):
                pipe, theirs = context.Pipe()
                args = (number, theirs, inside, url, cluster, coroutines)
                process = context.Process(target=worker.main, args=args, daemon=True)
                self._pipes.append(pipe)
                process.start()
                self._processes.append(process)
                theirs.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def call(
        self, job: worker.Job, *args: Any, seconds: float = 0.0, when_ready: Callable[[], object] = lambda: None
    ) -> list[worker.Answer]:
        """Let all run ``job`` at the same time. ``seconds``: how long the job normally takes.

        ``when_ready`` is called when all are warmed up, just before they start.
        """
        for pipe in self._pipes:
            pipe.send((job, args))
        for number in range(self.size):
            # so many processes need time to start on few processors
            if self._hear(number, PATIENCE + self.size) != worker.READY:
                raise BenchError(f"{job.__module__}.{job.__name__} did not say that it is ready.")
        when_ready()
        start = time.monotonic() + (HEAD_START if self.size > 1 else 0.0)
        for pipe in self._pipes:
            pipe.send(start)
        return [self._hear(number, seconds + PATIENCE) for number in range(self.size)]

    def _hear(self, number: int, patience: float) -> Any:
        try:
            if not self._pipes[number].poll(patience):
                raise BenchError(f"Worker {number} gave no answer for {patience:.0f} seconds.")
            answer = self._pipes[number].recv()
        except EOFError:
            self._processes[number].join()
            raise BenchError(f"Worker {number} has died ({self._processes[number].exitcode}).") from None
        if isinstance(answer, worker.Answer) and answer.failure:
            raise BenchError(f"Worker {number} failed:\n{answer.failure}")
        return answer


class Bench:
    """What a mode measures with. ``other``: the checkout of those ``elsewhere``."""

    def __init__(
        self,
        kinds: Mapping[str, type[Any]],
        observer: Observer,
        urls: Sequence[str],
        tell: Callable[[str], None],
        *,
        cluster: bool,
        coroutines: bool,
        other: Path | None = None,
    ) -> None:
        self.kinds = kinds
        self.observer = observer
        self.urls = urls  # of all nodes
        self.tell = tell
        self.troubles: dict[str, Counter[str]] = defaultdict(Counter)  # by contender
        self._other = other
        self._start = partial(Workers, cluster=cluster, coroutines=coroutines)

    def workers(self, size: int, *, names: int = 1, elsewhere: bool = False) -> Workers:
        """Start so many; nothing is left in Redis of those before them."""
        self.observer.flush()
        if elsewhere:  # in a database of its own, as the other version may write its keys differently
            return self._start(f"{self.urls[0]}?db=1", size, names=names, path=self._other)
        return self._start(self.urls[0], size, names=names)

    def turns(self, rounds: int = 1) -> Iterator[tuple[str, type[Any]]]:
        """Each contender in turn, so many times."""
        for number in range(1, rounds + 1):
            for key, kind in self.kinds.items():
                self.tell(f"round {number} of {rounds}: {key}")
                yield key, kind

    def call(self, key: str, workers: Workers, job: worker.Job, *args: Any, seconds: float = 0.0) -> list[Any]:
        """Let all run ``job`` for this contender; return the results. The observer counts from its start."""
        answers = workers.call(job, *args, seconds=seconds, when_ready=self.observer.reset)
        for answer in answers:
            self.troubles[key].update(answer.troubles)
        return [answer.result for answer in answers]
