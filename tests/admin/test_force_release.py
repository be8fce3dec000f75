"""Locks are force-released from the admin: after a confirmation, and logged in their histories."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.admin.models import DELETION, LogEntry
from django.test import Client

from django_redislock import Lock, LockPool, get_lock
from django_redislock.admin import LockAdmin
from django_redislock.models import HeldLock
from tests.admin.pages import LIST, names, select, told, url
from tests.helpers.state import holder, put

pytestmark = pytest.mark.django_db
PREFIX = "redislock{0}:"
FENCE = "fence:default:0"


def test_viewing_the_confirmation_releases_nothing(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    admin.get(url("delete", "a"))
    select(admin, "a")
    assert holder(client, "a")


def test_no_page_speaks_of_deleting(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    for page, title in [
        (admin.get(url("delete", "a")), "Force-release the lock"),
        (select(admin, "a"), "Force-release locks"),
    ]:
        text = page.content.decode()
        assert f'<li aria-current="page">{title}</li>' in text
        assert re.findall(r">[^<]*delete[^<]*<", text, re.I) == []


def test_a_confirmation_page_of_a_sites_own_is_used(
    admin: Client, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "a")
    assert "admin/django_redislock/heldlock/delete_selected_confirmation.html" in _templates(select(admin, "a"))
    monkeypatch.setattr(LockAdmin, "delete_selected_confirmation_template", "admin/base_site.html")
    assert _templates(select(admin, "a"))[0] == "admin/base_site.html"


def _templates(response: Any) -> list[str]:
    return [template.name for template in response.templates]


def test_a_force_release_tells_the_holder_and_the_site_who_did_it(
    admin: Client, eventually: Callable[..., Any], heard: list[tuple[str, dict[str, Any]]]
) -> None:
    lock = Lock("a", ttl=600)
    lock.acquire()
    admin.post(url("delete", "a"), {"post": "yes"})
    assert [facts["by"] for which, facts in heard if which == "force"] == ["jo in the admin"]
    assert get_lock("a") is None
    eventually(lambda: lock.lost)


def test_the_history_tells_who_force_released_whose_lock(admin: Client, client: redis.Redis) -> None:
    put(client, "a", owner="web-1", since=90)
    select(admin, "a", post="yes")
    (entry,) = LogEntry.objects.all()
    assert (entry.user.get_username(), entry.object_id, entry.object_repr, entry.action_flag) == (
        "jo",
        "a",
        "a",
        DELETION,
    )
    assert entry.change_message.startswith("Force-released. It was held by web-1 for 1 min 3")
    assert entry.content_type.model_class() is HeldLock


def test_a_holder_that_came_after_the_confirmation_page_is_spared(admin: Client, client: redis.Redis) -> None:
    put(client, "a", since=60)
    put(client, "b", since=60)
    seen = admin.get(url("delete", "a")).context["object"].fence
    put(client, "a")
    response = admin.post(url("delete", "a"), {"post": "yes", "fence": seen}, follow=True)
    assert told(response) == ["1 lock was left alone: its holder had changed or was gone."]
    response = select(admin, "a", "b", "c", post="yes", **{FENCE: seen + 1_000_000})
    assert told(response) == [
        "1 lock was force-released.",
        "2 locks were left alone: their holders had changed or were gone.",
    ]
    assert holder(client, "a")
    assert [entry.object_id for entry in LogEntry.objects.all()] == ["b"]


@pytest.mark.parametrize("fence", ["", "x", "-1", "²", "9" * 30])
def test_a_fence_that_is_none_means_what_is_held_now(fence: str, admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    assert told(select(admin, "a", post="yes", **{FENCE: fence})) == ["1 lock was force-released."]


def test_a_lock_that_nobody_holds_is_not_offered_to_be_force_released(admin: Client) -> None:
    page = admin.get(url("delete", "a")).content.decode()
    assert "Nobody holds this lock now." in page
    assert 'name="post"' not in page
    assert told(admin.post(url("delete", "a"), {"post": "yes"}, follow=True)) == [
        "1 lock was left alone: its holder had changed or was gone."
    ]
    assert told(select(admin, "a")) == ["Nobody holds these locks any more."]
    assert not LogEntry.objects.exists()


def test_selecting_all_pages_means_the_locks_that_the_search_found(admin: Client, client: redis.Redis) -> None:
    for number in range(120):
        put(client, f"order:{number}")
    put(client, "seat:1")
    asked = select(admin, "order:1", path=f"{LIST}?q=order", select_across="1", index="0")
    assert asked.context["total"] == 120
    assert asked.context["more"] == "and 20 more"
    response = select(
        admin, "order:1", path=f"{LIST}?q=order", select_across="1", post="yes", **asked.context["fences"]
    )
    assert told(response) == ["120 locks were force-released."]
    assert holder(client, "seat:1")
    assert LogEntry.objects.count() == 120


# -- locks that never end -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("endless")
def test_locks_that_never_end_are_force_released_like_any(admin: Client, client: redis.Redis) -> None:
    admin.post(url("delete", "foreign"), {"post": "yes", "fence": "0"})
    asked = select(admin, "persisted").context
    assert asked["total"] == 1
    assert told(select(admin, "persisted", post="yes", **asked["fences"])) == ["1 lock was force-released."]
    assert not client.exists(f"{PREFIX}lock:foreign", f"{PREFIX}lock:persisted")
    assert names(admin.get(LIST)) == ["sound"]


# -- pools ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("crowded")
def test_the_confirmation_for_a_member_counts_all_its_waiters(admin: Client) -> None:
    assert "105 waiting" in admin.get(url("delete", "pool:accounts:alice")).content.decode()


def test_a_pools_member_is_force_released_like_any(admin: Client) -> None:
    pool = LockPool("accounts")
    pool.extend(["alice"])
    pool.acquire(ttl=600)
    admin.post(url("delete", "pool:accounts:alice"), {"post": "yes"})
    assert pool.health_check() == (0, 1)
