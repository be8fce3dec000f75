"""``manage.py lockbench``: measures our lock against others, on a private redis-server or cluster."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console

from bench.report import label, show
from bench.run import CLUSTER_OPTIONS, MODES, run
from bench.workers import BenchError
from redisserver import NoServerError

WIDTH = 132  # if the output is not a terminal
OPTIONS = ("procs", "hold_ms", "seconds", "waiters", "members", "rounds", "names", "locks", "masters")


class Command(BaseCommand):
    help = (
        "Measures our lock against redis-py's, python-redis-lock and a bare floor, interleaved in one run, on a "
        "private redis-server, or (--cluster) on a private Redis Cluster, that it starts itself."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "mode",
            choices=MODES,
            help="uncontended: one process alone. contended: many processes on one lock. idle: what waiting costs. "
            "drain: many of one process get the lock one after the other. dogpile: many of many processes want one "
            "value that is not in the cache. pool: many processes check its members out and in. load: what many locks "
            "and waiters cost the server.",
        )
        parser.add_argument("--procs", type=int, metavar="N", help=f"Processes. {_defaults('procs')}")
        parser.add_argument("--asyncio", action="store_true", help="Coroutines use the locks, not threads.")
        parser.add_argument("--cluster", action="store_true", help="uncontended, contended, load: on a Redis Cluster.")
        parser.add_argument(
            "--masters", type=int, metavar="N", help=f"Of the cluster. Default: {CLUSTER_OPTIONS['masters']}."
        )
        parser.add_argument(
            "--hold-ms", type=float, metavar="X", help=f"Work inside; dogpile: for the value. {_defaults('hold_ms')}"
        )
        parser.add_argument(
            "--seconds",
            type=float,
            metavar="S",
            help=f"How long to measure; load: to rest at the end. {_defaults('seconds')}",
        )
        parser.add_argument(
            "--waiters", type=int, metavar="N", help=f"Waiting in a process; load: in all. {_defaults('waiters')}"
        )
        parser.add_argument("--members", type=int, metavar="N", help=f"Of the pool. {_defaults('members')}")
        parser.add_argument("--names", type=int, metavar="N", help=f"Locks to contend for. {_defaults('names')}")
        parser.add_argument("--locks", type=int, metavar="N", help=f"Held. {_defaults('locks')}")
        parser.add_argument("--rounds", type=int, metavar="N", help=f"Turns of each. {_defaults('rounds')}")
        parser.add_argument(
            "--let-cpus-sleep", action="store_true", help="uncontended: do not keep the CPUs awake meanwhile."
        )
        parser.add_argument("--only", default="", metavar="NAME,...", help="The contenders; without it: all.")
        parser.add_argument(
            "--other",
            type=Path,
            metavar="PATH",
            help="contended: measure the Lock of another checkout, too; PATH is the folder with its django_redislock.",
        )
        parser.add_argument("--other-fair", action="store_true", help="Of that one, measure FairLock.")
        parser.add_argument("--json", action="store_true", help="Print all figures as JSON.")
        parser.add_argument(
            "--charts",
            type=Path,
            metavar="FOLDER",
            help="contended: draw some of the figures, as SVG, in this folder (extra charts).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        only = [name for name in options["only"].split(",") if name]
        chosen = {name: options[name] for name in OPTIONS}
        draw = options["charts"] and _drawer(options["mode"], options["charts"])
        # timeout(1) and CI end this with SIGTERM: clean up then, too
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            with Console(stderr=True).status("lockbench: starting") as status:
                result = run(
                    options["mode"],
                    chosen,
                    only,
                    lambda text: status.update(f"lockbench {options['mode']}: {text}"),
                    coroutines=options["asyncio"],
                    cluster=options["cluster"],
                    may_sleep=options["let_cpus_sleep"],
                    other=options["other"] and options["other"].resolve(),
                    other_fair=options["other_fair"],
                )
        except (BenchError, NoServerError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=130) from None
        finally:
            signal.signal(signal.SIGTERM, before)
        if draw:
            draw(result["contenders"], options["charts"])
        if options["json"]:
            self.stdout.write(json.dumps(result, indent=2))
            return
        console = Console(file=cast("IO[str]", self.stdout), width=None if self.stdout.isatty() else WIDTH)
        with console.capture() as capture:
            show(console, result, MODES[options["mode"]].rows)
        self.stdout.write(capture.get())


def _drawer(mode: str, folder: Path) -> Callable[[Mapping[str, Mapping[str, Any]], Path], None]:
    """Before anything is measured, refuse charts that could not be drawn."""
    if mode != "contended":
        raise CommandError(f"--charts is for contended, not for {mode}.")
    if not folder.is_dir():
        raise CommandError(f"--charts: {str(folder)!r} is not a folder.")
    try:
        from bench.charts import draw
    except ImportError as error:
        raise CommandError('--charts needs matplotlib: python -m pip install -e ".[charts]"') from error
    return draw


def _defaults(name: str) -> str:
    have = [f"{mode.options[name]:g} for {key}" for key, mode in MODES.items() if name in mode.options]
    have += [
        f"{mode.coroutine_options[name]:g} for {label(key, coroutines=True)}"
        for key, mode in MODES.items()
        if name in mode.coroutine_options
    ]
    return f"Default: {', '.join(have)}."
