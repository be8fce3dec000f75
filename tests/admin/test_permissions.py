"""Who may see locks, and who may force-release them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client, override_settings

from django_redislock.admin import LockAdmin
from django_redislock.models import HeldLock
from tests.admin.pages import LIST, NOWHERE, select, told, url
from tests.helpers.state import holder, put

pytestmark = pytest.mark.django_db
SET_A_FREE = {"action": "delete_selected", "_selected_action": ["a"], "post": "yes"}


@pytest.mark.parametrize("reachable", [True, False])
def test_without_permissions_every_page_is_forbidden_and_redis_is_not_asked(
    reachable: bool, staff: Callable[..., Client], client: redis.Redis, settings: Any
) -> None:
    put(client, "a")
    user = staff()
    if not reachable:
        settings.CACHES = NOWHERE
    for path in (LIST, f"{LIST}add/", *(url(view, "a") for view in ("change", "history", "delete"))):
        for response in (user.get(path), user.post(path, {"post": "yes"})):
            assert response.status_code == 403
    assert user.post(LIST, SET_A_FREE).status_code == 403
    assert "Redis locks" not in user.get("/admin/").content.decode()
    assert user.get("/admin/django_redislock/").status_code == 404


def test_staff_who_may_only_view_cannot_force_release_and_see_no_way_to(
    staff: Callable[..., Client], client: redis.Redis
) -> None:
    put(client, "a")
    user = staff("view_heldlock")
    page = user.get(LIST)
    assert page.context["action_form"] is None
    for shown in (page, user.get(url("change", "a"))):
        assert "orce-release" not in shown.content.decode()
    assert url("history", "a") in user.get(url("change", "a")).content.decode()
    assert user.get(url("delete", "a")).status_code == 403
    assert user.post(url("delete", "a"), {"post": "yes"}).status_code == 403
    user.post(LIST, SET_A_FREE)
    assert holder(client, "a")


def test_the_permission_for_each_lock_counts_for_many_at_once(
    admin: Client, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allowed(self: LockAdmin, request: Any, obj: HeldLock | None = None) -> bool:
        return obj is None or obj.name.startswith("mine:")

    monkeypatch.setattr(LockAdmin, "has_delete_permission", allowed)
    for name in ("mine:1", "theirs:1"):
        put(client, name)
    for data in ({}, {"post": "yes"}, {"select_across": "1"}, {"select_across": "1", "post": "yes"}):
        assert select(admin, "mine:1", "theirs:1", **data).status_code == 403
        assert holder(client, "mine:1")
        assert holder(client, "theirs:1")
    assert told(select(admin, "mine:1", post="yes")) == ["1 lock was force-released."]


def test_staff_who_may_only_delete_end_on_the_index(staff: Callable[..., Client], client: redis.Redis) -> None:
    put(client, "a")
    user = staff("delete_heldlock")
    assert user.get(LIST).status_code == 403
    assert user.post(url("delete", "a"), {"post": "yes"}).headers["Location"] == "/admin/"
    assert not holder(client, "a")
    with override_settings(CACHES=NOWHERE):
        response = user.get(url("delete", "a"), follow=True)
    assert told(response)[-1].startswith("Could not read the locks from Redis")


def test_anonymous_users_are_sent_to_the_login() -> None:
    assert "/admin/login/" in Client().get(LIST).headers["Location"]


def test_posts_need_a_csrf_token(client: redis.Redis) -> None:
    put(client, "a")
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(User.objects.create_superuser("jo"))
    assert careful.post(url("delete", "a"), {"post": "yes"}).status_code == 403
    assert careful.post(LIST, SET_A_FREE).status_code == 403
    assert holder(client, "a")
