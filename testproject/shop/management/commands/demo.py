"""``manage.py demo``: what happens in a ticket shop without a lock, with django-redis's lock, and with ours."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import redis
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.figures import Figures
from demo.sale import Way, sell
from demo.server import Servers, running_servers
from shop.management.arguments import new_file, number
from shop.settings import REDIS_URL

PROCESSES = 3  # with a real Redis
SVG_WIDTH = 150  # columns
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


class Command(BaseCommand):
    help = (
        "Sells seats over HTTP to many buyers at once: without a lock, with cache.lock of django-redis, and with Lock. "
        "Exits with 0 when the locked sales oversold nothing and Lock kept the order, else with 1. Needs no Redis, but "
        "then there is no cache.lock; with REDIS_URL in the environment it uses that one, and several server "
        "processes. With --asgi the views are coroutines, and redis.asyncio's lock stands for cache.lock."
    )

    requires_system_checks = []  # this command reports a wrong REDIS_URL itself

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--buyers", type=number(int, 2, 200), default=40, help="concurrent buyers, at most 200 (40)"
        )
        parser.add_argument(
            "--seats", type=number(int, 1, 1000), default=400, help="seats in each sale, at most 1000 (400)"
        )
        parser.add_argument("--asgi", action="store_true", help="async views on uvicorn instead of threads")
        parser.add_argument("--json", type=new_file, metavar="FILE", help="write the figures to this file, too")
        parser.add_argument("--svg", type=new_file, metavar="FILE", help="draw what it prints in this file, too")

    def handle(self, *, buyers: int, seats: int, asgi: bool, **options: Any) -> None:
        self.stdout.ending = ""
        out, svg = cast("IO[str]", self.stdout), options["svg"]
        if svg:
            # not a terminal: the picture would contain everything that the progress bar has ever shown
            console = Console(file=out, record=True, width=SVG_WIDTH, force_terminal=False)
        else:
            console = Console(file=out, no_color=options["no_color"] or None)
        other = Way("redis.asyncio" if asgi else "cache.lock", "-cache-lock")
        ways = [Way("no lock", "-unlocked", locked=False), *([other] if REDIS_URL else []), Way("Lock", "", ours=True)]
        try:
            with _open_shop(asgi=asgi) as servers:
                console.print(_welcome(buyers, seats, asgi=asgi), highlight=False)
                sales = _sell(console, servers, ways, buyers, seats)
                problems = [problem for facts in sales for problem in facts["problems"]]
                left_out = [] if REDIS_URL else [other.title]
                _show(console, sales, left_out, problems)
                if options["json"]:
                    figures = {"ok": not problems, "problems": problems, "left_out": left_out, "sales": sales}
                    options["json"].write_text(json.dumps(figures, indent=2) + "\n")
                if svg:
                    console.save_svg(str(svg), title="python testproject/manage.py demo")
                if any(facts["errors"] for facts in sales) and servers.said():
                    self.stderr.write(f"The servers said at last:\n{servers.said()}")
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=130) from None
        if problems:
            sys.exit(1)


@contextmanager
def _open_shop(*, asgi: bool) -> Iterator[Servers]:
    """Set up what the sales need, and remove it again: a database, a key prefix in Redis, servers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clean up then, too
    try:
        if REDIS_URL:
            redis.Redis.from_url(REDIS_URL).ping()
    except (redis.RedisError, ValueError) as error:
        raise CommandError(f"The demo cannot start: {error}") from error
    prefix = f"shop-demo-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="redislock-demo-") as name:
        folder = Path(name)
        connection.settings_dict["NAME"] = str(folder / "shop.sqlite3")
        os.environ |= {"SHOP_DATABASE": str(folder / "shop.sqlite3"), "SHOP_KEY_PREFIX": prefix}
        os.environ |= {"SHOP_ASYNC": "yes" if asgi else "", "DJANGO_SETTINGS_MODULE": "shop.settings"}
        call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
        try:
            with running_servers(PROCESSES if REDIS_URL else 1, folder) as servers:
                yield servers
        finally:
            connection.close()
            if REDIS_URL:  # most keys expire, but a few are meant to stay, and nobody will use this prefix again
                with suppress(redis.RedisError), redis.Redis.from_url(REDIS_URL) as client:
                    for key in client.scan_iter(f"{prefix}*", count=1000):
                        client.delete(key)


def _welcome(buyers: int, seats: int, *, asgi: bool) -> str:
    what = "server processes" if REDIS_URL else "server process"
    what = f"{what} (async views on uvicorn)" if asgi else f"threaded {what}"
    if REDIS_URL:
        how = f"{PROCESSES} {what}, locks in the Redis of REDIS_URL"
    else:
        how = f"1 {what}, locks in its memory (set REDIS_URL for a real Redis and several processes)"
    return f"{seats} seats, {buyers} buyers, every fourth of them impatient; {how}"


def _sell(console: Console, servers: Servers, ways: list[Way], buyers: int, seats: int) -> list[Figures]:
    """One sale after the other, under a progress bar."""
    columns = (TextColumn("{task.description:13}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    sales = []
    with Progress(*columns, console=console) as progress:
        for way in ways:
            task = progress.add_task(way.title)

            def advance(done: int, of: int, task: Any = task) -> None:
                progress.update(task, completed=done, total=of)

            sales.append(sell(way, servers.ports, buyers=buyers, seats=seats, on_progress=advance))
    return sales


def _table(sales: list[Figures], left_out: list[str]) -> Table:
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


def _show(console: Console, sales: list[Figures], left_out: list[str], problems: list[str]) -> None:
    """Print table, explanation, the locks seen in the sale with ours, and the verdict."""
    console.print()
    console.print(_table(sales, left_out))
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
