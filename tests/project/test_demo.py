"""The ticket shop of testproject and its demo, run for real on a small scale."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import parse as parse_xml

import pytest

from django_redislock import force_release, list_locks
from redisserver import RedisServer
from tests.helpers.actors import until
from tests.helpers.processes import ROOT

SMALL = ["--seats", "24", "--buyers", "12"]
IMPATIENT = 3 * 4  # three of twelve buyers, who try four times each
REQUESTS = 12 * 4

Manage = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def manage(tmp_path: Path) -> Iterator[Manage]:
    """Start ``python testproject/manage.py ...`` as a user would, with a folder of its own for temporary files."""
    started: list[subprocess.Popen[str]] = []
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    ours = ("DJANGO_SETTINGS_MODULE", "PYTHONPATH", "REDIS_URL", "COLUMNS", "FORCE_COLOR")

    def manage(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        variables = {key: value for key, value in os.environ.items() if key not in ours} | {
            "TMPDIR": str(temporary),
            "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
            "SHOP_THINK_SECONDS": "0.02",  # else a busy machine may keep both clicks of every buyer apart
            "PYTHONUNBUFFERED": "1",
        }
        command, pipe = [sys.executable, "testproject/manage.py", *arguments], subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=ROOT, env={**variables, **environment}, stdout=pipe, stderr=pipe, text=True
        )
        started.append(process)
        return process

    yield manage
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert list(temporary.iterdir()) == []


def run(process: subprocess.Popen[str], within: float = 150) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=within)
    return process.returncode, output, errors


@pytest.mark.parametrize("command", [["check", "--deploy", "--fail-level=INFO"], ["makemigrations", "--check"]])
def test_the_shop_is_a_site_without_complaints(command: list[str], manage: Manage, server: RedisServer) -> None:
    status, output, errors = run(manage(*command, REDIS_URL=server.url))
    assert (status, errors) == (0, ""), output


def check_sales(path: Path, *, other: str | None = None) -> None:
    """Check what must hold for every successful demo. ``other``: the lock that is compared with ours."""
    figures = json.loads(path.read_text())
    assert (figures["ok"], figures["problems"]) == (True, [])
    unlocked, *locked = figures["sales"]
    assert [sale["title"] for sale in locked] == [*[other][: other is not None], "Lock"]
    assert unlocked["oversold"] == unlocked["sold"] - 24 > 0
    assert unlocked["charged_twice"] > 0
    for sale in locked:
        assert (sale["requests"], sale["oversold"], sale["charged_twice"]) == (REQUESTS, 0, 0)
        assert sale["remaining"] == 24 - sale["sold"]
        assert sale["sold"] + sale["sold_out"] + sale["refused"] == REQUESTS
        assert 0 <= sale["wait_p50_ms"] <= sale["wait_p99_ms"] < 60_000  # as long as the demo may take
    ours = locked[-1]
    assert (ours["sold"], ours["inversions"]) == (24, 0)
    assert 0 < ours["refused"] <= IMPATIENT
    assert "seats:" in ours["listing"]


@pytest.mark.complete
@pytest.mark.parametrize("options", [[], ["--asgi"]], ids=["threads", "asgi"])
def test_the_demo_oversells_only_without_a_lock_draws_what_it_prints_and_with_redis_compares_another_lock(
    options: list[str], manage: Manage, server: RedisServer, client: Any, tmp_path: Path
) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "demo.svg"
    code, output, errors = run(manage("demo", *options, *SMALL, "--json", str(figures), "--svg", str(picture)))
    assert (code, errors) == (0, "")
    check_sales(figures)
    other, owner = ("redis.asyncio", "uvicorn/Task-") if options else ("cache.lock", "Thread-")
    assert re.search(r"^Lock +48 +24 +\d+ +0 +0 +\d+ +\d+ +0$", output, re.MULTILINE)
    assert re.search(rf"^{other}.*( +-){{8}}", output, re.MULTILINE)
    assert re.search(rf"^seats:2 .*{owner}\d+.* POST /events/2/buy/", output, re.MULTILINE)
    assert output.rstrip().endswith("and Lock kept the order.")
    drawn = "".join("".join(parse_xml(picture).getroot().itertext()).split())  # blanks are places in a picture
    for line in output.splitlines():
        assert "".join(line.split()) in drawn
    code, output, errors = run(manage("demo", *options, *SMALL, "--json", str(figures), REDIS_URL=server.url))
    assert (code, errors) == (0, "")
    check_sales(figures, other=other)
    assert ("3 server processes (async" if options else "3 threaded server processes") in " ".join(output.split())
    assert [key for key in client.scan_iter() if client.ttl(key) == -1] == []


@pytest.mark.complete
def test_the_demo_fails_when_locks_are_force_released_under_the_buyers_hands(
    manage: Manage, server: RedisServer, client: Any, settings: Any
) -> None:
    process = manage("demo", *SMALL, REDIS_URL=server.url)
    key = until(lambda: next(client.scan_iter("shop-demo-*lock:seats:*"), b"")).decode()
    options = {**settings.CACHES["default"], "LOCATION": server.url, "KEY_PREFIX": key.partition(":")[0]}
    settings.CACHES = {"default": options}
    while process.poll() is None:
        for lock in list_locks("seats:*"):
            force_release(lock.name, by="sabotage")
    code, output, errors = run(process)
    assert code == 1
    assert "FAILED Lock: oversold" in output
    assert "force-released" in errors


@pytest.mark.complete
def test_what_it_cannot_do_is_a_clear_error(manage: Manage) -> None:
    code, output, errors = run(manage("demo", "--seats", "0"))
    assert (code, output) == (2, "")
    assert "argument --seats: must be a number from 1 to 1000, not '0'" in errors
    code, output, errors = run(manage("demo", REDIS_URL="redis://127.0.0.1:1/0"))
    assert (code, output) == (1, "")
    assert "The demo cannot start: " in errors
    assert "Traceback" not in errors
