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

BARE = """
import sys
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
assert not {"django.contrib.admin", "django.contrib.contenttypes.models"} & {*sys.modules}
"""


@pytest.mark.django_db
def test_there_is_no_table_and_nothing_to_dump_or_migrate(django_assert_num_queries: Any, capsys: Any) -> None:
    Lock("a").acquire()
    with django_assert_num_queries(0):
        assert list(HeldLock.objects.all()) == []
        assert not HeldLock._base_manager.exists()
    call_command("dumpdata", "django_redislock", "--all")
    assert capsys.readouterr().out.strip() == "[]"
    call_command("makemigrations", "--check", "--dry-run")
    found = Permission.objects.filter(content_type__app_label="django_redislock").values_list("codename", "name")
    assert dict(found) == {
        "view_heldlock": "Can view lock",
        "delete_heldlock": "Can force-release lock",
        "view_fence": "Can view fence",
    }


def test_the_app_works_where_neither_admin_nor_auth_nor_contenttypes_are_installed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    subprocess.run([sys.executable, "-W", "error", "-c", BARE], check=True, env=environment, cwd=ROOT, timeout=60)
