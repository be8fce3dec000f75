"""The model behind the pages: it has no table."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command

from django_redislock import Lock
from django_redislock.models import HeldLock
from tests.helpers.processes import ROOT

pytestmark = pytest.mark.django_db


def test_there_is_no_table_and_the_database_is_not_asked(django_assert_num_queries: Any) -> None:
    rows = HeldLock.objects.all()
    with django_assert_num_queries(0):
        assert list(rows) == []
        assert not HeldLock._base_manager.exists()


def test_dumpdata_finds_nothing_to_dump_and_makemigrations_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    Lock("a").acquire()
    for options in ([], ["--all"]):
        call_command("dumpdata", "django_redislock", *options)
        assert capsys.readouterr().out.strip() == "[]"
    call_command("makemigrations", "--check", "--dry-run")


def test_the_permissions_are_called_as_what_they_permit() -> None:
    found = Permission.objects.filter(content_type__app_label="django_redislock").values_list("codename", "name")
    assert dict(found) == {
        "view_heldlock": "Can view lock",
        "delete_heldlock": "Can force-release lock",
        "view_fence": "Can view fence",
    }


BARE = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_redislock"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
)
django.setup()
from django.core.management import call_command
call_command("check")
call_command("migrate", verbosity=0)
call_command("makemigrations", "--check", verbosity=0)
import sys
assert "django.contrib.admin" not in sys.modules
assert "django.contrib.contenttypes.models" not in sys.modules
"""


def test_the_app_works_where_neither_admin_nor_auth_nor_contenttypes_are_installed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    subprocess.run([sys.executable, "-W", "error", "-c", BARE], check=True, env=environment, cwd=ROOT, timeout=60)
