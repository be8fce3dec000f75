"""The parent's side of the worker processes, and what a mode measures with."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from . import worker
from .serverstats import Observer, Statistics

PATIENCE = 60.0  # seconds, in addition to those of the job itself
HEAD_START = 0.02  # seconds for the starting time to reach all workers


class BenchError(RuntimeError):
    """A worker failed."""


class Turn(NamedTuple):
    """What a job has brought."""

    results: list[Any]  # of each worker
    statistics: Statistics  # since they were ready
    connections: int  # at the end


@dataclass
class Bench:
    """What a mode measures with. ``urls``: of all nodes. ``other``: the checkout of those ``elsewhere``."""

    kinds: Mapping[str, type[Any]]
    urls: Sequence[str]
    tell: Callable[[str], None]
    cluster: bool
    coroutines: bool
    other: Path | None
    troubles: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # by contender

    def __post_init__(self) -> None:
        self.observer = Observer(self.urls)

    def turns(self, rounds: int) -> Iterator[tuple[str, type[Any]]]:
        """Each contender in turn, so many times."""
        for number in range(1, rounds + 1):
            for key, kind in self.kinds.items():
                self.tell(f"round {number} of {rounds}: {key}")
                yield key, kind

    def fresh(self, rounds: int, size: int, job: worker.Job, *args: Any, seconds: float) -> dict[str, list[Turn]]:
        """``rounds`` of the job for each contender, by so many fresh processes."""
        found: dict[str, list[Turn]] = defaultdict(list)
        for key, kind in self.turns(rounds):
            with Workers(self, size) as workers:
                found[key].append(workers.call(key, job, kind, *args, seconds=seconds))
        return found


class Workers:
    """Several fresh processes, for the duration of a ``with`` block; at its end they are killed, whatever they are
    doing. Nothing is left in Redis of those before them.

    ``names``: how many names they lock at most.
    """

    def __init__(self, bench: Bench, size: int, *, names: int = 1, elsewhere: bool = False) -> None:
        self.bench = bench
        self.size = size
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        bench.observer.flush()
        # in a database of its own, as the other version may write its keys differently
        url = f"{bench.urls[0]}?db=1" if elsewhere else bench.urls[0]
        # as PYTHONPATH would: spawned processes inherit our own path
        path = [str(bench.other), *sys.path] if elsewhere else sys.path
        # beside those of another version, which cannot be forked here, all begin in the same way
        context: Any = get_context("spawn" if bench.other else "forkserver")
        if not bench.other:  # what all of them need is imported once
            context.set_forkserver_preload(["django_redis.client", "redis.asyncio", "django_redislock"])
        inside = context.RawArray("l", names)
        with patch.object(sys, "path", path):
            for number in range(size):
                pipe, theirs = context.Pipe()
                args = (number, theirs, inside, url, bench.cluster, bench.coroutines)
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
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def call(self, key: str, job: worker.Job, *args: Any, seconds: float = 0.0) -> Turn:
        """Let all run ``job`` for a contender at the same time. ``seconds``: how long it normally takes."""
        for pipe in self._pipes:
            pipe.send((job, args))
        for number in range(self.size):
            # so many processes need time to start on few processors
            if self._hear(number, PATIENCE + self.size) != worker.READY:
                raise BenchError(f"{job.__module__}.{job.__name__} did not say that it is ready.")
        self.bench.observer.reset()
        start = time.monotonic() + (HEAD_START if self.size > 1 else 0.0)
        for pipe in self._pipes:
            pipe.send(start)
        answers = [self._hear(number, seconds + PATIENCE) for number in range(self.size)]
        statistics, connections = self.bench.observer.read(), self.bench.observer.connections()
        for answer in answers:
            self.bench.troubles[key].update(answer.troubles)
        return Turn([answer.result for answer in answers], statistics, connections)

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
