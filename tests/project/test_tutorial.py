"""The tutorial, as somebody follows it who types what it says: it oversells, and then it does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from redisserver import free_ports
from tests.helpers.actors import until
from tests.helpers.docs import blocks, page
from tests.project.programs import ROOT

SETTINGS, MODELS, VIEWS, URLS, CROWD, LOCKED, _ = blocks(page("tutorial"))
COMMANDS = re.findall(r"^\$ python (.*)$", "".join(blocks(page("tutorial"), "console")), re.M)


def python(folder: Path, *arguments: str) -> str:
    """Run ``python ...`` in this folder."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=variables(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def variables() -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    return {**ours, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    python(tmp_path, "-m", "django", "startproject", "tickets")
    folder = tmp_path / "tickets"
    python(folder, "manage.py", "startapp", "shop")
    with (folder / "tickets" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    for name, text in [("shop/models", MODELS), ("shop/views", VIEWS), ("tickets/urls", URLS), ("crowd", CROWD)]:
        (folder / f"{name}.py").write_text(text)
    return folder


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Run the server; its address."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "manage.py", "runserver", "--noreload", address]
    with (site / "said.txt").open("ab") as said:
        process = subprocess.Popen(command, cwd=site, env=variables(), stdout=said, stderr=said)
    try:
        until(lambda: answers(f"http://{address}"))
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        urlopen(url, timeout=5)
    except HTTPError:
        return True  # there is no such page
    except URLError:
        return False
    return True


@pytest.mark.complete
def test_the_shop_oversells_and_then_does_not(site: Path) -> None:
    for command in ("manage.py makemigrations shop", "manage.py migrate"):
        assert command in COMMANDS
        python(site, *command.split())
    create, update = (command for command in COMMANDS if command.startswith("manage.py shell -c "))
    python(site, "manage.py", "shell", "-c", create.partition('"')[2].rstrip('"'))
    assert "manage.py runserver --noreload" in COMMANDS
    with served(site) as address:
        bought, sold_out = map(int, re.findall(r"\d+", python(site, "crowd.py", address)))
    assert bought > 10
    assert bought + sold_out == 20

    # the line that is new, and the import
    [line] = re.findall(r"^(@locked_view\(.*\)) +# this line is new$", LOCKED, re.M)
    [imported] = re.findall(r"^from django_redislock import locked_view$", LOCKED, re.M)
    (site / "shop" / "views.py").write_text(f"{imported}\n{VIEWS}".replace("def sell(", f"{line}\ndef sell("))
    python(site, "manage.py", "shell", "-c", update.partition('"')[2].rstrip('"'))
    with served(site) as address:
        said = python(site, "crowd.py", address)
    assert said in page("tutorial")
    assert said.startswith("10 bought a seat, 10 were told")
