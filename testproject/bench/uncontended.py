"""One process that acquires and releases a lock that nobody else wants."""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from types import FrameType

from .contenders import TTL, Contender
from .figures import Figures, median_ratio
from .report import Row
from .runners import Routine
from .serverstats import Observer
from .worker import Worker
from .workers import Workers

PAIRS = 100  # in a block: about 20 ms
WARM_UP = 10
LEAST_ROUNDS = 3
HERE = str(Path(__file__).parent)

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


def pairs(contender: Contender, number: int) -> Routine[None]:
    for _ in range(number):
        held = yield (contender.acquire,)
        yield contender.release, held


def count_calls(contender: Contender) -> Routine[float]:
    """Calls of Python functions per pair in this thread, without those of the bench."""
    calls = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call" and not frame.f_code.co_filename.startswith(HERE)

    sys.setprofile(note)
    try:
        yield from pairs(contender, WARM_UP)
    finally:
        sys.setprofile(None)
    return calls / WARM_UP


def block(worker: Worker, kind: type[Contender]) -> Routine[tuple[float, float, float]]:
    """Seconds per pair: time, and CPU time of all threads of the process; and Python calls per pair."""
    contender = worker.contender(kind, TTL)
    yield from pairs(contender, WARM_UP)
    calls = yield from count_calls(contender)
    yield worker.ready()
    wall, cpu = time.perf_counter(), time.process_time()
    yield from pairs(contender, PAIRS)
    return (time.perf_counter() - wall) / PAIRS, (time.process_time() - cpu) / PAIRS, calls


def measure(
    start_workers: Callable[[int], Workers],
    observer: Observer,
    kinds: Mapping[str, type[Contender]],
    *,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Figures]:
    """Rounds of one block each, shuffled, until ``seconds`` are over."""
    wall: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    calls: dict[str, list[float]] = defaultdict(list)
    received: dict[str, int] = defaultdict(int)
    requests: dict[str, int] = defaultdict(int)
    server_us: dict[str, float] = defaultdict(float)
    server_cpu: dict[str, float] = defaultdict(float)
    dice = random.Random(0)
    with start_workers(1) as workers:
        rounds, end = 0, time.monotonic() + seconds
        while rounds < LEAST_ROUNDS or time.monotonic() < end:
            rounds += 1
            tell(f"round {rounds}")
            for key in dice.sample(list(kinds), len(kinds)):
                ((one_wall, one_cpu, one_calls),) = workers.call(block, kinds[key], when_ready=observer.reset)
                statistics = observer.read()
                if rounds == 1:
                    continue  # warm-up of connections, scripts and caches
                wall[key].append(one_wall)
                cpu[key].append(one_cpu)
                calls[key].append(one_calls)
                received[key] += statistics.received
                requests[key] += statistics.requests
                server_us[key] += statistics.server_us(kinds[key])
                server_cpu[key] += statistics.cpu
    number = (rounds - 1) * PAIRS
    return {
        key: {
            "pairs": number,
            "us": median(wall[key]) * 1e6,
            "x_floor": median_ratio(wall[key], wall.get("floor")),
            "x_redis_py": median_ratio(wall[key], wall.get("redis-py")),
            "cpu_us": median(cpu[key]) * 1e6,
            "cpu_x_floor": median_ratio(cpu[key], cpu.get("floor")),
            "calls": median(calls[key]),
            "bytes": received[key] / number,
            "server_us": server_us[key] / number,
            "server_cpu_us": server_cpu[key] / number * 1e6,
            "round_trips": requests[key] / number,
        }
        for key in kinds
    }
