"""The page of a lock, and its addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.admin.models import DELETION
from django.test import Client

from django_redislock import Lock
from tests.admin.pages import LIST, select, told, url
from tests.helpers.actors import GENEROUS, Ghost, Other
from tests.helpers.state import holder, put
from tests.inside import PREFIX

pytestmark = pytest.mark.django_db

# each has a character or a word that means something in a URL, in HTML or to the admin
ODD_NAMES = [
    "a/b",
    ".",
    "..",
    "a_3Ab",
    "%2F",
    "?q=1&x#y",
    "add",
    "\"'\\",
    "<b>&amp;</b>",
    " blank ",
    "鍵:🔒",
    "x" * 512,
]


def content(admin: Client, name: str) -> str:
    """The page of a lock."""
    page: str = admin.get(url("change", name)).content.decode()
    return page


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_whatever_its_name_a_lock_has_its_pages_and_can_be_force_released(
    name: str, admin: Client, client: redis.Redis
) -> None:
    put(client, name)
    (shown,) = admin.get(LIST).context["cl"].result_list
    assert shown.name == name
    assert not url("change", name).endswith(("/./change/", "/../change/"))  # which browsers take away
    assert admin.get(url("change", name)).context["original"].info.name == name
    assert admin.get(url("delete", name)).context["object"].info.name == name
    assert admin.post(url("delete", name), {"post": "yes"}, follow=True).status_code == 200
    assert not holder(client, name)
    history = admin.get(url("history", name))
    assert [entry.action_flag for entry in history.context["action_list"]] == [DELETION]
    put(client, name)
    assert "1 lock was force-released." in told(select(admin, name, post="yes"))
    assert not holder(client, name)


def test_notes_are_shown_escaped_and_tokens_never(
    admin: Client, client: redis.Redis, other: Callable[[], Other], eventually: Callable[..., Any]
) -> None:
    thread = other()
    with Lock("a", note="<script>alert(1)</script>\nsecond & line\u202e") as lock:
        waiting = thread.start(lambda: Lock("a", note="<i>of a waiter</i>").acquire(blocking_timeout=GENEROUS))
        eventually(lambda: client.zcard(f"{PREFIX}queue:a"))
        page = content(admin, "a")
        pages = [admin.get(path) for path in (LIST, url("delete", "a"))]
        pages.append(select(admin, "a"))
        assert not any(str(lock.token) in text for text in (page, *(each.content.decode() for each in pages)))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;<br>" in page
    assert "second &amp; line\\u202e" in page
    assert "<td>&lt;i&gt;of a waiter&lt;/i&gt;</td>" in page
    assert "<script>alert" not in page
    assert waiting.result(GENEROUS)


def test_waiters_whose_process_was_killed_are_marked_and_of_a_long_queue_the_first_are_shown(
    admin: Client, client: redis.Redis, ghost: Callable[..., Ghost]
) -> None:
    with Lock("a"):
        ghost().queue("1" * 22, name="a")
        assert "Process" not in content(admin, "a")
        ghost(alive=False).queue("2" * 22, name="a")
        page = content(admin, "a")
    assert '<th scope="col">Process</th>' in page
    assert page.count("<td>gone</td>") == 1
    put(client, "b", waiters=103)
    assert "and 3 more" in content(admin, "b")


def test_an_invalid_name_has_no_page_and_nothing_can_be_added_or_changed(admin: Client, client: redis.Redis) -> None:
    assert "doesn’t exist" in told(admin.get(f"{LIST}{'x' * 513}/change/", follow=True))[0]  # noqa: RUF001
    assert "Nobody holds this lock now." in content(admin, "a")
    put(client, "a")
    assert admin.get(f"{LIST}add/").status_code == 403
    assert admin.post(url("change", "a"), {"owner": "x"}).status_code == 403


@pytest.mark.usefixtures("endless")
def test_the_page_of_a_lock_that_never_ends_says_so_and_shows_nothing_of_a_foreign_value(admin: Client) -> None:
    persisted, foreign = content(admin, "persisted"), content(admin, "foreign")
    for page in (persisted, foreign):
        assert "Somebody else has written it, or removed its expiry." in page
        assert "without end" in page
    assert "web-1" in persisted
    assert "of somebody else" not in foreign
    assert "fence" not in foreign.lower().partition('id="content"')[2]


def test_the_page_says_who_has_suspended_a_lock_and_why_though_somebody_still_holds_it(admin: Client) -> None:
    Lock("a").suspend(3600, note="rate limited")
    page = content(admin, "a")
    assert "nobody acquires it until then" in page
    assert page.count("rate limited") == 1
    lock = Lock("b", note="of the holder")
    lock.acquire()
    for note in ("", "rate limited"):
        lock.suspend(3600, note=note)
        page = content(admin, "b")
        assert "As soon as nobody holds it: suspended by " in page
        assert "of the holder" in page
        assert ("rate limited" in page) == bool(note)


@pytest.mark.usefixtures("crowded")
def test_the_page_of_a_member_shows_the_queue_of_the_pool(admin: Client) -> None:
    for member, own in (("alice", 2), ("bob", 0)):
        page = content(admin, f"pool:accounts:{member}")
        assert "Queue for any member of the pool" in page
        assert page.count("<td>ghost</td>") == own + 100
        assert "and 3 more" in page
    assert "any member" not in content(admin, "a")
