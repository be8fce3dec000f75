"""One process that acquires and releases a lock that nobody else wants."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from types import FrameType
from typing import NamedTuple

from .contenders import Contender, Floor, OurCacheLock, OurLock, PythonRedisLock, RedisPy
from .figures import Figures, median_ratio
from .report import Row
from .worker import Worker
from .workers import Bench, Turn, Workers

PAIRS = 100  # in a block: about 20 ms
WARM_UP = 10
LEAST_ROUNDS = 3
HERE = str(Path(__file__).parent)
SPIN = """
import os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[1]):
    pass
"""

KINDS = (Floor, RedisPy, PythonRedisLock, OurLock, OurCacheLock)
ROWS = (
    Row("us", "time per acquire + release, us", "{:.1f}"),
    Row("x_floor", "time / floor", "{:.3f}"),
    Row("x_redis_py", "time / redis-py", "{:.3f}"),
    Row("cpu_us", "client CPU per pair, us", "{:.1f}"),
    Row("cpu_x_floor", "client CPU / floor", "{:.3f}"),
    Row("calls", "Python calls per pair", "{:.0f}"),
    Row("bytes", "bytes sent per pair", "{:.0f}"),
    Row("server_us", "server time per pair, us", "{:.1f}"),
    Row("server_cpu_us", "server CPU per pair, us", "{:.1f}"),
    Row("round_trips", "round trips per pair", "{:.2f}"),
)


class Block(NamedTuple):
    """Per pair. Times are in seconds."""

    time: float
    cpu: float  # of all threads of the process
    calls: float  # of Python functions, without those of the bench


async def pairs(contender: Contender, number: int) -> None:
    for _ in range(number):
        await contender.release(await contender.acquire(f"bench:{contender.key}"))


async def count_calls(contender: Contender) -> float:
    """Calls of Python functions per pair in this thread."""
    calls = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call" and not frame.f_code.co_filename.startswith(HERE)

    sys.setprofile(note)
    try:
        await pairs(contender, WARM_UP)
    finally:
        sys.setprofile(None)
    return calls / WARM_UP


async def block(worker: Worker, kind: type[Contender]) -> Block:
    contender = worker.one(kind)
    await pairs(contender, WARM_UP)
    calls = await count_calls(contender)
    await worker.ready()
    wall, cpu = time.perf_counter(), time.process_time()
    await pairs(contender, PAIRS)
    return Block((time.perf_counter() - wall) / PAIRS, (time.process_time() - cpu) / PAIRS, calls)


def measure(bench: Bench, *, seconds: float = 10.0, let_cpus_sleep: bool = False) -> dict[str, Figures]:
    """One process alone, in rounds of one block each, shuffled, until ``seconds`` are over."""
    turns: dict[str, list[Turn]] = defaultdict(list)
    dice = random.Random(0)
    stay_awake = hasattr(os, "SCHED_IDLE") and not let_cpus_sleep
    with Workers(bench, 1) as workers, cpus_awake() if stay_awake else nullcontext():
        rounds, end = 0, time.monotonic() + seconds
        while rounds < LEAST_ROUNDS or time.monotonic() < end:
            rounds += 1
            bench.tell(f"round {rounds}")
            for key in dice.sample(list(bench.kinds), len(bench.kinds)):
                turn = workers.call(key, block, bench.kinds[key])
                if rounds > 1:  # after a warm-up of connections, scripts and caches
                    turns[key].append(turn)
    number = (rounds - 1) * PAIRS
    blocks: dict[str, list[Block]] = {key: [turn.results[0] for turn in turns[key]] for key in bench.kinds}
    times = {key: [one.time for one in found] for key, found in blocks.items()}
    cpu = {key: [one.cpu for one in found] for key, found in blocks.items()}
    figures: dict[str, Figures] = {}
    for key, kind in bench.kinds.items():
        counts = [turn.statistics for turn in turns[key]]
        figures[key] = {
            "pairs": number,
            "us": median(times[key]) * 1e6,
            "x_floor": median_ratio(times[key], times.get("floor")),
            "x_redis_py": median_ratio(times[key], times.get("redis-py")),
            "x_lock": median_ratio(times[key], times.get("Lock")),
            "cpu_us": median(cpu[key]) * 1e6,
            "cpu_x_floor": median_ratio(cpu[key], cpu.get("floor")),
            "calls": median(one.calls for one in blocks[key]),
            "bytes": sum(one.received for one in counts) / number,
            "server_us": sum(sum(one.server_us(kind)) for one in counts) / number,
            "server_cpu_us": sum(one.cpu for one in counts) / number * 1e6,
            "round_trips": sum(one.requests for one in counts) / number,
        }
    return figures


@contextmanager
def cpus_awake() -> Iterator[None]:
    """For the duration of a block, a process per CPU spins at the lowest priority, which yields to any other process at
    once.

    Between a request and its answer an idle CPU sleeps. In a virtual machine, waking it takes longer than the lock's
    own work. How long depends on the host, changes from hour to hour, and affects locks that wait longer more.
    """
    command = [sys.executable, "-c", SPIN, str(os.getpid())]
    spinners = [subprocess.Popen(command, start_new_session=True) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
