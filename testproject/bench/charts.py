"""Figures as bar charts in SVG, for pages with a light and with a dark background. Needs the extra ``charts``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure


class Chart(NamedTuple):
    """One figure of all contenders. ``more``: is better, else less is."""

    file: str
    title: str
    key: str
    more: bool = False


CHARTS = (
    Chart("throughput", "Sections a second", "sections_per_second", more=True),
    Chart("wait", "Wait, 99th percentile, ms", "wait_p99_ms"),
    Chart("longest-wait", "Longest wait, ms", "wait_max_ms"),
    Chart("overtaking", "Sections that overtook somebody, %", "inversions_percent"),
)
OURS, OTHERS = "#0f9d7f", "#8a9199"
TEXT = {"light": "#24292f", "dark": "#e6edf3"}  # the page's background shows through


def draw(contenders: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Write ``throughput-light.svg`` and its like into the folder."""
    for chart in CHARTS:
        values = {name: figures[chart.key] for name, figures in contenders.items() if figures[chart.key] is not None}
        for theme, color in TEXT.items():
            _bars(chart, values, color, folder / f"{chart.file}-{theme}.svg")


def _bars(chart: Chart, values: Mapping[str, float], color: str, path: Path) -> None:
    # text stays text, and the same figures give the same file
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lockbench", "font.size": 11}):
        figure = Figure(figsize=(6.4, 0.7 + 0.42 * len(values)), layout="constrained")
        axes = figure.add_subplot()
        colors = [OURS if name == "Lock" else OTHERS for name in values]
        bars = axes.barh(list(values), list(values.values()), color=colors, height=0.66)
        axes.bar_label(bars, fmt=_number, padding=5, color=color)
        better = "more" if chart.more else "less"
        axes.set_title(f"{chart.title} ({better} is better)", loc="left", color=color, fontsize=12)
        axes.invert_yaxis()  # the first one at the top
        axes.margins(x=0.12)
        axes.tick_params(left=False, bottom=False, labelbottom=False, labelcolor=color)
        axes.spines[:].set_visible(False)
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
