"""A run's figures as a table: one row per figure, one column per contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table


class Row(NamedTuple):
    """A figure's key, its label, and its format."""

    key: str
    title: str
    form: str


def label(mode: str, *, coroutines: bool = False, cluster: bool = False) -> str:
    return f"{mode}{' --asyncio' if coroutines else ''}{' --cluster' if cluster else ''}"


def show(console: Console, result: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Print the table, what went wrong, and the machine's description."""
    contenders = result["contenders"]
    options = ", ".join(f"{key} {value}" for key, value in result["options"].items())
    mode = label(result["mode"], coroutines=result["asyncio"], cluster=result["cluster"])
    table = Table(title=escape(f"lockbench {mode} ({options})"), title_justify="left")
    table.add_column("")
    for key in contenders:
        table.add_column(key, justify="right", overflow="fold")
    for row in rows:
        values = [figures.get(row.key) for figures in contenders.values()]
        if any(value is not None for value in values):
            table.add_row(row.title, *("-" if value is None else row.form.format(value) for value in values))
    console.print(table)
    for key, figures in contenders.items():
        for text, times in figures.get("troubles", {}).items():
            console.print(f"{key}: {text} ({times} times)", markup=False, highlight=False)
    for note in result["notes"]:
        console.print(note, markup=False, highlight=False)
    machine = " · ".join(f"{what} {value}" for what, value in result["machine"].items())
    console.print(machine, markup=False, highlight=False, style="dim")
