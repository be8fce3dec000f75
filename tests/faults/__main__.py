"""``python -m tests.faults table``: README's table "What happens when", measured.

``python -m tests.faults soak --sections 1000000``: faults at random, until so many critical sections were entered.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from time import monotonic

import django

sys.path.insert(0, "testproject")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from redisserver import redis_server  # noqa: E402

from .arena import Nursery, arena  # noqa: E402
from .faults import FAULTS, strike_at_random  # noqa: E402

COLUMNS = ["fault", "the holder sees", "waiters", "free, s", "two at once"]
# long ones, so that a fault meets a holder; short ones, so that it meets a handoff
HOLDS = [0.0] * 20 + [0.01] * 10 + [0.1] * 4 + [0.5] * 2


def rows(nursery: Nursery, times: int) -> Iterator[list[str]]:
    for fault in FAULTS:
        gap = overlap = 0.0
        seen: Counter[str] = Counter()
        for seed in range(times):
            place = fault.server() if fault.server else redis_server()
            with place as server, arena(
                nursery, server, proxied=[0] if fault.network else [], holds=HOLDS, seed=seed
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


def table(nursery: Nursery, times: int) -> None:
    lines = [COLUMNS, *rows(nursery, times)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    rule = "  ".join("=" * width for width in widths)
    print(rule)
    for number, line in enumerate(lines):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if number in (0, len(lines) - 1):
            print(rule)


def soak(nursery: Nursery, sections: int, seed: int) -> None:
    entered = lost = wrong = 0
    overlap = 0.0
    began = monotonic()
    while entered < sections:
        print(f"seed {seed}", flush=True)
        with redis_server() as server, arena(
            nursery, server, workers=3, proxied=[0], seed=seed, threads=2, tasks=3,
            holds=[0.0] * 999 + [0.3], places=[(f"{name}{number}", name == "fair") for name in ("fair", "plain")
                                              for number in range(3)] + [("mixed", True), ("mixed", False)],
        ) as run:  # fmt: skip
            strike_at_random(run, 10, rest=8000)
            found = run.finish()
            for violation in found:
                print(violation, flush=True)
            entered += len(run.history.obtained)
            lost += run.history.count("lost")
            wrong += len(found)
            overlap = max(overlap, run.history.longest_overlap())
        print(f"{entered} sections in {monotonic() - began:.0f} s, {lost} lost, {wrong} violations, "
              f"longest announced overlap {overlap:.3f} s", flush=True)  # fmt: skip
        seed += 1
    sys.exit(wrong > 0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("what", choices=["table", "soak"])
    parser.add_argument("--times", type=int, default=3, help="runs of each fault, of which the worst counts")
    parser.add_argument("--sections", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    given = parser.parse_args()
    nursery = Nursery()
    try:
        table(nursery, given.times) if given.what == "table" else soak(nursery, given.sections, given.seed)
    finally:
        nursery.close()


if __name__ == "__main__":
    main()
