"""Who may see locks and force-release them; other admin sites, other languages, and no Redis."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.utils.html import strip_tags

from django_redislock.admin import LockAdmin
from django_redislock.models import HeldLock
from tests.admin.pages import LIST, NOWHERE, select, told, url
from tests.helpers.state import holder, put

pytestmark = pytest.mark.django_db
DOWN = "Could not read the locks from Redis"
SET_A_FREE = {"action": "delete_selected", "_selected_action": ["a"], "post": "yes"}
Staff = Callable[..., Client]


def test_without_permissions_every_page_is_forbidden_and_redis_is_not_asked(staff: Staff, client: redis.Redis) -> None:
    user = staff()
    with override_settings(CACHES=NOWHERE):
        for path in (LIST, f"{LIST}add/", *(url(view, "a") for view in ("change", "history", "delete"))):
            assert {user.get(path).status_code, user.post(path, {"post": "yes"}).status_code} == {403}
        assert "Redis locks" not in user.get("/admin/").content.decode()
        assert "/admin/login/" in Client().get(LIST).headers["Location"]
    put(client, "a")
    assert user.post(LIST, SET_A_FREE).status_code == 403
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(User.objects.create_superuser("jo"))
    assert careful.post(url("delete", "a"), {"post": "yes"}).status_code == 403
    assert careful.post(LIST, SET_A_FREE).status_code == 403
    assert holder(client, "a")


def test_staff_who_may_only_view_cannot_force_release_and_see_no_way_to(staff: Staff, client: redis.Redis) -> None:
    put(client, "a")
    user = staff("view_heldlock")
    page = user.get(LIST)
    assert page.context["action_form"] is None
    for shown in (page, user.get(url("change", "a"))):
        assert "orce-release" not in shown.content.decode()
    assert url("history", "a") in user.get(url("change", "a")).content.decode()
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
    assert told(select(admin, "mine:1", post="yes")) == ["1 lock was force-released."]


def test_staff_who_may_only_delete_end_on_the_index(staff: Staff, client: redis.Redis) -> None:
    put(client, "a")
    user = staff("delete_heldlock")
    assert user.get(LIST).status_code == 403
    assert user.post(url("delete", "a"), {"post": "yes"}).headers["Location"] == "/admin/"
    assert not holder(client, "a")
    with override_settings(CACHES=NOWHERE):
        response = user.get(url("delete", "a"), follow=True)
    assert told(response)[-1].startswith(DOWN)


def test_a_custom_admin_site_links_to_its_own_pages(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    own = LIST.replace("/admin/", "/own/", 1)
    pages = [admin.get(path).content.decode() for path in (own, url("change", "a", "own"), url("delete", "a", "own"))]
    pages.append(select(admin, "a", path=own).content.decode())
    for page in pages:
        assert "/own/django_redislock/" in page
        assert "/admin/django_redislock/" not in page
    assert admin.post(url("delete", "a", "own"), {"post": "yes"}).headers["Location"] == own


def test_without_redis_the_pages_say_so_and_nothing_is_force_released(admin: Client, retry_for: Any) -> None:
    def count() -> str:
        found = re.search(r'<(p|nav) class="paginator".*?</\1>', admin.get(LIST).content.decode(), re.S)
        assert found is not None
        return strip_tags(found[0]).strip().split("\n")[-1].strip()

    retry_for(0.1)
    assert count() == "0 locks"
    with override_settings(CACHES=NOWHERE):
        for view in ("change", "history", "delete"):
            response = admin.get(url(view, "a"), follow=True)
            assert (response.redirect_chain, response.status_code) == ([(LIST, 302)], 200)
            assert [text[: len(DOWN)] for text in told(response)] == [DOWN]
        assert count() == "unknown"
        for data in ({}, {"post": "yes"}):
            assert [text[: len(DOWN)] for text in told(select(admin, "a", **data))] == [DOWN]
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("de", ["Redis-Sperren", "gehalten seit", "Freigabe erzwingen …", "2 h 5 min", "Warteschlange"]),
        ("zh-hans", ["Redis 锁", "剩余租期", "强制释放…", "2 小时 5 分", "队列"]),
    ],
)
def test_the_pages_are_in_the_users_language(
    language: str, words: list[str], admin: Client, client: redis.Redis, settings: Any
) -> None:
    settings.LANGUAGE_CODE = language
    put(client, "a", since=7500)
    page = "".join(admin.get(path).content.decode() for path in (LIST, url("change", "a")))
    assert [word for word in words if word.lower() not in page.lower()] == []
