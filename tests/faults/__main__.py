"""``python -m tests.faults table``: measures the table "What happens when" of the documentation.

``python -m tests.faults soak``: measures the documentation's table of what ten minutes of faults leave behind. Exits
with 1 if anything was wrong or has grown. ``--sections 1000000``: repeats runs until so many critical sections were
entered.
``--cluster``: on a cluster, with the faults of a cluster.

``python -m tests.faults replicas``: how many grants are lost with a master, without and with ``REPLICAS``.

``python -m tests.faults fencing``: how many updates databases lose, with fences and without. Exits with 1 if any
update was lost with fences. ``--sections``: how many in all (100,000); ``--only postgres``: only on PostgreSQL.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import django

sys.path.insert(0, "testproject")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from redisserver import redis_server  # noqa: E402

from .faults import ANEW, FAULTS, strike_every_second  # noqa: E402
from .fencing import Figures, compare  # noqa: E402
from .growth import BOUNDS, Growth, watching  # noqa: E402
from .on_cluster import ON_CLUSTER, partitionable, strike_in_turn  # noqa: E402
from .on_sentinels import ON_SENTINELS  # noqa: E402
from .replicas import Losses, count_losses  # noqa: E402
from .trial import INTERRUPTS, Launcher, Trial, trial  # noqa: E402

LOSSES = ["``REPLICAS``", "failovers", "that lost any", "grants believed", "lost", "acquiring, ms"]
UPDATES = ["database", "lock", "sections", "faults", "lost updates", "refused", "told after COMMIT", "longest wait, s"]
TITLES = {
    "fenced": "``locked_atomic(fenced=True)``",
    "unfenced": "``locked_atomic(fenced=False)``",
    "python_redis_lock": "python-redis-lock",
    "django_redis": "``cache.lock()`` of django-redis",
}
COLUMNS = ["fault", "the holder sees", "waiters", "free, s", "two at once"]
# long holds, so that a fault hits a holder; short ones, so that it hits a handoff
HOLDS = [0.0] * 20 + [0.01] * 10 + [0.1] * 4 + [0.5] * 2
CLUSTER_TTL = 6.0  # seconds: some leases outlast a failover, and some do not


def rows(launcher: Launcher, times: int, only: str) -> Iterator[list[str]]:
    for fault in [*FAULTS, *ON_SENTINELS, *ON_CLUSTER]:
        if not re.search(only, fault.strike.__name__):
            continue
        gap = overlap = 0.0
        seen: Counter[str] = Counter()
        for seed in range(times):
            place = fault.server() if fault.server else redis_server()
            with place as server, trial(
                launcher, server, proxied=[0] if fault.network else [], holds=fault.holds or HOLDS, seed=seed,
                ttl=fault.ttl, interrupts=0.0 if fault.ttl else INTERRUPTS,
            ) as run:  # fmt: skip
                run.obtained(5)
                fault.strike(run)
                run.obtained(3)
                for violation in run.finish():
                    print(f"{fault.strike.__name__}, seed {seed}: {violation}", file=sys.stderr)
                seen += Counter(section.outcome for section in run.history.sections)
                gap = max(gap, run.history.longest_gap())
                overlap = max(overlap, run.history.longest_overlap())
        print(f"{fault.strike.__name__}: {dict(seen)}", file=sys.stderr)
        two = f"{fault.two} ({overlap:.2f} s)" if overlap else fault.two
        yield [fault.title, fault.holder, fault.waiters, f"{gap:.1f}", two]


def show_losses(found: Losses) -> list[str]:
    return [
        f"{found.replicas}",
        f"{found.failovers}",
        f"{found.struck}",
        f"{found.believed:,}",
        f"{found.lost:,}",
        f"{found.takes * 1000:.1f}",
    ]


def fencing(sections: int, seed: int, only: str) -> bool:
    """Show the table. Return whether no update was lost with a fence."""
    print(f"seed {seed}", flush=True)
    logging.getLogger("django_redislock").addHandler(logging.NullHandler())  # each force_release() is logged
    well, lines = True, [UPDATES]
    for database, way, found in compare(sections, seed, only):
        lines.append(show_updates(database, way, found))
        print("  ".join(lines[-1]), file=sys.stderr, flush=True)
        for violation in found.violations:
            print(f"{database}, {way}: {violation}", file=sys.stderr)
        well = well and not (way == "fenced" and (found.lost or found.violations))
    show(lines)
    return well


def show_updates(database: str, way: str, found: Figures) -> list[str]:
    counts = [found.sections, found.strikes, found.lost, found.refused, found.told]
    return [database, TITLES[way], *(f"{count:,}" for count in counts), f"{found.wait:.1f}"]


def show(lines: list[list[str]]) -> None:
    """Print a simple table in reStructuredText."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rule = "  ".join("=" * width for width in widths)
    print(rule)
    for number, line in enumerate(lines):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if number in (0, len(lines) - 1):
            print(rule, flush=True)


def soak(launcher: Launcher, seed: int, minutes: float, processes: int, locks: int) -> tuple[int, bool]:
    """One run with a fault each second. Return how many sections were entered, and whether all was well."""
    print(f"seed {seed}", flush=True)
    with redis_server() as server, trial(
        launcher, server, workers=processes, proxied=range(0, processes, 4), spared=range(processes // 2), seed=seed,
        holds=[0.0] * 999 + [0.3], names=[f"lock{one}" for one in range(locks)],
    ) as run:  # fmt: skip
        half = minutes * 60 / 2
        with watching(run.look_at_spared) as clients:
            faults = strike_every_second(run, half)
            with watching(run.look_at_server) as of_server:
                faults += strike_every_second(run, half, spare=ANEW)
        begun = f"{minutes:g} minutes, {processes} processes, {locks} locks, {faults} faults"
        return conclude(run, begun, lambda: clients.growth() + of_server.growth())


def show_growth(grown: list[Growth]) -> bool:
    """Whether nothing has grown."""
    show([["", "early", "late", "may grow by"],
          *([one.what, f"{one.early:.1f}", f"{one.late:.1f}", f"{BOUNDS[one.what]}"] for one in grown)])  # fmt: skip
    leaks = [one.what for one in grown if one.leaks]
    print("grows: " + ", ".join(leaks) if leaks else "nothing grows", flush=True)
    return not leaks


def conclude(run: Trial, begun: str, grown: Callable[[], list[Growth]]) -> tuple[int, bool]:
    """End the run and print the result. Return how many sections were entered, and whether all was well."""
    run.obtained(3)
    violations, history = run.finish(), run.history
    for violation in violations:
        print(violation)
    entered = len(history.obtained)
    print(f"{begun}: {entered:,} critical sections, {history.count('lost'):,} of them lost, {len(violations)} "
          f"violations, two held at once for {history.longest_overlap():.3f} s at most, nobody "
          f"for {history.longest_gap():.1f} s")  # fmt: skip
    well = show_growth(grown())
    return entered, not violations and well


def soak_cluster(launcher: Launcher, seed: int, minutes: float, processes: int, locks: int) -> tuple[int, bool]:
    """The same on a cluster: one fault of its nodes after the other, and at the same time faults of processes."""
    print(f"seed {seed}", flush=True)
    with partitionable() as server, trial(
        launcher, server, workers=processes, spared=range(processes // 2), seed=seed, holds=[0.0] * 999 + [0.3, 4.0],
        names=[f"lock{one}" for one in range(locks)], ttl=CLUSTER_TTL,
    ) as run:  # fmt: skip
        with watching(run.look_at_spared) as clients:
            faults = strike_in_turn(run, minutes * 60)
        struck = f"{sum(faults.values())} faults {dict(faults)}"
        return conclude(run, f"{minutes:g} minutes, {processes} processes, {locks} locks, {struck}", clients.growth)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("what", choices=["table", "soak", "replicas", "fencing"])
    parser.add_argument("--times", type=int, default=3, help="runs of each fault, of which the worst counts")
    parser.add_argument("--failovers", type=int, default=200, help="of ``replicas``, without and with one")
    parser.add_argument("--only", default="", help="faults whose function is called like this (a regular "
                        "expression); of ``fencing``, databases whose name begins like this")  # fmt: skip
    parser.add_argument("--cluster", action="store_true", help="soak a cluster")
    parser.add_argument("--sections", type=int, help="so many at least, by more than one run")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each run")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--locks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    given = parser.parse_args()
    if given.what == "replicas":
        show([LOSSES, *(show_losses(count_losses(replicas, given.failovers)) for replicas in (0, 1))])
        return
    if given.what == "fencing":
        sys.exit(not fencing(given.sections or 100_000, given.seed, given.only))
    launcher = Launcher()
    try:
        if given.what == "table":
            show([COLUMNS, *rows(launcher, given.times, given.only)])
            return
        so_far, well = 0, True
        for seed in itertools.count(given.seed):
            way = soak_cluster if given.cluster else soak
            entered, fine = way(launcher, seed, given.minutes, given.processes, given.locks)
            so_far, well = so_far + entered, well and fine
            print(f"{so_far:,} critical sections so far", flush=True)
            if so_far >= (given.sections or 1):
                sys.exit(not well)
    finally:
        launcher.close()


if __name__ == "__main__":
    main()
