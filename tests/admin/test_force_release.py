"""Locks are force-released from the admin: after a confirmation, and logged in their histories."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.admin.models import DELETION, LogEntry
from django.test import Client

from django_redislock import Lock, get_lock, lock_force_released
from django_redislock.admin import LockAdmin
from django_redislock.models import HeldLock
from redisserver import RedisServer
from tests.admin.pages import LIST, names, select, told, url
from tests.helpers.state import holder, put

pytestmark = pytest.mark.django_db
FENCE = "fence:default:0"
YES = {"post": "yes"}


def logged() -> list[str]:
    return [entry.object_id for entry in LogEntry.objects.order_by("pk")]


def test_the_confirmation_releases_nothing_and_does_not_speak_of_deleting(
    admin: Client, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "a")
    selected = select(admin, "a")
    for page, title in [(admin.get(url("delete", "a")), "Force-release the lock"), (selected, "Force-release locks")]:
        text = page.content.decode()
        assert f'<li aria-current="page">{title}</li>' in text
        assert re.findall(r">[^<]*delete[^<]*<", text, re.I) == []
    assert holder(client, "a")
    # a site's own
    monkeypatch.setattr(LockAdmin, "delete_selected_confirmation_template", "admin/base_site.html")
    assert select(admin, "a").templates[0].name == "admin/base_site.html"


def test_a_force_release_tells_the_holder_the_site_and_the_history_who_did_it(
    admin: Client, eventually: Callable[..., Any], heard: list[tuple[str, Any]], client: redis.Redis
) -> None:
    lock = Lock("a", ttl=600)
    lock.acquire()
    admin.post(url("delete", "a"), YES)
    assert [facts["by"] for which, facts in heard if which == "force"] == ["jo in the admin"]
    assert get_lock("a") is None
    eventually(lambda: lock.lost)
    put(client, "b", owner="web-1", since=90)
    select(admin, "b", **YES)
    entry = LogEntry.objects.latest("pk")
    assert (entry.user.get_username(), entry.object_id, entry.action_flag) == ("jo", "b", DELETION)
    assert entry.change_message.startswith("Force-released. It was held by web-1 for 1 min 3")
    assert entry.content_type.model_class() is HeldLock


def test_a_holder_that_came_after_the_confirmation_page_is_spared(admin: Client, client: redis.Redis) -> None:
    put(client, "a", since=60)
    put(client, "b", since=60)
    seen = admin.get(url("delete", "a")).context["object"].fence
    put(client, "a")
    response = admin.post(url("delete", "a"), {**YES, "fence": seen}, follow=True)
    assert told(response) == ["1 lock was left alone: its holder had changed or was gone."]
    assert told(select(admin, "a", "b", "c", **YES, **{FENCE: seen + 1_000_000})) == [
        "1 lock was force-released.",
        "2 locks were left alone: their holders had changed or were gone.",
    ]
    assert holder(client, "a")
    assert logged() == ["b"]
    for fence in ("x", "²", "9" * 30):  # what is no fence means what is held now
        put(client, "a")
        assert told(select(admin, "a", **YES, **{FENCE: fence})) == ["1 lock was force-released."]


def test_a_lock_that_nobody_holds_is_not_offered_to_be_force_released(admin: Client) -> None:
    page = admin.get(url("delete", "a")).content.decode()
    assert "Nobody holds this lock now." in page
    assert 'name="post"' not in page
    response = admin.post(url("delete", "a"), YES, follow=True)
    assert told(response) == ["1 lock was left alone: its holder had changed or was gone."]
    assert told(select(admin, "a")) == ["Nobody holds these locks any more."]
    assert logged() == []


def test_selecting_all_pages_means_the_locks_that_the_search_found(admin: Client, client: redis.Redis) -> None:
    for number in range(120):
        put(client, f"order:{number}")
    put(client, "seat:1")
    across: dict[str, Any] = {"path": f"{LIST}?q=order", "select_across": "1"}
    asked = select(admin, "order:1", index="0", **across)
    assert (asked.context["total"], asked.context["more"]) == (120, "and 20 more")
    response = select(admin, "order:1", **across, **YES, **asked.context["fences"])
    assert told(response) == ["120 locks were force-released."]
    assert holder(client, "seat:1")
    assert len(logged()) == 120


def test_what_was_force_released_before_redis_went_is_in_the_history(
    admin: Client, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    def stop(**facts: Any) -> None:
        own.stop()

    retry_for(0.1)
    with own.client() as client:
        for name in "abc":
            put(client, name)
    lock_force_released.connect(stop)
    failed, released, *_ = told(select(admin, *"abc", **YES))
    lock_force_released.disconnect(stop)
    assert failed.startswith("Redis stopped responding, 2 locks were not force-released: Redis cannot be reached")
    assert released == "1 lock was force-released."
    assert logged() == ["a"]


@pytest.mark.usefixtures("endless")
def test_locks_that_never_end_and_suspended_ones_are_force_released_like_any(admin: Client) -> None:
    admin.post(url("delete", "foreign"), {**YES, "fence": "0"})
    asked = select(admin, "persisted").context
    assert asked["total"] == 1
    assert told(select(admin, "persisted", **YES, **asked["fences"])) == ["1 lock was force-released."]
    assert names(admin.get(LIST)) == ["sound"]
    Lock("a").suspend(3600)
    admin.post(url("delete", "a"), YES)
    assert not Lock("a").locked()
