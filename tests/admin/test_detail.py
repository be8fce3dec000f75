"""The page of a lock, and its addresses."""

from __future__ import annotations

import re
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

CSRF_TOKEN = re.compile(r'value="\w{64}"')  # random letters, which may spell any word


def content(admin: Client, name: str) -> str:
    """The page of a lock."""
    page: str = admin.get(url("change", name)).content.decode()
    return page


# each has a character or a word that means something in a URL, in HTML or to the admin
ODD_NAMES = [
    *[
        "order:42",
        "a/b/../c",
        ".",
        "..",
        "a_3Ab",
        "%2F",
        "?q=1&x#y",
        "add",
        "quotes\"'`",
        "back\\slash",
        "<b>&amp;</b>",
        "+;@=$,[]",
        "history/",
    ],
    *(" ", " blank ", "größe:ключ:鍵:🔒", "order:\u202e42", "x" * 512),
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_whatever_its_name_a_lock_has_its_pages_and_can_be_force_released(
    name: str, admin: Client, client: redis.Redis
) -> None:
    put(client, name)
    (shown,) = admin.get(LIST).context["cl"].result_list
    assert shown.name == name
    page = admin.get(url("change", name))
    assert page.context["original"].info.name == name
    assert admin.get(url("delete", name)).context["object"].info.name == name
    assert admin.post(url("delete", name), {"post": "yes"}, follow=True).status_code == 200
    assert not holder(client, name)
    history = admin.get(url("history", name))
    assert [entry.action_flag for entry in history.context["action_list"]] == [DELETION]
    put(client, name)
    assert "1 lock was force-released." in told(select(admin, name, post="yes"))
    assert not holder(client, name)


def test_no_address_of_a_lock_ends_in_dots_that_browsers_take_away() -> None:
    for name in (".", ".."):
        assert not re.search(r"/\.\.?/", url("change", name))


def test_the_page_of_a_lock_that_nobody_holds_says_so(admin: Client) -> None:
    page = content(admin, "pool:accounts:alice")
    assert "Nobody holds this lock now." in page
    assert "Queue" not in page


def test_notes_are_shown_escaped(
    admin: Client, client: redis.Redis, other: Callable[[], Other], eventually: Callable[..., Any]
) -> None:
    thread = other()
    with Lock("a", note="<script>alert(1)</script>\nsecond & line\u202e"):
        waiting = thread.start(lambda: Lock("a", note="<i>of a waiter</i>").acquire(blocking_timeout=GENEROUS))
        eventually(lambda: client.zcard(f"{PREFIX}queue:a"))
        page = content(admin, "a")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;<br>" in page
    assert "second &amp; line\\u202e" in page
    assert "<td>&lt;i&gt;of a waiter&lt;/i&gt;</td>" in page
    assert "<script>alert" not in page
    assert waiting.result(GENEROUS)


def test_waiters_whose_process_was_killed_are_marked(admin: Client, ghost: Callable[..., Ghost]) -> None:
    with Lock("a"):
        ghost().queue("1" * 22, name="a")
        assert "Process" not in content(admin, "a")
        ghost(alive=False).queue("2" * 22, name="a")
        page = content(admin, "a")
    assert '<th scope="col">Process</th>' in page
    assert page.count("<td>gone</td>") == 1


def test_a_long_queue_is_shown_in_part_and_without_notes_there_is_no_place_for_them(
    admin: Client, client: redis.Redis
) -> None:
    put(client, "a", waiters=103)
    page = content(admin, "a")
    assert "and 3 more" in page
    assert "Nobody is waiting" not in page
    assert "note" not in CSRF_TOKEN.sub("", page).lower().replace("inline", "")


def test_the_token_is_never_shown(admin: Client) -> None:
    lock = Lock("a")
    lock.acquire()
    assert lock.token
    pages = [admin.get(path) for path in (LIST, url("change", "a"), url("delete", "a"))]
    pages.append(select(admin, "a"))
    assert not any(lock.token in page.content.decode() for page in pages)


def test_an_invalid_name_has_no_page(admin: Client) -> None:
    response = admin.get(f"{LIST}{'x' * 513}/change/", follow=True)
    assert "doesn’t exist" in told(response)[0]  # noqa: RUF001


def test_nothing_can_be_added_or_changed(admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    assert admin.get(f"{LIST}add/").status_code == 403
    assert admin.post(url("change", "a"), {"owner": "x"}).status_code == 403


# -- locks that never end, suspended locks, members of pools ----------------------------------------------------------


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
