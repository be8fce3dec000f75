"""The table, and the verdict under it."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.figures import Figures

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


def table(sales: list[Figures], left_out: list[str]) -> Table:
    """One line for each sale. Requests that are neither sold nor refused came too late: sold out."""
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    result.add_column("")
    for column in COLUMNS:
        result.add_column(column, justify="right", no_wrap=True)
    for facts in sales:
        counts = [str(facts[key]) for key in ("requests", "sold", "refused")]
        judged = [f"[{'bold red' if facts[key] else 'green'}]{facts[key]}[/]" for key in ("oversold", "charged_twice")]
        figures = [facts[key] for key in ("wait_p50_ms", "wait_p99_ms", "inversions")]
        shown = ["-" if figure is None else f"{figure:.0f}" for figure in figures]
        result.add_row(facts["title"], *counts, *judged, *shown)
    for title in left_out:
        result.add_row(f"{title} (needs REDIS_URL)", *"-" * len(COLUMNS))
    return result


def show(console: Console, sales: list[Figures], left_out: list[str], problems: list[str]) -> None:
    """Print table, explanation, the locks seen in the sale with ours, and the verdict."""
    console.print()
    console.print(table(sales, left_out))
    console.print()
    console.print(ORDER, style="dim", highlight=False)
    for facts in [facts for facts in sales if facts["listing"]]:
        console.print(f"\n[bold]$ manage.py redislocks list[/]  (in the middle of the sale with {facts['title']})")
        console.print(facts["listing"].rstrip(), markup=False, highlight=False, soft_wrap=True)
    console.print()
    for problem in problems:
        console.print(f"[bold red]FAILED[/] {escape(problem)}", highlight=False, soft_wrap=True)
    if not problems:
        console.print("[bold green]OK[/] With a lock nothing was oversold or paid twice, and Lock kept the order.")
