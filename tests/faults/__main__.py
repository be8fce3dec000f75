"""``python -m tests.faults table``: README's table "What happens when", measured.

``python -m tests.faults soak``: README's table of what ten minutes of faults leave behind. Exits with 1 if anything was
wrong or has grown. ``--sections 1000000``: again and again, until so many critical sections were entered.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator

import django

sys.path.insert(0, "testproject")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from redisserver import redis_server  # noqa: E402

from .faults import ANEW, FAULTS, strike_every_second  # noqa: E402
from .growth import BOUNDS, watching  # noqa: E402
from .trial import Launcher, trial  # noqa: E402

COLUMNS = ["fault", "the holder sees", "waiters", "free, s", "two at once"]
# long ones, so that a fault meets a holder; short ones, so that it meets a handoff
HOLDS = [0.0] * 20 + [0.01] * 10 + [0.1] * 4 + [0.5] * 2


def rows(launcher: Launcher, times: int) -> Iterator[list[str]]:
    for fault in FAULTS:
        gap = overlap = 0.0
        seen: Counter[str] = Counter()
        for seed in range(times):
            place = fault.server() if fault.server else redis_server()
            with place as server, trial(
                launcher, server, proxied=[0] if fault.network else [], holds=HOLDS, seed=seed
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


def show(lines: list[list[str]]) -> None:
    """As a simple table of reStructuredText."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rule = "  ".join("=" * width for width in widths)
    print(rule)
    for number, line in enumerate(lines):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if number in (0, len(lines) - 1):
            print(rule, flush=True)


def soak(launcher: Launcher, seed: int, minutes: float, processes: int, locks: int) -> tuple[int, bool]:
    """One run with a fault each second. How many sections were entered, and whether all was well."""
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
        run.obtained(3)
        violations = run.finish()
    history = run.history
    entered = len(history.obtained)
    for violation in violations:
        print(violation)
    print(f"{minutes:g} minutes, {processes} processes, {locks} locks, {faults} faults: {entered:,} critical sections, "
          f"{history.count('lost'):,} of them lost, {len(violations)} violations, two held at once for "
          f"{history.longest_overlap():.3f} s at most")  # fmt: skip
    grown = clients.growth() + of_server.growth()
    show([["", "early", "late", "may grow by"],
          *([one.what, f"{one.early:.1f}", f"{one.late:.1f}", f"{BOUNDS[one.what]}"] for one in grown)])  # fmt: skip
    leaks = [one.what for one in grown if one.leaks]
    print("grows: " + ", ".join(leaks) if leaks else "nothing grows", flush=True)
    return entered, not violations and not leaks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("what", choices=["table", "soak"])
    parser.add_argument("--times", type=int, default=3, help="runs of each fault, of which the worst counts")
    parser.add_argument("--sections", type=int, default=1, help="so many at least, by more than one run")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each run")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--locks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    given = parser.parse_args()
    launcher = Launcher()
    try:
        if given.what == "table":
            show([COLUMNS, *rows(launcher, given.times)])
            return
        so_far, well = 0, True
        for seed in itertools.count(given.seed):
            entered, fine = soak(launcher, seed, given.minutes, given.processes, given.locks)
            so_far, well = so_far + entered, well and fine
            print(f"{so_far:,} critical sections so far", flush=True)
            if so_far >= given.sections:
                sys.exit(not well)
    finally:
        launcher.close()


if __name__ == "__main__":
    main()
