"""``manage.py lockbench``: measures our lock against others, on a private redis-server or cluster."""

from __future__ import annotations

import json
import signal
import sys
from importlib.util import find_spec
from typing import IO, Any, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console

from bench.report import draw, show
from bench.run import MASTERS, MODES, run
from bench.workers import BenchError
from redisserver import NoServerError
from shop.management.arguments import folder, number

WIDTH = 132  # if the output is not a terminal
OPTIONS: dict[str, dict[str, Any]] = {
    "procs": {"type": number(int, 1), "help": "Processes."},
    "waiters": {"type": number(int, 1), "help": "Waiting in a process; load: in all."},
    "members": {"type": number(int, 1), "help": "Of the pool."},
    "locks": {"type": number(int, 1), "help": "Held."},
    "names": {"type": number(int, 1), "help": "Locks to contend for."},
    "rounds": {"type": number(int, 1), "help": "Turns of each."},
    "hold_ms": {"type": number(float, 0), "help": "Work inside; dogpile: for the value."},
    "seconds": {"type": number(float, 0.1), "help": "How long to measure; load: to rest at the end."},
    "let_cpus_sleep": {"action": "store_true", "help": "Do not keep the CPUs awake meanwhile."},
    "asyncio": {"action": "store_true", "help": "Coroutines use the locks, not threads."},
    "cluster": {"action": "store_true", "help": "On a Redis Cluster."},
    "masters": {"type": number(int, 1), "help": f"Of the cluster. Default: {MASTERS}"},
    "other": {"type": folder, "help": "Measure the Lock of another checkout, too: the one in this folder."},
    "charts": {"type": folder, "help": "Draw some of the figures, as SVG, in this folder (extra charts)."},
}


class Command(BaseCommand):
    help = (
        "Measures our lock against redis-py's, python-redis-lock and a bare floor, interleaved in one run, on a "
        "private redis-server, or (--cluster) on a private Redis Cluster, that it starts itself."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        modes = parser.add_subparsers(dest="mode", required=True, metavar="MODE")
        for key, mode in MODES.items():
            options = modes.add_parser(key, help=mode.measure.__doc__)
            for name, default in {**mode.options, **dict.fromkeys(mode.flags)}.items():
                text = OPTIONS[name]["help"]
                if default:
                    text += f" Default: {default}"
                if name == "waiters" and mode.waiters:
                    text += f", with --asyncio {mode.waiters}"
                options.add_argument(f"--{name.replace('_', '-')}", **{**OPTIONS[name], "help": text})
            options.add_argument("--only", default="", metavar="NAME,...", help="The contenders; without it: all.")
            options.add_argument("--json", action="store_true", help="Print all figures as JSON.")

    def handle(self, *args: Any, **options: Any) -> None:
        mode, charts = options["mode"], options.get("charts")
        if charts and find_spec("matplotlib") is None:
            raise CommandError('--charts needs matplotlib: python -m pip install -e ".[charts]"')
        # timeout(1) and CI end this with SIGTERM: clean up then, too
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            with Console(stderr=True).status("lockbench: starting") as status:
                only = [name for name in options["only"].split(",") if name]
                result = run(mode, options, only, lambda text: status.update(f"lockbench {mode}: {text}"))
        except (BenchError, NoServerError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=130) from None
        finally:
            signal.signal(signal.SIGTERM, before)
        if charts:
            draw(result["contenders"], charts)
        if options["json"]:
            self.stdout.write(json.dumps(result, indent=2))
            return
        console = Console(file=cast("IO[str]", self.stdout), width=None if self.stdout.isatty() else WIDTH)
        with console.capture() as capture:
            show(console, result, MODES[mode].rows)
        self.stdout.write(capture.get())
