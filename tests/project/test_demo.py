"""The ticket shop of testproject and its demo, run for real on a small scale."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import parse as parse_xml

import pytest
from rich.console import Console

from demo import report
from demo.facts import Facts, count_inversions, percentile
from rediscluster import private_masters
from redisserver import RedisServer
from tests.helpers.cluster_node import find_cluster_server
from tests.helpers.requirements import require
from tests.project.programs import ROOT

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
        variables = {key: value for key, value in os.environ.items() if key not in ours}
        process = subprocess.Popen(
            [sys.executable, "testproject/manage.py", *arguments],
            cwd=ROOT,
            env={
                **variables,
                "TMPDIR": str(temporary),
                "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
                "SHOP_THINK_SECONDS": "0.02",  # else a busy machine may keep both clicks of every buyer apart
                "PYTHONUNBUFFERED": "1",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield manage
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert list(temporary.iterdir()) == []


def run(process: subprocess.Popen[str], within: float = 60) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=within)
    return process.returncode, output, errors


@pytest.mark.parametrize("command", [["check", "--deploy", "--fail-level=INFO"], ["makemigrations", "--check"]])
@pytest.mark.parametrize("real", [False, True])
def test_the_shop_is_a_site_without_complaints(
    command: list[str], real: bool, manage: Manage, server: RedisServer
) -> None:
    environment = {"REDIS_URL": server.url} if real else {}
    status, output, errors = run(manage(*command, **environment))
    assert (status, errors) == (0, ""), output


def check_sales(path: Path, *, other: str | None = None) -> None:
    """Check what must hold for every successful demo. ``other``: the lock that is compared with ours."""
    figures = json.loads(path.read_text())
    assert figures["ok"]
    assert figures["problems"] == []
    unlocked, *locked = figures["sales"]
    assert [sale["title"] for sale in locked] == [*[other][: other is not None], "Lock"]
    assert unlocked["oversold"] == unlocked["sold"] - 24 > 0
    assert unlocked["charged_twice"] > 0
    assert unlocked["refused"] == 0
    assert unlocked["inversions"] is None
    for sale in locked:
        assert sale["requests"] == REQUESTS
        assert (sale["oversold"], sale["charged_twice"]) == (0, 0)
        assert sale["remaining"] == 24 - sale["sold"]
        assert sale["refused"] > 0
        assert sale["sold"] + sale["sold_out"] + sale["refused"] == REQUESTS
        assert sale["queued"] > 0
        assert 0 <= sale["wait_p50_ms"] <= sale["wait_p99_ms"]
        assert isinstance(sale["inversions"], int)
    ours = locked[-1]
    assert ours["sold"] == 24
    assert ours["refused"] <= IMPATIENT
    assert ours["inversions"] == 0
    assert "seats:" in ours["listing"]


BOTH = pytest.mark.parametrize("options", [[], ["--asgi"]], ids=["threads", "asgi"])


@pytest.mark.complete
@BOTH
def test_the_demo_in_memory_mode_oversells_only_without_a_lock_and_says_which_sale_it_leaves_out(
    manage: Manage, tmp_path: Path, options: list[str]
) -> None:
    figures = tmp_path / "figures.json"
    code, output, errors = run(manage("demo", *options, *SMALL, "--json", str(figures)))
    assert (code, errors) == (0, "")
    check_sales(figures)
    processes, other, owner = (
        ("1 server process (async views on uvicorn),", "redis.asyncio", "uvicorn/Task-")
        if options
        else ("1 threaded server process,", "cache.lock", "Thread-")
    )
    assert processes in " ".join(output.split())
    assert re.search(r"^Lock +48 +24 +\d+ +0 +0 +\d+ +\d+ +0$", output, re.MULTILINE)
    assert re.search(rf"^{other}( +-){{8}}\n\(needs *\nREDIS_URL\) *$", output, re.MULTILINE)
    assert "$ manage.py redislocks list" in output
    assert re.search(rf"^seats:2 .*{owner}\d+.* POST /events/2/buy/", output, re.MULTILINE)
    assert "…" not in output
    assert output.rstrip().endswith("and Lock kept the order.")


@pytest.mark.complete
def test_the_demo_draws_what_it_prints(manage: Manage, tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    code, output, errors = run(manage("demo", *SMALL, "--svg", str(picture)))
    assert (code, errors) == (0, "")
    drawn = "".join("".join(parse_xml(picture).getroot().itertext()).split())  # blanks are places in a picture
    for line in output.splitlines():
        assert "".join(line.split()) in drawn


@pytest.fixture(params=["server", "cluster"])
def reached(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[RedisServer]]]:
    """A URL for the demo, and the servers that it leads to."""
    if request.param == "server":
        server: RedisServer = request.getfixturevalue("server")
        yield server.url, [server]
        return
    require(find_cluster_server)
    with private_masters(3) as nodes:
        yield f"{nodes[1].url}?cluster", list(nodes)


@pytest.mark.complete
@BOTH
def test_the_demo_with_redis_compares_another_lock_uses_three_processes_and_leaves_no_key_for_good(
    manage: Manage, reached: tuple[str, list[RedisServer]], tmp_path: Path, options: list[str]
) -> None:
    figures = tmp_path / "figures.json"
    url, servers = reached
    code, output, errors = run(manage("demo", *options, *SMALL, "--json", str(figures), REDIS_URL=url))
    assert (code, errors) == (0, "")
    other = "redis.asyncio" if options else "redis-py" if len(servers) > 1 else "cache.lock"
    check_sales(figures, other=other)
    words = " ".join(output.split())
    assert ("3 server processes (async views on uvicorn)," if options else "3 threaded server processes,") in words
    assert ("locks in the Redis Cluster of REDIS_URL" in words) is (len(servers) > 1)
    assert re.search(rf"^{other} +48 +\d+ +\d+ +0 +0 +\d+ +\d+ +\d+$", output, re.MULTILINE)
    for server in servers:
        with server.client() as client:
            assert [key for key in client.scan_iter() if client.ttl(key) == -1] == []


@pytest.mark.complete
@BOTH
def test_the_demo_fails_when_locks_are_force_released_under_the_buyers_hands(
    manage: Manage, options: list[str]
) -> None:
    code, output, errors = run(manage("demo", *options, *SMALL, "--sabotage"))
    assert code == 1
    assert "FAILED Lock: oversold" in output
    assert "force-released" in errors
    assert "OK" not in output


def open_shop(process: subprocess.Popen[str]) -> HTTPConnection:
    """A connection to the shop that a demo has left open."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"open at http://127\.0\.0\.1:(\d+)/", line):
            return HTTPConnection("127.0.0.1", int(found[1]), timeout=10)
    raise AssertionError(f"the shop did not open: {process.communicate()}")


def look(connection: HTTPConnection) -> tuple[str, dict[str, str]]:
    """The shop's page, and the headers with which its forms are sent."""
    connection.request("GET", "/")
    response = connection.getresponse()
    page = response.read().decode()
    token = SimpleCookie(response.headers["Set-Cookie"])["csrftoken"].value
    return page, {"Cookie": f"csrftoken={token}", "X-CSRFToken": token, "Accept": "text/html"}


@pytest.mark.complete
@BOTH
def test_the_shop_stays_open_with_serve_until_it_is_interrupted(manage: Manage, options: list[str]) -> None:
    process = manage("demo", *options, "--seats", "4", "--buyers", "2", "--serve")
    connection = open_shop(process)
    page, headers = look(connection)
    assert "Tonight" in page
    assert "Nothing is locked." in page
    for path in ("/events/3/buy/", "/events/3/buy/now/"):
        assert path in page
        connection.request("POST", path, headers=headers)
        response = connection.getresponse()
        response.read()
        assert (response.status, response.headers["Location"]) == (302, "/?said=One+seat+is+yours.")
    connection.request("GET", "/?said=Hello")
    page = connection.getresponse().read().decode()
    assert "Hello" in page
    assert "<td>4</td><td>2</td>" in page
    assert "anonymous" in page
    connection.close()
    process.send_signal(signal.SIGINT)
    code, output, errors = run(process)
    assert (code, errors) == (0, "")
    assert output == "Closed.\n"


@pytest.mark.complete
@BOTH
def test_an_interrupted_demo_cleans_up(manage: Manage, options: list[str]) -> None:
    process = manage("demo", *options, "--seats", "1000")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("1000 seats")
    process.send_signal(signal.SIGTERM)
    code, output, errors = run(process)
    assert (code, errors) == (130, "Interrupted.\n")
    assert "OK" not in output


def test_a_missing_uvicorn_is_a_clear_error(manage: Manage, tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ImportError")
    code, output, errors = run(manage("demo", "--asgi", PYTHONPATH=str(tmp_path)))
    assert (code, output) == (1, "")
    assert errors.endswith('--asgi needs uvicorn. From the repository\'s root: python -m pip install -e ".[demo]"\n')
    assert "Traceback" not in errors


@pytest.mark.complete
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seats", "0"], "argument --seats: must be a whole number from 1 to 1000, not '0'"),
        (["--buyers", "many"], "argument --buyers: must be a whole number from 2 to 200, not 'many'"),
        (["--svg", "no/such/folder"], "argument --svg: must be a file in a folder that exists, not 'no/such/folder'"),
        (["--json", "no/such/folder"], "argument --json: must be a file in a folder that exists, not 'no/such/folder'"),
    ],
)
def test_bad_options_are_named(manage: Manage, arguments: list[str], message: str) -> None:
    code, output, errors = run(manage("demo", *arguments))
    assert (code, output) == (2, "")
    assert message in errors


@pytest.mark.complete
@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis://127.0.0.1:1/0?cluster", "nonsense"])
def test_a_redis_that_cannot_be_used_is_a_clear_error(manage: Manage, url: str) -> None:
    code, output, errors = run(manage("demo", REDIS_URL=url))
    assert (code, output) == (1, "")
    assert "The demo cannot start: " in errors
    assert "Traceback" not in errors


# -- the verdict ------------------------------------------------------------------------------------------------------


def facts(**values: Any) -> Facts:
    defaults: dict[str, Any] = {
        "title": "Lock",
        "locked": True,
        "ours": True,
        "seats": 10,
        "remaining": 0,
        "requests": 12,
        "sold": 10,
        "sold_out": 1,
        "refused": 1,
        "charged_twice": 0,
        "pay_refused": 0,
        "inversions": 0,
        "waits": [0.01] * 11,
    }
    return Facts(**{**defaults, **values})


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"sold": 12, "sold_out": 0, "waits": [0.01] * 12, "remaining": -2}, "oversold 2 seats"),
        ({"remaining": 1}, "the shop counts 1 as left: two buyers were inside at once"),
        ({"charged_twice": 3}, "charged 3 orders twice"),
        ({"inversions": 1}, "1 buyers were served while one that had asked earlier still waited"),
        ({"errors": ["status 500", "status 502"]}, "2 requests failed, the first with: status 500"),
        ({"waits": []}, "only 0 of 11 told when they asked for the lock"),
    ],
)
def test_each_broken_promise_is_a_problem(values: dict[str, Any], problem: str) -> None:
    [found] = facts(**values).problems()
    assert found.startswith("Lock: ")
    assert found.endswith(f"{problem}.")


def test_a_sale_in_order_overselling_without_a_lock_and_overtaking_with_another_one_are_no_problems() -> None:
    assert facts().problems() == []
    unlocked = facts(title="no lock", locked=False, ours=False, sold=12, charged_twice=2, waits=[], inversions=None)
    assert unlocked.problems() == []
    assert facts(title="cache.lock", ours=False, inversions=5).problems() == []


@pytest.mark.parametrize(
    ("turns", "inversions"),
    [
        ([], 0),
        ([(1, 1)], 0),
        ([(1, 10), (2, 11), (3, 12)], 0),
        ([(2, 10), (1, 11), (3, 12)], 1),
        ([(3, 12), (1, 14), (2, 13)], 2),
        ([(1, 12), (2, 10), (3, 11)], 2),  # two passed the same one
        ([(3, 10), (1, 11), (2, 12)], 1),  # one passed two
    ],
)
def test_an_inversion_is_one_served_while_an_earlier_one_waits(turns: list[tuple[int, int]], inversions: int) -> None:
    assert count_inversions(turns) == inversions


def test_percentiles() -> None:
    assert percentile([], 50) is None
    assert percentile([1.0], 99) == 1.0
    assert percentile([float(n) for n in range(100)], 99) == 99.0
    assert percentile([float(n) for n in range(100)], 50) == 50.0


def test_the_report_names_the_problems_and_fits_a_terminal() -> None:
    output = StringIO()
    bad = facts(requests=200_000, sold=10_000, inversions=10_000, title="redis.asyncio")
    report.show(Console(file=output, width=80), [bad], ["redis.asyncio"], ["Lock: a problem [of sorts]."])
    text = output.getvalue()
    assert "FAILED Lock: a problem [of sorts].\n" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
