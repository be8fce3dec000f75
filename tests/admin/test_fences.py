"""The admin's page of fences."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_redislock import locked_atomic
from django_redislock.fencing import prune
from django_redislock.models import Fence

pytestmark = pytest.mark.django_db
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
