"""The wheel as users get it: its contents, and that a site runs on it alone."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

import django_redislock
from tests.helpers.processes import MissingError, require
from tests.project.programs import ROOT

pytestmark = pytest.mark.complete

PACKAGE = "django_redislock"
UNREACHABLE = ("Could not find a version", "No matching distribution", "NewConnectionError", "ConnectTimeoutError")

SETTINGS = """
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


def run(*command: str | Path, cwd: Path) -> str:
    """What the program prints; nothing of this checkout or of the environment that runs the tests reaches it."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "DJANGO_SETTINGS_MODULE")
    outside = {key: value for key, value in os.environ.items() if key not in ours}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=outside, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


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
        settings.write(SETTINGS)
    (tmp_path / "work.py").write_text(WORK)
    assert "no issues" in run(python, "-W", "error", "manage.py", "check", cwd=tmp_path)
    assert "django_redislock.0001_initial... OK" in run(python, "manage.py", "migrate", cwd=tmp_path)
    assert "No changes detected" in run(python, "manage.py", "makemigrations", "--check", PACKAGE, cwd=tmp_path)
    assert "no locks" in run(python, "manage.py", "redislocks", "list", cwd=tmp_path).lower()
    where, versions, *_, last = run(python, "work.py", cwd=tmp_path).splitlines()
    assert Path(where).is_relative_to(python.parents[1])
    assert versions.split() == [django_redislock.__version__] * 2
    assert last == "all is well"
