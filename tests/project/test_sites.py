"""Sites as others run them: servers of several processes or threads, the tutorial, and one of the wheel alone."""

import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen
from zipfile import ZipFile

import pytest

import django_redislock
from django_redislock import Lock
from redisserver import free_ports
from tests.helpers.actors import until
from tests.helpers.docs import blocks, page
from tests.helpers.processes import ROOT, MissingError, require
from tests.helpers.state import holder, leftovers, queued
from tests.project.programs import complaints

pytestmark = pytest.mark.complete

Serve = Callable[..., "Site"]

SITE = """
import asyncio, os, pathlib, time
import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
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
    return HttpResponse(number)


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


def environment(*path: str | Path) -> dict[str, str]:
    """Nothing of this checkout or of the environment that runs the tests, but for modules in these folders."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "DJANGO_SETTINGS_MODULE")
    outside = {key: value for key, value in os.environ.items() if key not in ours}
    return {**outside, "PYTHONPATH": os.pathsep.join(map(str, path))}


def run(*command: str | Path, cwd: Path, path: str | Path = "") -> str:
    """What the program prints."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment(path), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Site:
    """A server process; its stderr is read once it has stopped."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.stderr = folder / "stderr"
        words = [argument.replace("PORT", str(self.port)) for argument in arguments]
        command = [sys.executable, "-X", "dev", "-W", "always", *words]
        with self.stderr.open("w") as said:
            known = environment(folder, ROOT)
            self.process = subprocess.Popen(command, stdout=said, stderr=said, env=known, cwd=folder)

    def get(self, where: str) -> tuple[int, str]:
        """Status, body."""
        try:
            with urlopen(f"{self.url}/{where}", timeout=60) as response:
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
        self.process.wait(60)
        return self.stderr.read_text()

    def complaints(self) -> list[str]:
        """Of its whole life, until it is stopped; but for the socket that it listens on."""
        return complaints(self.stop(), but=f"laddr=('127.0.0.1', {self.port})>")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers, of the site above if no other folder is named."""
    (tmp_path / "site_of_tests.py").write_text(SITE)
    (tmp_path / "counter").write_text("0")
    sites: list[Site] = []

    def serve(*arguments: str, folder: Path = tmp_path) -> Site:
        sites.append(Site(folder, *arguments))
        until(sites[-1].responds)
        return sites[-1]

    yield serve
    for site in sites:
        site.process.kill()
        site.process.wait()


def count_together(site: Site, where: str) -> list[int]:
    """Send 48 requests, 12 at a time; return the numbers in the responses."""
    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(site.get, [where] * 48))
    assert {status for status, _ in responses} == {200}, responses
    return sorted(int(body) for _, body in responses)


def test_requests_that_hold_or_wait_when_uvicorn_gives_them_up_leave_no_lock_and_no_place_in_the_queue(
    serve: Serve, client: Any
) -> None:
    """They are cancelled twice, and then the process ends: pending releases are sent before that."""
    site = serve(*UVICORN, "--timeout-graceful-shutdown", "0")
    count = Lock("count")
    assert count.acquire()
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(site.get, where) for where in ("order/7", *["acount"] * 5)]
        until(lambda: holder(client, "order:7") and queued(client, "count") == 5)
        said = site.stop()
        assert all(future.exception(30) or future.result()[0] >= 500 for future in asked)
    assert not holder(client, "order:7")
    assert queued(client, "count") == 0
    count.release()
    assert leftovers(client) == []
    assert "unclosed <socket" not in said
    assert "event=" not in said


def test_requests_to_a_threaded_wsgi_server_hold_a_lock_one_at_a_time_in_sync_and_async_views(
    serve: Serve, client: Any
) -> None:
    """An async view under WSGI runs in an event loop of its own for each request."""
    already = client.info("clients")["connected_clients"]
    site = serve("-c", RUNSERVER)
    for where, counted in ("count", 0), ("acount", 48):
        assert count_together(site, where) == list(range(counted + 1, counted + 49))
    assert leftovers(client) == []
    # one loop after the other, and all their connections are closed: the pool's, the listener's, the watchdog's stay
    until(lambda: client.info("clients")["connected_clients"] - already <= 16 + 2)
    assert site.complaints() == []


SETTINGS, MODELS, VIEWS, URLS, CROWD, LOCKED, _ = blocks(page("tutorial"))
COMMANDS = re.findall(r"^\$ python (.*)$", "".join(blocks(page("tutorial"), "console")), re.M)


def python(folder: Path, *arguments: str) -> str:
    return run(sys.executable, *arguments, cwd=folder, path=ROOT)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The site of the tutorial, as somebody has it who types what it says."""
    python(tmp_path, "-m", "django", "startproject", "tickets")
    folder = tmp_path / "tickets"
    python(folder, "manage.py", "startapp", "shop")
    with (folder / "tickets" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    for name, text in [("shop/models", MODELS), ("shop/views", VIEWS), ("tickets/urls", URLS), ("crowd", CROWD)]:
        (folder / f"{name}.py").write_text(text)
    return folder


def test_the_shop_of_the_tutorial_oversells_and_then_does_not(shop: Path, serve: Serve) -> None:
    for command in ("manage.py makemigrations shop", "manage.py migrate"):
        assert command in COMMANDS
        python(shop, *command.split())
    create, update = (command for command in COMMANDS if command.startswith("manage.py shell -c "))
    python(shop, "manage.py", "shell", "-c", create.partition('"')[2].rstrip('"'))
    runserver = ("manage.py", "runserver", "--noreload")
    assert " ".join(runserver) in COMMANDS
    site = serve(*runserver, "PORT", folder=shop)
    said = python(shop, "crowd.py", site.url)
    bought, sold_out = map(int, re.findall(r"\d+", said))
    assert bought > 10
    assert bought + sold_out == 20, site.stop()

    # the line that is new, and the import
    [line] = re.findall(r"^(@locked_view\(.*\)) +# this line is new$", LOCKED, re.M)
    [imported] = re.findall(r"^from django_redislock import locked_view$", LOCKED, re.M)
    (shop / "shop" / "views.py").write_text(f"{imported}\n{VIEWS}".replace("def sell(", f"{line}\ndef sell("))
    python(shop, "manage.py", "shell", "-c", update.partition('"')[2].rstrip('"'))
    site = serve(*runserver, "PORT", folder=shop)
    said = python(shop, "crowd.py", site.url)
    assert said in page("tutorial"), site.stop()
    assert said.startswith("10 bought a seat, 10 were told")


PACKAGE = "django_redislock"
UNREACHABLE = ("Could not find a version", "No matching distribution", "NewConnectionError", "ConnectTimeoutError")

ALONE = """
INSTALLED_APPS += ["django_redislock"]
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
"""

WORK = """
import os
from importlib.metadata import version

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
django.setup()

from django.contrib.auth.models import User
from django.contrib.staticfiles.finders import find
from django.test import Client
from django.utils import translation

import django_redislock
from django_redislock import Lock, get_lock
from django_redislock.models import HeldLock

print(django_redislock.__file__)
print(version("django-redislock"), django_redislock.__version__)
client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_superuser("staff"))
with Lock("stock:7") as lock:
    assert lock.fence > 0
    assert not Lock("stock:7", token="t" * 22).acquire(blocking=False)
    assert "stock:7" in client.get("/admin/django_redislock/heldlock/").text
assert get_lock("stock:7") is None
assert find("django_redislock/admin.css") and find("django_redislock/admin.js")
with translation.override("en"):
    plain = str(HeldLock._meta.verbose_name)
for language in ("de", "zh-hans"):
    with translation.override(language):
        assert str(HeldLock._meta.verbose_name) != plain, language
print("all is well")
"""


def pip(python: Path, *arguments: str | Path) -> None:
    """Everything comes from the index that pip is set up for: without one, the test is left out."""

    def ask() -> None:
        try:
            run(python, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=python.parent)
        except AssertionError as failed:
            if any(sign in str(failed) for sign in UNREACHABLE):
                raise MissingError("a package index", "pip has to reach one") from None
            raise

    require(ask)


def test_the_wheel_has_the_whole_package_and_nothing_else_and_a_site_runs_on_it_alone(tmp_path: Path) -> None:
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh" / "bin" / "python"
    pip(python, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    [wheel] = tmp_path.glob("*.whl")
    files = {str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).rglob("*.*") if path.suffix != ".pyc"}
    there = {name for name in ZipFile(wheel).namelist() if not name.endswith("/")}
    package = {name for name in there if name.startswith(f"{PACKAGE}/")}
    assert package == files
    assert f"{PACKAGE}/py.typed" in package
    assert {name.partition("/")[2] for name in there - package} == {"METADATA", "RECORD", "WHEEL", "licenses/LICENSE"}

    pip(python, "install", f"{wheel}[memory]")
    run(python, "-m", "django", "startproject", "shop", tmp_path, cwd=tmp_path)
    with (tmp_path / "shop" / "settings.py").open("a") as settings:
        settings.write(ALONE)
    (tmp_path / "work.py").write_text(WORK)
    assert "no issues" in run(python, "-W", "error", "manage.py", "check", cwd=tmp_path)
    assert "django_redislock.0001_initial... OK" in run(python, "manage.py", "migrate", cwd=tmp_path)
    assert "No changes detected" in run(python, "manage.py", "makemigrations", "--check", PACKAGE, cwd=tmp_path)
    assert "no locks" in run(python, "manage.py", "redislocks", "list", cwd=tmp_path).lower()
    where, versions, *_, last = run(python, "work.py", cwd=tmp_path).splitlines()
    assert Path(where).is_relative_to(python.parents[1])
    assert versions.split() == [django_redislock.__version__] * 2
    assert last == "all is well"


@pytest.mark.parametrize(
    ("ci", "code", "said"), [("", 0, "Left out: 1 test that needs"), ("1", 1, "the machine lacks")]
)
def test_a_run_of_tests_says_what_the_machine_lacks_and_fails_in_ci(ci: str, code: int, said: str) -> None:
    of_browser = "tests/admin/test_browser.py::test_the_index_leads_to_the_list_which_sorts_and_searches"
    ours = {key: value for key, value in environment(ROOT).items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "--complete", of_browser],
        cwd=ROOT,
        env={**ours, "CI": ci, "CHROMIUM": "no-such-browser"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    assert f"{said} Chromium (apt-get install chromium, or name an executable in CHROMIUM)" in done.stdout
