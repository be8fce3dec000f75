"""Other admin sites, other languages, and no Redis."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings
from django.utils.html import strip_tags

from tests.admin.pages import LIST, NOWHERE, select, told, url
from tests.helpers.state import put

pytestmark = pytest.mark.django_db


def test_a_custom_admin_site_links_to_its_own_pages(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    own = LIST.replace("/admin/", "/own/", 1)
    pages = [admin.get(path).content.decode() for path in (own, url("change", "a", "own"), url("delete", "a", "own"))]
    pages.append(select(admin, "a", path=own).content.decode())
    for page in pages:
        assert "/own/django_redislock/" in page
        assert "/admin/django_redislock/" not in page
    assert admin.post(url("delete", "a", "own"), {"post": "yes"}).headers["Location"] == own


DOWN = "Could not read the locks from Redis"


@override_settings(CACHES=NOWHERE)
@pytest.mark.parametrize("view", ["change", "history", "delete"])
def test_without_redis_each_page_of_a_lock_leads_to_the_list_which_says_so(view: str, admin: Client) -> None:
    response = admin.get(url(view, "a"), follow=True)
    assert (response.redirect_chain, response.status_code) == ([(LIST, 302)], 200)
    assert [text[: len(DOWN)] for text in told(response)] == [DOWN]


def test_without_redis_nobody_knows_how_many_locks_there_are_and_nothing_is_force_released(admin: Client) -> None:
    def count() -> str:
        found = re.search(r'<(p|nav) class="paginator".*?</\1>', admin.get(LIST).content.decode(), re.S)
        assert found is not None
        return strip_tags(found[0]).strip().split("\n")[-1].strip()

    assert count() == "0 locks"
    with override_settings(CACHES=NOWHERE):
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
