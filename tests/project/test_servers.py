"""Locks under servers of several processes or threads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from django_redislock import Lock
from redisserver import free_ports
from tests.helpers.state import holder, leftovers, queued
from tests.project.programs import complaints, environment

pytestmark = pytest.mark.complete

Eventually = Callable[..., Any]

SITE = """
import asyncio, os, pathlib, time
import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import JsonResponse
from django.urls import path
from django_redislock import Lock, locked_view

settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django_redislock"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["REDISLOCK_TEST_URL"]}},
)
here = pathlib.Path(__file__).parent
counter, inside = here / "counter", here / "inside"
lock = Lock("count", blocking_timeout=60)


def read():
    os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # an error for whoever comes in second
    return int(counter.read_text())


def write(number):
    counter.write_text(str(number))
    inside.unlink()
    return JsonResponse({"number": number, "pid": os.getpid()})


async def acount(request):
    async with lock:
        number = read()
        await asyncio.sleep(0.002)
        return write(number + 1)


def count(request):
    with lock:
        number = read()
        time.sleep(0.002)
        return write(number + 1)


@locked_view("order:{pk}")
async def order(request, pk):
    await asyncio.sleep(60)


urlpatterns = [path("acount", acount), path("count", count), path("order/<int:pk>", order)]
asgi = get_asgi_application()
"""

RUNSERVER = """
import site_of_tests
from django.core.management import execute_from_command_line
execute_from_command_line(["", "runserver", "--noreload", "PORT"])
"""
UVICORN = ["-m", "uvicorn", "site_of_tests:asgi", "--port", "PORT", "--log-level", "warning"]


class Site:
    """A server process with the site above; its stderr is read once it has stopped."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (self.port,) = free_ports(1)
        (folder / "site_of_tests.py").write_text(SITE)
        (folder / "counter").write_text("0")
        self.stderr = folder / "stderr"
        words = [argument.replace("PORT", str(self.port)) for argument in arguments]
        command = [sys.executable, "-X", "dev", "-W", "always", *words]
        with self.stderr.open("w") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said, env=environment(folder), cwd=folder)

    def get(self, where: str) -> tuple[int, str]:
        """Status, body."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/{where}", timeout=60) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def responds(self) -> bool:
        assert self.process.poll() is None, self.stderr.read_text()
        try:
            return self.get("")[0] == 404
        except (URLError, ConnectionError):
            return False

    def stop(self) -> str:
        """Stop it; return everything that it wrote to stderr. With SIGTERM, uvicorn ends as soon as it has given its
        requests up."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        return self.stderr.read_text()

    def complaints(self) -> list[str]:
        """Of its whole life, until it is stopped; but for the socket that it listens on."""
        return complaints(self.stop(), but=f"laddr=('127.0.0.1', {self.port})>")


@pytest.fixture
def serve(tmp_path: Path, eventually: Eventually) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def serve(*arguments: str) -> Site:
        sites.append(Site(tmp_path, *arguments))
        eventually(sites[-1].responds)
        return sites[-1]

    yield serve
    for site in sites:
        site.process.kill()
        site.process.wait()


def count_together(site: Site, where: str, rounds: int) -> tuple[list[int], set[int]]:
    """Send requests, 12 at a time; return the numbers in the responses, and the processes that sent them."""
    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(site.get, [where] * 12 * rounds))
    assert {status for status, _ in responses} == {200}, responses
    bodies = [json.loads(body) for _, body in responses]
    return sorted(body["number"] for body in bodies), {body["pid"] for body in bodies}


def test_requests_to_uvicorn_with_3_workers_hold_a_lock_one_at_a_time(
    serve: Callable[..., Site], client: Any, eventually: Eventually
) -> None:
    already = client.info("clients")["connected_clients"]
    site = serve(*UVICORN, "--workers", "3")
    served: set[int] = set()
    counted = 0
    while len(served) < 3 or counted < 96:  # whichever worker accepts first has the request
        numbers, pids = count_together(site, "acount", 4)
        assert numbers == list(range(counted + 1, counted + 49))
        counted += 48
        served |= pids
    assert leftovers(client) == []
    assert site.complaints() == []
    eventually(lambda: client.info("clients")["connected_clients"] == already)


def test_requests_that_hold_or_wait_when_uvicorn_gives_them_up_leave_no_lock_and_no_place_in_the_queue(
    serve: Callable[..., Site], client: Any, eventually: Eventually
) -> None:
    """They are cancelled twice, and then the process ends: pending releases are sent before that."""
    site = serve(*UVICORN, "--timeout-graceful-shutdown", "0")
    count = Lock("count")
    assert count.acquire()
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(site.get, where) for where in ("order/7", *["acount"] * 5)]
        eventually(lambda: holder(client, "order:7") and queued(client, "count") == 5)
        said = site.stop()
        assert all(future.exception(30) or future.result()[0] >= 500 for future in asked)
    assert not holder(client, "order:7")
    assert queued(client, "count") == 0
    count.release()
    assert leftovers(client) == []
    assert "unclosed <socket" not in said
    assert "event=" not in said


def test_requests_to_a_threaded_wsgi_server_hold_a_lock_one_at_a_time_in_sync_and_async_views(
    serve: Callable[..., Site], client: Any, eventually: Eventually
) -> None:
    """An async view under WSGI runs in an event loop of its own for each request."""
    already = client.info("clients")["connected_clients"]
    site = serve("-c", RUNSERVER)
    for where, counted in ("count", 0), ("acount", 48):
        numbers, _ = count_together(site, where, 4)
        assert numbers == list(range(counted + 1, counted + 49))
    assert leftovers(client) == []
    # one loop after the other, and all their connections are closed: the pool's, the listener's, the watchdog's stay
    eventually(lambda: client.info("clients")["connected_clients"] - already <= 16 + 2)
    assert site.complaints() == []
