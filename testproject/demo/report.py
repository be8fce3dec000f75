"""The table, and the verdict under it."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .facts import Facts, percentile

ORDER = (
    "Order inversions: requests served while one that had asked earlier still waited. Both orders are Redis's own, "
    "over all processes: asked = the first try for the lock (ours draws a ticket), served = the one that got it (ours: "
    "the fence)."
)
COLUMNS = (
    "requests",
    "sold",
    "refused\n(423)",
    "over-\nsold",
    "paid\ntwice",
    "wait\np50 ms",
    "wait\np99 ms",
    "order in-\nversions",
)


def table(sales: list[Facts], left_out: list[str]) -> Table:
    """One line for each sale. Requests that are neither sold nor refused came too late: sold out."""
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    result.add_column("")
    for column in COLUMNS:
        result.add_column(column, justify="right", no_wrap=True)
    for facts in sales:
        result.add_row(
            facts.title,
            str(facts.requests),
            str(facts.sold),
            str(facts.refused),
            _judged(facts.oversold),
            _judged(facts.charged_twice),
            _ms(percentile(facts.waits, 50)),
            _ms(percentile(facts.waits, 99)),
            "-" if facts.inversions is None else str(facts.inversions),
        )
    for title in left_out:
        result.add_row(f"{title} (needs REDIS_URL)", *"-" * len(COLUMNS))
    return result


def _judged(count: int) -> str:
    return f"[{'bold red' if count else 'green'}]{count}[/]"


def show(console: Console, sales: list[Facts], left_out: list[str], problems: list[str]) -> None:
    """Print table, explanation, the locks seen in the sale with ours, and the verdict."""
    console.print()
    console.print(table(sales, left_out))
    console.print()
    console.print(ORDER, style="dim", highlight=False)
    for facts in [facts for facts in sales if facts.listing]:
        console.print(f"\n[bold]$ manage.py redislocks list[/]  (in the middle of the sale with {facts.title})")
        console.print(facts.listing.rstrip(), markup=False, highlight=False, soft_wrap=True)
    console.print()
    for problem in problems:
        console.print(f"[bold red]FAILED[/] {escape(problem)}", highlight=False, soft_wrap=True)
    if not problems:
        console.print("[bold green]OK[/] With a lock nothing was oversold or paid twice, and Lock kept the order.")


def as_json(sales: list[Facts], left_out: list[str], problems: list[str]) -> dict[str, Any]:
    """The same as JSON, for programs."""
    return {
        "ok": not problems,
        "problems": problems,
        "left_out": left_out,
        "sales": [
            {
                **{key: value for key, value in vars(facts).items() if key != "waits"},
                "oversold": facts.oversold,
                "wait_p50_ms": _number(percentile(facts.waits, 50)),
                "wait_p99_ms": _number(percentile(facts.waits, 99)),
            }
            for facts in sales
        ],
    }


def _number(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}"
