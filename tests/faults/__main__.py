"""``python -m tests.faults table``: measures the table "What happens when" of the documentation.

``python -m tests.faults soak``: measures the documentation's table of what ten minutes of faults leave behind. Exits
with 1 if anything was wrong or has grown. ``--cluster``: on a cluster, with the faults of a cluster. ``--sentinel``: on
a master that sentinels watch, which dies. ``--semaphores``: semaphores with limits of 1 to 4 that change, not locks.
``--leader``: leaders of short terms, and (except with sentinels) no fault by which Redis forgets: never two at once.
``--also-lock redis-py`` (or ``django-redis``, or ``python-redis-lock``): something else, a move. Four processes have
old code and four have ours with ``ALSO_LOCK``, and one of the eight is killed after each ``--every`` sections; exits
with 1 if two were inside together, or anything is left behind.

``python -m tests.faults replicas``: how many grants are lost with a master, without and with ``REPLICAS``.

``python -m tests.faults fencing``: how many updates databases lose, with fences and without. Exits with 1 if any
update was lost with fences. ``--sections``: how many in all; ``--only postgres``: only on PostgreSQL.
"""

import argparse
import logging
import os
import random
import re
import sys
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import django
import redis

sys.path.insert(0, "testproject")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from redisserver import redis_server  # noqa: E402
from tests.helpers.actors import until  # noqa: E402
from tests.helpers.processes import Worker  # noqa: E402

from .faults import ANEW, FAULTS, LANES, PROCESSES, ROWS, Fault, kill_process, strike  # noqa: E402
from .fencing import compare  # noqa: E402
from .on_several import FORGETFUL, ON_CLUSTER, ON_SENTINELS, count_losses, on_sentinels, partitionable  # noqa: E402
from .trial import LIMITS, Process, Trial, moving, start_launcher, trial  # noqa: E402
from .worker import OLD  # noqa: E402

# long holds, so that a fault hits a holder; short ones, so that it hits a handoff
HOLDS = [0.0] * 20 + [0.01] * 10 + [0.1] * 4 + [0.5] * 2
TTL_OF_SEVERAL = 6.0  # seconds: some leases outlast a failover, and some do not
# what the sentinels see happen to their master, and what else goes well with a failover
WATCHED = [fault for fault in ON_SENTINELS if fault.server is on_sentinels]
WATCHED += [fault for fault in FAULTS if fault.name in ("kill_connections", "kill_subscriptions", "flush_scripts")]
PLACES: dict[str, tuple[Any, list[list[Fault]], float]] = {  # each lane has a fault every so many seconds
    "server": (redis_server, LANES, len(LANES)),
    "sentinel": (on_sentinels, [PROCESSES, WATCHED], 6),
    "cluster": (partitionable, [PROCESSES, ON_CLUSTER], 6),
}
LOCKS = [f"lock{number}" for number in range(50)]
SEMAPHORES = LOCKS[:6]  # fewer, so that all permits are often held
LEADERS = LOCKS[:12]  # so that each has standbys
TERMS = [0.0] * 398 + [0.3, 4.0]
# shorter than in the trials, for more sections
HOLDS_OF_PERMITS = [0.0] * 700 + [0.001] * 200 + [0.01] * 80 + [0.05] * 19


def show(*lines: list[str]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["=" * width for width in widths]
    for line in (rule, lines[0], rule, *lines[1:], rule):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip(), flush=True)


def table(launcher: Worker, times: int, only: str) -> None:
    lines = [["fault", "the holder sees", "waiters", "free, s", "two at once"]]
    for fault in [*FAULTS, *ON_SENTINELS, *ON_CLUSTER]:
        if not re.search(only, fault.name):
            continue
        gap = overlap = 0.0
        for seed in range(times):
            options = {"holds": HOLDS, **fault.options}
            with (fault.server or redis_server)() as server, trial(launcher, server, seed=seed, **options) as run:
                run.obtained(5)
                fault.strike(run)
                run.obtained(3)
                for violation in run.finish():
                    print(f"{fault.name}, seed {seed}: {violation}", file=sys.stderr)
                gap = max(gap, run.history.longest_gap())
                overlap = max(overlap, run.history.longest_overlap())
        holder, waiters, *_ = ROWS[fault.title]
        two = "yes, until told" if fault.lets_two_in else "no"
        lines.append([fault.title, holder, waiters, f"{gap:.1f}", f"{two} ({overlap:.2f} s)" if overlap else two])
    show(*lines)


Sample = dict[str, float]
Watch = defaultdict[tuple[str, str], list[float]]  # of what, by whom

# How much each may vary. Memory is without what malloc keeps for later: it has up to eight arenas for each processor,
# and where threads come and go, as those do that ask a cluster for its slots, what one frees in one arena is allocated
# again in another. On two processors that grew to 20 MB in five minutes, while what was in use stayed the same. One
# block of Python of each section would be 100,000 and more. Keys that end stand for a minute at most (gone:<token>, for
# requests with an unknown outcome); one for each section would be ten times as many.
BOUNDS: Sample = {
    "blocks of Python, 1000": 40,
    "own memory, MB": 5,
    "resident memory, MB": 5,
    "threads": 2,
    "open files": 5,
    "used_memory, MB": 1,
    "used_memory_rss, MB": 3,
    "keys that end": 10_000,
    "keys that do not": 0,
    "connections": 10,
    "cached scripts": 5,
}


def growth(watch: Watch) -> list[tuple[str, float, float]]:
    """For each measure, what it was early and late in the process in which it grew most: the median of the second and
    of the last fifth of its samples. In the first, pools and caches fill, and a forked process makes pages its own as
    it touches them."""
    grown: dict[str, tuple[str, float, float]] = {}
    for (what, _), values in watch.items():
        fifth = len(values) // 5
        one = what, median(values[fifth : 2 * fifth]), median(values[-fifth:])
        grown[what] = max(grown.get(what, one), one, key=lambda each: each[2] - each[1])
    return [*grown.values()]


def keep_looking(run: Trial, watch: Watch, begin: float, over: threading.Event) -> None:
    """Each second, take samples of the processes that are spared, and from then on of the server."""
    while not over.wait(1):
        samples = {one.label: of_process(one) for one in run.processes if one.spared}
        if monotonic() > begin:
            samples["server"] = of_server(run.client)
        for who, sample in samples.items():
            for what, value in sample.items():
                watch[what, who].append(value)


def of_process(process: Process) -> Sample:
    proc = Path(f"/proc/{process.pid}")
    sizes = re.findall(r"(\w+): +(\d+) kB", (proc / "smaps_rollup").read_text())
    memory = {name: int(size) / 1024 for name, size in sizes}
    blocks, kept = map(int, Path(f"{process.log}.memory").read_text().split())
    return {
        "blocks of Python, 1000": blocks / 1000,
        # not what is private: pages of the launcher become that as others who share them end
        "own memory, MB": memory["Anonymous"] - kept / 2**20,
        "resident memory, MB": memory["Rss"] - kept / 2**20,
        "threads": len(list((proc / "task").iterdir())),
        "open files": len(list((proc / "fd").iterdir())),
    }


def of_server(client: redis.Redis) -> Sample:
    try:
        info = client.info()
    except redis.RedisError:  # the server may be the one in trouble now
        return {}
    database = info.get("db0", {"keys": 0, "expires": 0})
    return {
        "used_memory, MB": info["used_memory"] / 2**20,
        "used_memory_rss, MB": info["used_memory_rss"] / 2**20,
        "keys that end": database["expires"],
        "keys that do not": database["keys"] - database["expires"],
        "connections": info["connected_clients"],
        "cached scripts": info["number_of_cached_scripts"],
    }


def soak(launcher: Worker, seed: int, minutes: float, *, place: str, semaphores: bool, leaders: bool) -> bool:
    """Return whether all was well."""
    print(f"seed {seed}", flush=True)
    (make_server, lanes, every), several = PLACES[place], place != "server"
    half, names = minutes * 60 / 2, SEMAPHORES if semaphores else LEADERS if leaders else LOCKS
    holds = TERMS if leaders else [*(HOLDS_OF_PERMITS if semaphores else [0.0] * 999), *[0.3, 4.0][: 1 + several]]
    if leaders:
        lanes = [[fault for fault in lane if fault.name not in ANEW | FORGETFUL] for lane in lanes]
    with make_server() as server, trial(
        launcher, server, workers=8, proxied=[] if several else [0, 4], spared=range(4), seed=seed, names=names,
        ttl=TTL_OF_SEVERAL if several else None, holds=holds,
        limits=LIMITS if semaphores else None, leaders=leaders,
    ) as run, ThreadPoolExecutor() as threads:  # fmt: skip
        watch, over = Watch(list), threading.Event()
        looking = threads.submit(keep_looking, run, watch, inf if several else monotonic() + half, over)
        try:
            faults = strike(run, lanes, every, half)
            if not several:  # from now on, the server keeps what it has
                lanes = [[fault for fault in lane if fault.name not in ANEW] for lane in lanes]
            faults += strike(run, lanes, every, half)
        finally:
            over.set()
            looking.result()
        run.obtained(3)
        violations, history = run.finish(), run.history
    lost = sum(one.outcome == "lost" for one in history.sections)
    print(*violations, f"{faults}", sep="\n")
    kind = "semaphores" if semaphores else "leaders" if leaders else "locks"
    if leaders:
        print(f"{history.takeovers():,} takeovers by another process")
    print(f"{minutes:g} minutes, 8 processes, {len(names)} {kind}, "
          f"{faults.total()} faults: {len(history.obtained):,} critical sections, {lost:,} of them lost, "
          f"{len(violations)} violations, too many held at once for {history.longest_overlap():.3f} s at most, too few "
          f"for {history.longest_gap():.1f} s")  # fmt: skip
    grown = growth(watch)
    lines = [[what, f"{early:.1f}", f"{late:.1f}", f"{BOUNDS[what]}"] for what, early, late in grown]
    show(["", "early", "late", "may grow by"], *lines)
    leaks = [what for what, early, late in grown if late - early > BOUNDS[what]]
    print("grows: " + ", ".join(leaks) if leaks else "nothing grows", flush=True)
    return not (violations or leaks or (leaders and place != "sentinel" and history.longest_overlap()))


def move(launcher: Worker, kind: str, sections: int, every: int, seed: int) -> bool:
    """Return whether all was well."""
    print(f"seed {seed}", flush=True)
    with redis_server() as server, moving(launcher, server, kind, seed=seed, names=LOCKS[:5]) as run:

        def entered() -> int:
            return sum(process.acquired() for process in run.processes)

        for _ in range(sections // every):
            wanted = entered() + every
            until(lambda wanted=wanted: entered() >= wanted, inf)
            kill_process(run)
        violations = run.finish()
    for violation in violations[:10]:
        print(violation)
    ours = Counter(one.fence >= 0 for one in run.history.obtained)
    lost = sum(one.outcome == "lost" for one in run.history.sections)
    print(f"{kind}: {ours[True]:,} critical sections of ours and {ours[False]:,} of old code, {sections // every} "
          f"processes killed, {len(violations)} violations, {lost} leases lost", flush=True)  # fmt: skip
    return not violations


def replicas(failovers: int) -> None:
    lines = [["``REPLICAS``", "failovers", "that lost any", "grants believed", "lost", "acquiring, ms"]]
    for number in (0, 1):
        found, takes = count_losses(number, failovers)
        counts = [number, failovers, found["struck"], found["believed"], found["lost"]]
        lines.append([*(f"{count:,}" for count in counts), f"{takes * 1000:.1f}"])
    show(*lines)


def fencing(launcher: Worker, sections: int, seed: int, only: str) -> bool:
    """Show the table. Return whether no update was lost with a fence."""
    print(f"seed {seed}", flush=True)
    logging.getLogger("django_redislock").addHandler(logging.NullHandler())  # each force_release() is logged
    columns = ["sections", "faults", "lost", "refused", "wrong"]
    well, lines = True, [["database", "lock", *columns]]
    for database, way, found in compare(launcher, sections, seed, only):
        lines.append([database, way, *(f"{found[column]:,}" for column in columns)])
        print("  ".join(lines[-1]), file=sys.stderr, flush=True)
        well = well and not (way == "fenced" and (found["lost"] or found["wrong"]))
    show(*lines)
    return well


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("what", choices=["table", "soak", "replicas", "fencing"])
    parser.add_argument("--times", type=int, default=3, help="runs of each fault, of which the worst counts")
    parser.add_argument("--failovers", type=int, default=200, help="of ``replicas``, without and with one")
    parser.add_argument("--only", default="", help="names of faults (a regular expression), or of databases")
    parser.add_argument("--cluster", action="store_const", const="cluster", dest="place", help="soak a cluster")
    parser.add_argument("--sentinel", action="store_const", const="sentinel", dest="place", help="soak failovers")
    parser.add_argument("--semaphores", action="store_true", help="soak semaphores")
    parser.add_argument("--leader", action="store_true", help="soak leaders")
    parser.add_argument("--also-lock", choices=[*OLD], help="soak a move from this old code")
    parser.add_argument("--every", type=int, default=500, help="of a move: sections after which a process is killed")
    parser.add_argument("--sections", type=int, default=100_000, help="of ``fencing``, or of a move")
    parser.add_argument("--minutes", type=float, default=10.0, help="of ``soak``")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    given, well = parser.parse_args(), True
    launcher = start_launcher()
    try:
        if given.what == "table":
            table(launcher, given.times, given.only)
        elif given.what == "soak" and given.also_lock:
            well = move(launcher, given.also_lock, given.sections, given.every, given.seed)
        elif given.what == "soak":
            kinds = {"semaphores": given.semaphores, "leaders": given.leader}
            well = soak(launcher, given.seed, given.minutes, place=given.place or "server", **kinds)
        elif given.what == "replicas":
            replicas(given.failovers)
        else:
            well = fencing(launcher, given.sections, given.seed, given.only)
    finally:
        launcher.kill()
    sys.exit(not well)


if __name__ == "__main__":
    main()
