"""Locks where sites run them: servers of several processes, many event loops, forks and pools of processes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient
from django.urls import path

from django_redislock import FairLock, locked_view

from .processes import ROOT, Worker

PREFIX = "redislock{0}:"

Eventually = Callable[..., Any]
Start = Callable[..., Worker]


def queued(client: Any, name: str) -> int:
    """How many wait, by whichever key has more of them."""
    return max(int(client.zcard(f"{PREFIX}queue:{name}")), int(client.hlen(f"{PREFIX}waiters:{name}")))


def is_held(client: Any, name: str) -> bool:
    return bool(client.exists(f"{PREFIX}lock:{name}"))


def left_over(client: Any) -> set[str]:
    """The keys of locks that are held or waited for. The index drops who has gone when it is read or written to."""
    return {key.decode() for key in client.keys("*")} - {f"{PREFIX}fence", f"{PREFIX}index"}


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "testproject")]),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }


# -- servers --------------------------------------------------------------------------------------------------------

SITE = """
import asyncio, os, pathlib, time
import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django_redislock import FairLock, locked_view

settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django_redislock"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["REDISLOCK_TEST_URL"]}},
)
here = pathlib.Path(__file__).parent
counter, inside, go = here / "counter", here / "inside", here / "go"
lock = FairLock("count", blocking_timeout=60)


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
    while not go.exists():
        await asyncio.sleep(0.002)
    return HttpResponse("done")


urlpatterns = [path("acount", acount), path("count", count), path("order/<int:pk>", order)]
asgi, wsgi = get_asgi_application(), get_wsgi_application()
"""

WSGI = """
import logging
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from site_of_tests import wsgi

class Server(ThreadingMixIn, WSGIServer):
    request_queue_size = 100

class Handler(WSGIRequestHandler):
    def log_message(self, *args): pass

server = make_server("127.0.0.1", PORT, wsgi, Server, Handler)
import signal, threading
signal.signal(signal.SIGTERM, lambda *args: threading.Thread(target=server.shutdown).start())
server.serve_forever(0.01)
server.server_close()
"""


class Site:
    """A server process with the site above; its stderr is read once it has stopped."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / "site_of_tests.py").write_text(SITE)
        (folder / "counter").write_text("0")
        self._stderr = (folder / "stderr").open("w+")
        arguments = tuple(argument.replace("PORT", str(self.port)) for argument in arguments)
        values = environment()
        values["PYTHONPATH"] = os.pathsep.join([str(folder), values["PYTHONPATH"]])
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "always", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env=values,
            cwd=folder,
        )

    def get(self, where: str) -> tuple[int, str, dict[str, str]]:
        """Status, body, headers."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/{where}", timeout=60) as response:
                return response.status, response.read().decode(), dict(response.headers)
        except HTTPError as error:
            with error:
                return error.code, error.read().decode(), dict(error.headers)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.said()
        try:
            return self.get("")[0] == 404
        except (URLError, ConnectionError):
            return False

    def said(self) -> str:
        return Path(self._stderr.name).read_text()

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Answers what it had to say in its life."""
        self.process.send_signal(number)
        self.process.wait(30)
        return self.said()

    def complaints(self) -> list[str]:
        """Of its whole life, until it was stopped; but for the socket that uvicorn itself listens on."""
        return complaints(self.stop(), but=f"laddr=('127.0.0.1', {self.port})>")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._stderr.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def complaints(said: str, *, but: str = "nothing") -> list[str]:
    """The lines of stderr that nobody wants to see when all is well."""
    words = ("Traceback", "Warning: ", "never awaited", "was destroyed", "event=", "Exception ignored")
    known = (but, "Warning: Enable tracemalloc")
    return [line for line in said.splitlines() if any(w in line for w in words) and not any(k in line for k in known)]


@pytest.fixture
def serve(tmp_path: Path, eventually: Eventually) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def serve(*arguments: str) -> Site:
        site = Site(tmp_path, *arguments)
        sites.append(site)
        eventually(site.answers)
        return site

    yield serve
    for site in sites:
        site.kill()


@pytest.fixture
def uvicorn(serve: Callable[..., Site]) -> Callable[..., Site]:
    def uvicorn(*more: str) -> Site:
        return serve("-m", "uvicorn", "site_of_tests:asgi", "--port", "PORT", "--log-level", "warning", *more)

    return uvicorn


def count_together(site: Site, where: str, rounds: int) -> tuple[list[int], set[int]]:
    """Ask 12 at a time; answers the numbers that came, and the processes that they came from."""
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(site.get, [where] * 12 * rounds))
    assert {status for status, _, _ in answers} == {200}, answers
    bodies = [json.loads(body) for _, body, _ in answers]
    return sorted(body["number"] for body in bodies), {body["pid"] for body in bodies}


def test_requests_to_uvicorn_with_3_workers_hold_a_lock_one_at_a_time(
    uvicorn: Callable[..., Site], client: Any, eventually: Eventually
) -> None:
    already = client.info("clients")["connected_clients"]
    site = uvicorn("--workers", "3")
    served: set[int] = set()
    counted = 0
    while len(served) < 3 or counted < 96:  # whichever worker accepts first has the request
        numbers, pids = count_together(site, "acount", 4)
        assert numbers == list(range(counted + 1, counted + 49))
        counted += 48
        served |= pids
    assert left_over(client) == set()
    assert site.complaints() == []
    eventually(lambda: client.info("clients")["connected_clients"] == already)


def test_a_locked_view_under_uvicorn_answers_423_in_whichever_worker_while_another_request_is_at_it(
    uvicorn: Callable[..., Site], client: Any, eventually: Eventually
) -> None:
    site = uvicorn("--workers", "3")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(site.get, "order/7")
        eventually(lambda: is_held(client, "order:7"))
        for _ in range(6):
            status, _, headers = site.get("order/7")
            assert status == 423
            assert int(headers["Retry-After"]) > 0
        (site.folder / "go").touch()
        assert first.result(30)[:2] == (200, "done")
    assert site.get("order/7")[:2] == (200, "done")
    assert left_over(client) == set()
    assert site.complaints() == []


def test_requests_that_hold_or_wait_when_uvicorn_gives_them_up_leave_no_lock_and_no_place_in_the_queue(
    uvicorn: Callable[..., Site], client: Any, eventually: Eventually
) -> None:
    """They are cancelled twice, and then the process ends: what had to be put off is said before that."""
    site = uvicorn("--timeout-graceful-shutdown", "0")
    holder = FairLock("count")
    assert holder.acquire()
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(site.get, where) for where in ("order/7", *["acount"] * 5)]
        eventually(lambda: is_held(client, "order:7") and queued(client, "count") == 5)
        said = site.stop(signal.SIGINT)  # SIGTERM kills it as soon as it has given them up
        assert all(future.exception(30) or future.result()[0] >= 500 for future in asked)
    assert not is_held(client, "order:7")
    assert queued(client, "count") == 0
    holder.release()
    assert left_over(client) == set()
    assert "unclosed <socket" not in said
    assert "event=" not in said


def test_a_command_that_is_interrupted_while_it_waits_leaves_no_place_in_the_queue(
    start: Start, client: Any, eventually: Eventually
) -> None:
    """Ctrl+C ends the process at once; what its waiter still has to say to Redis is said before that."""
    code = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
try:
    FairLock("seat").acquire()
except KeyboardInterrupt:
    sys.exit(3)
"""
    holder = FairLock("seat", ttl=600)
    assert holder.acquire()
    command = start(code)
    eventually(lambda: queued(client, "seat") == 1)
    command.signal(signal.SIGINT)
    assert command.process.wait(30) == 3
    assert queued(client, "seat") == 0


def test_requests_to_a_threaded_wsgi_server_hold_a_lock_one_at_a_time_in_sync_and_async_views(
    serve: Callable[..., Site], client: Any, eventually: Eventually
) -> None:
    """An async view under WSGI runs in an event loop of its own for each request."""
    already = client.info("clients")["connected_clients"]
    site = serve("-c", WSGI)
    for where, counted in ("count", 0), ("acount", 48):
        numbers, _ = count_together(site, where, 4)
        assert numbers == list(range(counted + 1, counted + 49))
    assert left_over(client) == set()
    # one loop after the other, and all their connections are closed: the pool's, the listener's, the watchdog's stay
    eventually(lambda: client.info("clients")["connected_clients"] - already <= 16 + 2)
    assert site.complaints() == []


# -- event loops ----------------------------------------------------------------------------------------------------

visits: list[int | None] = []


async def visit(request: HttpRequest) -> HttpResponse:
    async with FairLock("visit", blocking_timeout=60) as lock:
        visits.append(lock.fence)
        await asyncio.sleep(0)
    return HttpResponse("welcome")


@locked_view("visit:{pk}")
async def visit_one(request: HttpRequest, pk: int) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("welcome")


urlpatterns = [path("visit", visit), path("visit/<int:pk>", visit_one)]


@pytest.mark.urls(__name__)
def test_20_event_loops_in_a_row_use_the_locks_of_views_and_leave_no_connection(client: Any) -> None:
    async def use() -> list[int]:
        browser = AsyncClient()
        asked = [browser.get("/visit") for _ in range(5)] + [browser.get(f"/visit/{pk}") for pk in range(5)]
        return [response.status_code for response in await asyncio.gather(*asked)]

    visits.clear()
    assert asyncio.run(use()) == [200] * 10
    gc.collect()
    already = client.info("clients")["connected_clients"]
    for _ in range(20):
        assert asyncio.run(use()) == [200] * 10
        gc.collect()
    assert client.info("clients")["connected_clients"] == already
    assert len(set(visits)) == 21 * 5
    assert left_over(client) == set()


def test_event_loops_in_several_threads_at_once_share_a_lock(client: Any) -> None:
    lock = FairLock("shared", blocking_timeout=60)
    fences: list[int | None] = []
    inside = threading.Lock()

    async def section() -> None:
        async with lock:
            assert inside.acquire(blocking=False), "two holders at once"
            await asyncio.sleep(0.001)
            fences.append(lock.fence)
            inside.release()

    async def several() -> None:
        await asyncio.gather(*[section() for _ in range(10)])

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(asyncio.run, several()) for _ in range(6)]:
            future.result(60)
    assert len(fences) == 60
    assert fences == sorted(set(fences))  # type: ignore[type-var]
    assert left_over(client) == set()


ASYNC_TESTS = """
import asyncio
import pytest
from django_redislock import FairLock, Lock, LockNotOwned

lock = FairLock("shared", blocking_timeout=10)
loops = []

@pytest.fixture(autouse=True)
async def a_loop_of_its_own():
    assert asyncio.get_running_loop() not in loops
    loops.append(asyncio.get_running_loop())

@pytest.mark.parametrize("time", range(5))
async def test_a_lock_is_held_within_async_with(time):
    async with lock:
        assert await lock.aowned()
    assert not await lock.alocked()

@pytest.mark.parametrize("kind", [Lock, FairLock])
async def test_tasks_wait_for_one_another(kind):
    order = []
    async def section(number):
        async with kind("shared", blocking_timeout=10):
            order.append(number)
            await asyncio.sleep(0.001)
            order.append(number)
    await asyncio.gather(*[section(number) for number in range(10)])
    assert order[::2] == order[1::2]

async def test_a_lock_can_be_left_to_the_end_of_the_loop():
    assert await Lock("left").aacquire()

async def test_what_another_test_held_is_not_ours():
    with pytest.raises(LockNotOwned):
        await Lock("left").arelease()

async def test_a_waiting_task_can_be_cancelled():
    async with lock:
        waiter = asyncio.create_task(FairLock("shared", blocking_timeout=10).aacquire())
        while not (await lock.ainfo()).waiters:
            await asyncio.sleep(0.001)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

def test_a_sync_test_among_them():
    with lock:
        assert lock.owned()
"""


def test_asynchronous_tests_of_a_site_each_use_the_locks_in_a_loop_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    (tmp_path / "test_site.py").write_text(ASYNC_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout
    assert "warning" not in done.stdout


# -- processes ------------------------------------------------------------------------------------------------------


def test_a_child_forked_in_an_event_loop_that_holds_a_lock_neither_renews_nor_releases_it(
    start: Start, client: Any, eventually: Eventually
) -> None:
    code = """
import asyncio
lock = FairLock("seat", ttl=1)

async def give_back():
    try:
        await lock.arelease()
    except LockNotOwned:
        say("refused", lock.fence, lock.remaining(), await lock.aowned())
    say("tried", await lock.aacquire(blocking=False))
    async with FairLock("other", ttl=1) as other:
        say("works", await other.aowned())

def fork():
    if os.fork():
        return
    say("forked", os.getpid())
    try:
        lock.release()
    except LockNotOwned:
        say("refused-sync")
    asyncio.run(give_back())
    say("child-lives")
    time.sleep(60)
    os._exit(0)

async def main():
    await lock.aacquire()
    async with FairLock("warm-up"):
        await asyncio.sleep(0.5)
    fork()
    await asyncio.to_thread(hear)
    await lock.arelease()
    say("released")
    await asyncio.to_thread(hear)

asyncio.run(main())
"""
    parent = start(code)
    (child,) = parent.expect("forked")
    try:
        parent.expect("refused-sync")
        assert parent.expect("refused") == ["None", "0.0", "False"]
        assert parent.expect("tried") == ["False"]
        assert parent.expect("works") == ["True"]
        parent.expect("child-lives")
        assert f":{parent.pid}:" in client.get(f"{PREFIX}lock:seat").decode()
        os.kill(parent.pid, signal.SIGSTOP)
        os.waitpid(parent.pid, os.WUNTRACED)
        eventually(lambda: not is_held(client, "seat"), within=10)  # the child, alive, does not renew
        os.kill(int(child), 0)
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_the_parent_of_a_child_forked_in_its_event_loop_releases_its_lock(start: Start, client: Any) -> None:
    """Nothing that the child does at its end disturbs the parent's connections."""
    code = """
import asyncio

async def main():
    async with FairLock("seat", ttl=1) as lock:
        await asyncio.sleep(0.3)
        child = os.fork()
        if not child:
            try:
                asyncio.run(lock.arelease())
            finally:
                os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
        await asyncio.sleep(1)
        say("owned", await lock.aowned(), lock.lost)
    say("free", await lock.alocked())

asyncio.run(main())
"""
    parent = start(code)
    assert parent.expect("owned") == ["True", "False"]
    assert parent.expect("free") == ["False"]


POOL = """
import multiprocessing, os, sys, time
from pathlib import Path
import django
django.setup()
from django_redislock import FairLock, LockNotOwned

counter, inside = Path("counter"), Path("inside")
held = FairLock("held", ttl=600)

def section(number):
    try:
        held.release()
        return "released its parent's lock"
    except LockNotOwned:
        pass
    with FairLock("count", blocking_timeout=30):
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        count = int(counter.read_text()) + 1
        time.sleep(0.001)
        counter.write_text(str(count))
        inside.unlink()
    return count

if __name__ == "__main__":
    counter.write_text("0")
    context = multiprocessing.get_context(sys.argv[1])
    with held:
        time.sleep(0.2)
        with context.Pool(3) as pool:
            counts = pool.map(section, range(30), chunksize=1)
            pool.close()
            pool.join()
        assert held.owned()
    print(sorted(counts) == list(range(1, 31)) or counts)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_processes_shares_a_lock_and_not_what_its_parent_holds(
    tmp_path: Path, client: Any, method: str
) -> None:
    (tmp_path / "work.py").write_text(POOL)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "always", "-W", "ignore:This process", "work.py", method],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert complaints(done.stderr) == []
    assert left_over(client) == set()
