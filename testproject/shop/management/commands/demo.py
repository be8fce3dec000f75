"""``manage.py demo``: what happens in a ticket shop without a lock, with django-redis's lock, and with ours."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import IO, Any, cast

import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

try:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
except ImportError:
    sys.exit('The demo needs rich. From the repository\'s root: python -m pip install -e ".[demo]"')

from bench.figures import Figures
from demo.report import show
from demo.sale import Way, sell
from demo.server import Servers, running_servers
from django_redislock import LockUnavailable, list_locks
from shop.settings import REDIS_URL

PROCESSES = 3  # with a real Redis
SVG_WIDTH = 150  # columns
INTERRUPTED = 130  # what shells return for Ctrl-C


class Command(BaseCommand):
    help = (
        "Sells seats over HTTP to many buyers at once: without a lock, with cache.lock of django-redis, and with Lock. "
        "Exits with 0 when the locked sales oversold nothing and Lock kept the order, else with 1. Needs no Redis, but "
        "then there is no cache.lock; with REDIS_URL in the environment it uses that one, and several server "
        "processes. With --asgi the views are coroutines, and redis.asyncio's lock stands for cache.lock."
    )

    requires_system_checks = []  # this command reports a wrong REDIS_URL itself

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--buyers", type=_number(2, 200), default=40, help="concurrent buyers, 2 to 200 (40)")
        parser.add_argument("--seats", type=_number(1, 1000), default=400, help="seats in each sale, 1 to 1000 (400)")
        parser.add_argument("--asgi", action="store_true", help="async views on uvicorn instead of threads")
        parser.add_argument("--json", type=_file, metavar="FILE", help="write the figures to this file, too")
        parser.add_argument("--svg", type=_file, metavar="FILE", help="draw what it prints in this file, too")
        parser.add_argument("--sabotage", action="store_true", help="force-release the seats' locks all the time")

    def handle(self, *, buyers: int, seats: int, asgi: bool, sabotage: bool, **options: Any) -> None:
        if asgi and find_spec("uvicorn") is None:
            raise CommandError('--asgi needs uvicorn. From the repository\'s root: python -m pip install -e ".[demo]"')
        self.stdout.ending = ""
        out, svg = cast("IO[str]", self.stdout), options["svg"]
        if svg:
            # not a terminal: the picture would contain everything that the progress bar has ever shown
            console = Console(file=out, record=True, width=SVG_WIDTH, force_terminal=False)
        else:
            console = Console(file=out, no_color=options["no_color"] or None)
        other = Way("redis.asyncio" if asgi else "cache.lock", "-cache-lock")
        ways = [Way("no lock", "-unlocked"), *([other] if REDIS_URL else []), Way("Lock", "")]
        try:
            with ExitStack() as stack:
                try:
                    servers = stack.enter_context(_open_shop(asgi=asgi, sabotage=sabotage))
                except (LockUnavailable, ImproperlyConfigured, OSError, ValueError) as error:
                    raise CommandError(f"The demo cannot start: {error}") from error
                console.print(_welcome(buyers, seats, asgi=asgi), highlight=False)
                sales = _sell(console, servers, ways, buyers, seats)
                problems = [problem for facts in sales for problem in facts["problems"]]
                left_out = [] if REDIS_URL else [other.title]
                show(console, sales, left_out, problems)
                if options["json"]:
                    figures = {"ok": not problems, "problems": problems, "left_out": left_out, "sales": sales}
                    options["json"].write_text(json.dumps(figures, indent=2) + "\n")
                if svg:
                    console.save_svg(str(svg), title="python testproject/manage.py demo")
                if any(facts["errors"] for facts in sales) and servers.said():
                    self.stderr.write(f"The servers said at last:\n{servers.said()}")
        except KeyboardInterrupt:
            self.stderr.write("Interrupted.")
            sys.exit(INTERRUPTED)
        if problems:
            sys.exit(1)


@contextmanager
def _open_shop(*, asgi: bool, sabotage: bool) -> Iterator[Servers]:
    """Set up what the sales need, and remove it again: a database, a key prefix in Redis, handlers for Ctrl-C, servers.

    SIGINT and SIGTERM raise KeyboardInterrupt, so that either cleans up, even if SIGINT was ignored before.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    list_locks()  # raises if Redis cannot be reached, or there is no memory mode
    prefix = f"shop-demo-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="redislock-demo-") as name:
        folder = Path(name)
        connection.settings_dict["NAME"] = str(folder / "shop.sqlite3")
        os.environ |= {"SHOP_DATABASE": str(folder / "shop.sqlite3"), "SHOP_KEY_PREFIX": prefix}
        os.environ |= {"SHOP_ASYNC": "yes" if asgi else "", "DJANGO_SETTINGS_MODULE": "shop.settings"}
        call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
        try:
            options = ["--sabotage"] if sabotage else []
            with running_servers(PROCESSES if REDIS_URL else 1, folder, *options) as servers:
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
