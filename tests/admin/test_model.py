"""The models behind the pages: that of locks has no table, that of fences its own page."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_redislock import Lock, locked_atomic
from django_redislock.fencing import prune
from django_redislock.models import Fence, HeldLock
from tests.helpers.processes import ROOT

pytestmark = pytest.mark.django_db
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


PAGE = "/admin/django_redislock/fence/"


def test_it_shows_which_names_were_claimed_and_when_last_and_is_read_only(admin: Client) -> None:
    for name in ("order:1", "order:2", "ünal"):
        with locked_atomic(name, fenced=True):
            pass
    Fence.objects.filter(name="order:1").update(claimed=timezone.now() - timedelta(days=2))
    page = admin.get(PAGE)
    assert [str(row) for row in page.context["cl"].result_list] == ["ünal", "order:2", "order:1"]
    prune(timedelta(days=1))
    page = admin.get(PAGE, {"q": "order"})
    assert [row.name for row in page.context["cl"].result_list] == ["order:2"]
    row = Fence.objects.get(name="order:2")
    change = reverse("admin:django_redislock_fence_change", args=[row.pk])
    assert f"{row.fence}" in admin.get(change).content.decode()
    assert admin.post(change, {"fence": 0}).status_code == 403
    for view, args in (("add", []), ("delete", [row.pk])):
        assert admin.get(reverse(f"admin:django_redislock_fence_{view}", args=args)).status_code == 403


@pytest.mark.parametrize(("permission", "status"), [("view_fence", 200), ("view_heldlock", 403)])
def test_it_takes_a_permission_of_its_own(staff: Callable[..., Client], permission: str, status: int) -> None:
    assert staff(permission).get(PAGE).status_code == status
