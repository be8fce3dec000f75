"""A small site with tests of its own, run by pytest-django with workers, and by ``manage.py test``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings

from tests.helpers.actors import GENEROUS
from tests.project.programs import environment

PROJECT = {
    "site_settings.py": """
INSTALLED_APPS = ["django_redislock"]
CACHES = {caches!r}
ROOT_URLCONF = "urls"
ALLOWED_HOSTS = ["*"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
USE_TZ = True
REDISLOCK = {{"VIEW_UNAVAILABLE_STATUS": 503}}
""",
    "urls.py": """
from django.http import HttpResponse
from django.urls import path
from django_redislock import Lock, locked_view

@locked_view("order:{pk}", blocking_timeout=1)
async def pay(request, pk):
    return HttpResponse("paid")

def forget(request):
    return HttpResponse(str(Lock("forgotten").acquire(blocking=False)))

urlpatterns = [path("orders/<int:pk>/pay/", pay), path("forget/", forget)]
""",
    "manage.py": """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "conftest.py": """
pytest_plugins = ["django_redislock.pytest_plugin"]
""",
    "pytest.ini": """
[pytest]
DJANGO_SETTINGS_MODULE = site_settings
filterwarnings = error
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
python_files = check_*.py
""",
    "check_by_pytest.py": """
import pytest
from django_redislock import Lock, LockPool
from django_redislock.testing import assert_locked, assert_not_locked, hold, redis_away

@pytest.mark.parametrize("number", range(2))
async def test_423_and_503(number, async_client):
    with hold("order:42"):
        assert (await async_client.get("/orders/42/pay/")).status_code == 423
    with redis_away():
        assert (await async_client.get("/orders/42/pay/")).status_code == 503
    assert (await async_client.get("/orders/42/pay/")).status_code == 200

@pytest.mark.parametrize("number", range(6))
def test_no_test_meets_what_another_one_has_left(number, client, settings):
    settings.REDISLOCK = {"TTL": 5}
    assert_not_locked("forgotten")
    assert client.get("/forget/").content == b"True"
    assert_locked("forgotten")
    pool = LockPool("accounts")
    assert pool.keys() == []
    pool.extend(["alice"])
    pool.acquire(blocking_timeout=0)
    Lock("never released").acquire(blocking_timeout=0)
""",
    "test_by_manage.py": """
from django.test import TestCase
from django_redislock import Lock
from django_redislock.testing import OwnLocksMixin, assert_not_locked, hold

class Base(OwnLocksMixin, TestCase):
    async def test_busy(self):
        with hold("order:42"):
            self.assertEqual((await self.async_client.get("/orders/42/pay/")).status_code, 423)

    def test_forgotten(self):
        assert_not_locked("forgotten")
        self.assertEqual(self.client.get("/forget/").content, b"True")
        Lock("never released").acquire(blocking_timeout=0)

    test_forgotten_too = test_forgotten

class Other(Base):
    pass
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        caches: Any = settings.CACHES
        (tmp_path / name).write_text(text.format(caches=caches) if name == "site_settings.py" else text)
    return tmp_path


def run(project: Path, *words: str) -> str:
    known = environment(project)
    for name in [name for name in known if name.startswith(("PYTEST_", "COV_", "COVERAGE_"))]:
        del known[name]  # set by the test run that this test is part of
    known["DJANGO_SETTINGS_MODULE"] = "site_settings"
    command = [sys.executable, "-W", "error", *words]
    done = subprocess.run(command, cwd=project, env=known, capture_output=True, text=True, timeout=4 * GENEROUS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def left(client: redis.Redis) -> list[bytes]:
    """The keys that do not end by themselves."""
    return [key for key in client.scan_iter() if b"redislock" in key and client.ttl(key) == -1]


@pytest.mark.complete
def test_workers_of_pytest_do_not_meet(project: Path, client: redis.Redis) -> None:
    said = run(project, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "-p", "no:valkey")
    assert "8 passed" in said
    assert left(client) == []


@pytest.mark.complete
def test_without_the_plugin_they_would(project: Path) -> None:
    (project / "conftest.py").unlink()
    with pytest.raises(AssertionError, match="failed"):
        run(project, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "no:valkey")


@pytest.mark.complete
def test_processes_of_djangos_runner_do_not_meet(project: Path, client: redis.Redis) -> None:
    said = run(project, "manage.py", "test", "--parallel", "2")
    assert "Ran 6 tests" in said
    assert left(client) == []
