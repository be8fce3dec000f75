"""A run's figures as a table (one row per figure, one column per contender) and as charts (extra ``charts``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table


class Row(NamedTuple):
    """A figure's key, its label, and its format."""

    key: str
    title: str
    form: str


def show(console: Console, result: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Print the table, what went wrong, and the machine's description."""
    contenders = result["contenders"]
    flags = "".join(f" --{name}" for name in ("asyncio", "cluster") if result[name])
    options = ", ".join(f"{key} {value}" for key, value in result["options"].items() if value is not False)
    table = Table(title=escape(f"lockbench {result['mode']}{flags} ({options})"), title_justify="left")
    table.add_column("")
    for key in contenders:
        table.add_column(key, justify="right", overflow="fold")
    for row in rows:
        values = [figures[row.key] for figures in contenders.values()]
        if any(value is not None for value in values):
            table.add_row(row.title, *("-" if value is None else row.form.format(value) for value in values))
    console.print(table)
    for key, figures in contenders.items():
        for text, times in figures["troubles"].items():
            console.print(f"{key}: {text} ({times} times)", markup=False, highlight=False)
    for note in result["notes"]:
        console.print(note, markup=False, highlight=False)
    machine = " · ".join(f"{what} {value}" for what, value in result["machine"].items())
    console.print(machine, markup=False, highlight=False, style="dim")


CHARTS = {
    "throughput": ("sections_per_second", "Sections a second (more is better)"),
    "wait": ("wait_p99_ms", "Wait, 99th percentile, ms (less is better)"),
    "longest-wait": ("wait_max_ms", "Longest wait, ms (less is better)"),
    "overtaking": ("inversions_percent", "Sections that overtook somebody, % (less is better)"),
}
OURS, OTHERS = "#0f9d7f", "#8a9199"
TEXT = {"light": "#24292f", "dark": "#e6edf3"}  # the page's background shows through


def draw(contenders: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Write ``throughput-light.svg`` and its like into the folder, for pages with a light and with a dark
    background."""
    for file, (key, title) in CHARTS.items():
        values = {name: figures[key] for name, figures in contenders.items()}
        for theme, color in TEXT.items():
            _draw_bars(title, values, color, folder / f"{file}-{theme}.svg")


def _draw_bars(title: str, values: Mapping[str, float], color: str, path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # text stays text, and the same figures give the same file
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lockbench", "font.size": 11}):
        figure = Figure(figsize=(6.4, 0.7 + 0.42 * len(values)), layout="constrained")
        axes = figure.add_subplot()
        colors = [OURS if name == "Lock" else OTHERS for name in values]
        bars = axes.barh(list(values), list(values.values()), color=colors, height=0.66)
        labels = [f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in values.values()]
        axes.bar_label(bars, labels, padding=5, color=color)
        axes.set_title(title, loc="left", color=color, fontsize=12)
        axes.invert_yaxis()  # the first one at the top
        axes.margins(x=0.12)
        axes.tick_params(left=False, bottom=False, labelbottom=False, labelcolor=color)
        axes.spines[:].set_visible(False)
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
