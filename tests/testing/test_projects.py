"""The pytest plugin, and a small site whose tests are run by pytest-django and by Django's runner with workers."""

import subprocess
import sys
from pathlib import Path

import pytest
import redis
from django.conf import settings

from django_redislock import Lock, pytest_plugin
from django_redislock.pytest_plugin import redislock_own_locks as redislock_own_locks
from tests.helpers.actors import GENEROUS
from tests.helpers.processes import environment_of_another_run
from tests.helpers.state import NAME
from tests.inside import settings as known_settings


@pytest.mark.parametrize("number", range(2))
def test_each_test_has_locks_of_its_own_without_asking_for_them(number: int) -> None:
    assert known_settings()["KEY_PREFIX"].startswith("redislock-test-")
    assert Lock(NAME).acquire(blocking_timeout=0)


def test_only_fixtures_of_wider_scope_come_before_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    pytester.makepyfile("""
import pytest
from django_redislock.testing import assert_locked, assert_not_locked, hold

@pytest.fixture(autouse=True)
def first():
    with hold("of the test"):
        yield

@pytest.fixture(scope="module")
def shared():
    with hold("of the module"):
        yield

def test_it(first, shared):
    assert_locked("of the test")
    assert_not_locked("of the module")
""")
    done = pytester.runpytest_inprocess("-p", "no:django", "-p", "no:asyncio", plugins=[pytest_plugin])
    done.assert_outcomes(passed=1)


PROJECT = {
    "site_settings.py": """
INSTALLED_APPS = ["django_redislock"]
CACHES = {caches!r}
ROOT_URLCONF = "urls"
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
USE_TZ = True
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
    "conftest.py": """
pytest_plugins = ["shared_fixtures", "django_redislock.pytest_plugin"]
""",
    "shared_fixtures.py": """
import pytest
from django_redislock import LockPool

@pytest.fixture(autouse=True)
def accounts():
    LockPool("accounts").extend(["shared"])
""",
    "pytest.ini": """
[pytest]
addopts = -n 2 -W error -p no:cacheprovider -p no:valkey -p no:asyncio
python_files = check_*.py
""",
    "check_by_pytest.py": """
import pytest
from django_redislock import Lock, LockPool
from django_redislock.testing import assert_locked, assert_not_locked, hold, redis_away

@pytest.mark.parametrize("number", range(6))
def test_no_test_meets_what_another_one_has_left(number, client, settings):
    settings.REDISLOCK = {"TTL": 5, "VIEW_UNAVAILABLE_STATUS": 503}
    with hold("order:42"):
        assert client.get("/orders/42/pay/").status_code == 423
    with redis_away():
        assert client.get("/orders/42/pay/").status_code == 503
    assert client.get("/orders/42/pay/").status_code == 200
    assert_not_locked("forgotten")
    assert client.get("/forget/").content == b"True"
    assert_locked("forgotten")
    pool = LockPool("accounts")
    assert pool.keys() == ["shared"]
    pool.extend(["alice"])
    pool.acquire(blocking_timeout=0)
    Lock("never released").acquire(blocking_timeout=0)
""",
    "test_by_django.py": """
from django.test import TestCase
from django_redislock.testing import OwnLocksMixin

class Tests(OwnLocksMixin, TestCase):
    def test_forgotten(self):
        self.assertEqual(self.client.get("/forget/").content, b"True")

class Others(Tests): ...
""",
}


@pytest.mark.complete
@pytest.mark.parametrize("where", ["redis"], indirect=True)
def test_tests_and_workers_of_a_site_do_not_meet(tmp_path: Path, client: redis.Redis) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text.format(caches=settings.CACHES) if name == "site_settings.py" else text)
    known = environment_of_another_run(tmp_path) | {"DJANGO_SETTINGS_MODULE": "site_settings"}
    for words, said in ((["pytest"], "6 passed"), (["django", "test", "--parallel", "2"], "Ran 2 tests")):
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=4 * GENEROUS)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout + done.stderr
    # nothing is left but what ends by itself
    assert [key for key in client.scan_iter() if b"redislock" in key and client.ttl(key) == -1] == []
