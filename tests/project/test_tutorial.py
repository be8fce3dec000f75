"""The tutorial, as somebody follows it who types what it says: it oversells, and then it does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from redisserver import free_ports
from tests.helpers.docs import blocks, page
from tests.helpers.waiting import until
from tests.project.programs import ROOT

SETTINGS, MODELS, VIEWS, URLS, CROWD, LOCKED, _ = blocks(page("tutorial"))
COMMANDS = re.findall(r"^\$ python (.*)$", "".join(blocks(page("tutorial"), "console")), re.M)

Python = Callable[..., str]


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run ``python ...`` in the site's folder."""

    def run(*arguments: str, folder: Path = tmp_path / "tickets") -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=folder, env=variables(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def variables() -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    return {**ours, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def site(tmp_path: Path, python: Python) -> Path:
    python("-m", "django", "startproject", "tickets", folder=tmp_path)
    folder = tmp_path / "tickets"
    python("manage.py", "startapp", "shop")
    with (folder / "tickets" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    (folder / "shop" / "models.py").write_text(MODELS)
    (folder / "shop" / "views.py").write_text(VIEWS)
    (folder / "tickets" / "urls.py").write_text(URLS)
    (folder / "crowd.py").write_text(CROWD)
    return folder


@pytest.fixture
def serve(site: Path) -> Iterator[Callable[[], str]]:
    """Start the server, in place of the last one; return its address."""
    started: list[subprocess.Popen[bytes]] = []

    def stop() -> None:
        for process in started:
            process.kill()
            process.wait()

    def start() -> str:
        stop()
        address = f"127.0.0.1:{free_ports(1)[0]}"
        command = [sys.executable, "manage.py", "runserver", "--noreload", address]
        with (site / "said.txt").open("ab") as said:
            started.append(subprocess.Popen(command, cwd=site, env=variables(), stdout=said, stderr=said))
        until(lambda: answers(f"http://{address}"))
        return f"http://{address}"

    yield start
    stop()


def answers(url: str) -> bool:
    try:
        urlopen(url, timeout=5)
    except HTTPError:
        return True  # there is no such page
    except URLError:
        return False
    return True


@pytest.mark.complete
def test_the_shop_oversells_and_then_does_not(site: Path, serve: Callable[[], str], python: Python) -> None:
    for command in ("manage.py makemigrations shop", "manage.py migrate"):
        assert command in COMMANDS
        python(*command.split())
    create, update = (command for command in COMMANDS if command.startswith("manage.py shell -c "))
    python("manage.py", "shell", "-c", create.partition('"')[2].rstrip('"'))

    assert "manage.py runserver --noreload" in COMMANDS
    bought, sold_out = map(int, re.findall(r"\d+", python("crowd.py", serve())))
    assert bought > 10
    assert bought + sold_out == 20

    # the line that is new, and the import
    [line] = re.findall(r"^(@locked_view\(.*\)) +# this line is new$", LOCKED, re.M)
    [imported] = re.findall(r"^from django_redislock import locked_view$", LOCKED, re.M)
    (site / "shop" / "views.py").write_text(f"{imported}\n{VIEWS}".replace("def sell(", f"{line}\ndef sell("))
    python("manage.py", "shell", "-c", update.partition('"')[2].rstrip('"'))
    said = python("crowd.py", serve())
    assert said in page("tutorial")
    assert said.startswith("10 bought a seat, 10 were told")
