"""Processes that check members of one pool out and in again, as often as possible."""

from __future__ import annotations

from collections import Counter
from time import monotonic

from django_redislock import LockPool

from .contenders import Entrant
from .figures import Figures, Section, violations
from .report import Row
from .worker import Worker
from .workers import Bench

WARM_UP = 20  # check-outs
TTL = 30  # seconds

ROWS = (
    Row("per_second", "check-outs/s", "{:.0f}"),
    Row("round_trips", "round trips per check-out and -in", "{:.2f}"),
    Row("uses_min", "uses of a member: fewest", "{:d}"),
    Row("uses_max", "uses of a member: most", "{:d}"),
    Row("held_twice", "times that a member was held twice", "{:d}"),
)


class OurPool(Entrant):
    """The only contender."""

    key = "LockPool"
    on_cluster = False


KINDS = (OurPool,)


async def use(worker: Worker, members: int, hold: float, seconds: float) -> list[Section]:
    """Check out and in for ``seconds``. The first process fills the pool; the others wait for its members.

    The name in a section is the number of a member.
    """
    pool = LockPool("bench")

    async def turn(hold: float) -> Section:
        asked = monotonic()
        member = await pool.aacquire(ttl=TTL) if worker.loop else pool.acquire(ttl=TTL)
        got = monotonic()
        if hold:
            await worker.sleep(hold)
        section = Section(worker.number, int(member.key), asked, got, monotonic())
        if worker.loop:
            await member.arelease()
        else:
            member.release()
        return section

    if worker.number == 0:
        await worker.block(pool.assign, [str(number) for number in range(members)])
    for _ in range(WARM_UP):
        await turn(0)
    await worker.ready()
    log, end = [], monotonic() + seconds
    while monotonic() < end:
        log.append(await turn(hold))
    return log


def measure(
    bench: Bench, *, procs: int = 50, members: int = 1000, hold_ms: float = 0.0, seconds: float = 10.0
) -> dict[str, Figures]:
    """``seconds`` with fresh processes."""
    [key] = bench.kinds
    bench.tell(key)
    with bench.workers(procs) as workers:
        logs = bench.call(key, workers, use, members, hold_ms / 1000, seconds, seconds=seconds)
        requests = bench.observer.read().requests
    sections = [section for log in logs for section in log]
    number = len(sections)
    uses = Counter(dict.fromkeys(range(members), 0))
    uses.update(section.name for section in sections)
    spent = max(section.leaving for section in sections) - min(section.asked for section in sections)
    return {
        key: {
            "check_outs": number,
            "per_second": number / spent,
            "round_trips": requests / number,
            "uses_min": min(uses.values()),
            "uses_max": max(uses.values()),
            "held_twice": violations(sections),
        }
    }
