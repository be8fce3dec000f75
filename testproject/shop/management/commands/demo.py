"""``manage.py demo``: what happens in a ticket shop without a lock, with django-redis's lock, and with ours."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

try:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
except ImportError:
    sys.exit('The demo needs rich. From the repository\'s root: python -m pip install -e ".[demo]"')

from demo import report
from demo.facts import Facts
from demo.sale import ASYNCIO_LOCK, CACHE_LOCK, CLUSTER_LOCK, LOCK, NO_LOCK, Sale, Way
from demo.servers import ServerError, Servers
from demo.stage import database, interruptible, own_keys
from django_redislock import LockUnavailable, list_locks
from shop.models import Event
from shop.settings import CLUSTER

PROCESSES = 3  # with a real Redis
SVG_WIDTH = 150  # columns
INTERRUPTED = 130  # what shells return for Ctrl-C


class Command(BaseCommand):
    help = (
        "Sells seats over HTTP to many buyers at once: without a lock, with cache.lock of django-redis, and with Lock. "
        "Exits with 0 when the locked sales oversold nothing and Lock kept the order, else with 1. Needs no Redis, but "
        "then there is no cache.lock; with REDIS_URL in the environment it uses that one, and several server "
        "processes; if it ends in ?cluster, its Redis Cluster, with redis-py's lock for cache.lock. With --asgi the "
        "views are coroutines, and redis.asyncio's lock stands for cache.lock."
    )

    requires_system_checks = []  # this command reports a wrong REDIS_URL itself

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--buyers", type=_number(2, 200), default=40, help="concurrent buyers, 2 to 200 (40)")
        parser.add_argument("--seats", type=_number(1, 1000), default=400, help="seats in each sale, 1 to 1000 (400)")
        parser.add_argument("--asgi", action="store_true", help="async views on uvicorn instead of threads")
        parser.add_argument("--serve", action="store_true", help="leave the shop running afterwards, until Ctrl-C")
        parser.add_argument("--json", type=_file, metavar="FILE", help="write the figures to this file, too")
        parser.add_argument("--svg", type=_file, metavar="FILE", help="draw what it prints in this file, too")
        parser.add_argument("--sabotage", action="store_true", help="force-release the seats' locks all the time")

    def handle(self, *, buyers: int, seats: int, asgi: bool, serve: bool, sabotage: bool, **options: Any) -> None:
        if asgi:
            _require_uvicorn()
        self.stdout.ending = ""
        out, svg = cast("IO[str]", self.stdout), options["svg"]
        if svg:
            # not a terminal: the picture would contain everything that the progress bar has ever shown
            console = Console(file=out, record=True, width=SVG_WIDTH, force_terminal=False)
        else:
            console = Console(file=out, no_color=options["no_color"] or None)
        try:
            with ExitStack() as stack:
                redis = bool(os.environ.get("REDIS_URL"))
                servers = _open_shop(stack, redis=redis, asgi=asgi, sabotage=sabotage)
                console.print(_welcome(servers, buyers, seats, redis=redis, asgi=asgi), highlight=False)
                other = ASYNCIO_LOCK if asgi else CLUSTER_LOCK if CLUSTER else CACHE_LOCK
                ways = [NO_LOCK, other, LOCK] if redis else [NO_LOCK, LOCK]
                left_out = [] if redis else [other.title]
                sales = _sell(console, servers, ways, buyers, seats)
                problems = [problem for facts in sales for problem in facts.problems()]
                report.show(console, sales, left_out, problems)
                if options["json"]:
                    figures = report.as_json(sales, left_out, problems)
                    options["json"].write_text(json.dumps(figures, indent=2) + "\n")
                if svg:
                    console.save_svg(str(svg), title="python testproject/manage.py demo")
                if any(facts.errors for facts in sales) and servers.said():
                    self.stderr.write(f"The servers said at last:\n{servers.said()}")
                if serve:
                    _serve(console, servers, seats)
        except KeyboardInterrupt:
            self.stderr.write("Interrupted.")
            sys.exit(INTERRUPTED)
        if problems:
            sys.exit(1)


def _require_uvicorn() -> None:
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise CommandError(
            '--asgi needs uvicorn. From the repository\'s root: python -m pip install -e ".[demo]"'
        ) from error


def _open_shop(stack: ExitStack, *, redis: bool, asgi: bool, sabotage: bool) -> Servers:
    """Set up what the sales need; ``stack`` removes it again."""
    try:
        stack.enter_context(interruptible())
        stack.enter_context(own_keys() if redis else nullcontext(list_locks()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redislock-demo-")))
        path = stack.enter_context(database(folder / "shop.sqlite3"))
        processes = PROCESSES if redis else 1
        return stack.enter_context(Servers(processes, path, folder / "log", asgi=asgi, sabotage=sabotage))
    except (LockUnavailable, ImproperlyConfigured, ServerError, ValueError) as error:
        raise CommandError(f"The demo cannot start: {error}") from error


def _welcome(servers: Servers, buyers: int, seats: int, *, redis: bool, asgi: bool) -> str:
    count = len(servers.ports)
    what = f"{'' if asgi else 'threaded '}server process{'es' if count > 1 else ''}"
    how = " (async views on uvicorn)" if asgi else ""
    where = (
        f"locks in the Redis {'Cluster ' if CLUSTER else ''}of REDIS_URL"
        if redis
        else "locks in its memory (set REDIS_URL for a real Redis and several processes)"
    )
    return f"{seats} seats, {buyers} buyers, every fourth of them impatient; {count} {what}{how}, {where}"


def _sell(console: Console, servers: Servers, ways: list[Way], buyers: int, seats: int) -> list[Facts]:
    """One sale after the other, under a progress bar."""
    columns = (TextColumn("{task.description:13}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    sales = []
    with Progress(*columns, console=console) as progress:
        for way in ways:
            sale = Sale(way, servers, buyers=buyers, seats=seats)
            task = progress.add_task(way.title, total=sale.total)
            sales.append(sale.run(partial(_advance, progress, task)))
    return sales


def _advance(progress: Progress, task: TaskID, done: int) -> None:
    progress.update(task, completed=done)


def _serve(console: Console, servers: Servers, seats: int) -> None:
    """Leave the shop open until Ctrl-C, with a new event to buy seats for."""
    Event(name="Tonight", seats=seats, remaining=seats).save()
    connection.close()
    console.print(
        f"The shop is open at {' and '.join(servers.urls)} (Ctrl-C closes it)", highlight=False, soft_wrap=True
    )
    try:
        while servers.alive():
            time.sleep(0.5)
        raise CommandError("A server process has ended.")
    except KeyboardInterrupt:
        console.print("Closed.")


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ArgumentTypeError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return parse


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ArgumentTypeError(f"must be a file in a folder that exists, not {text!r}")
    return path
