"""The list of locks, as the server makes it; test_browser.py looks at it through a browser."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from django.test import Client

from django_redislock import Lock, LockStatus, get_lock
from tests.admin.pages import LIST, listed, names, select, told
from tests.helpers.state import put

pytestmark = pytest.mark.django_db


def test_pages_and_columns_to_sort_by_and_odd_parameters_break_nothing(admin: Client, client: redis.Redis) -> None:
    for name, owner in {"a": "x", "b": "y", "c": "x"}.items():
        put(client, name, owner=owner)
    assert names(admin.get(LIST, {"o": "-2.-1"})) == ["b", "c", "a"]
    for query in ("o=99", "o=x", "o=", "q=%00", "q=%22", "o=-2.5.1.-6.3.4"):
        assert admin.get(f"{LIST}?{query}").status_code == 200
    assert admin.get(f"{LIST}?owner=x").headers["Location"] == f"{LIST}?e=1"
    for number in range(98):
        put(client, f"order:{number:03}")
    page = admin.get(LIST, {"p": "99"})
    assert (page.context["cl"].page_num, names(page)) == (2, ["order:097"])
    assert admin.get(LIST, {"p": "x"}).context["cl"].page_num == 1
    assert len(listed(admin.get(LIST, {"all": ""}))) == 101


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("order", ["1", "3", "4", "5", "-4"])
@pytest.mark.parametrize("words", ["", "web"])
def test_locks_that_never_end_are_listed_and_come_last_by_what_is_left(order: str, words: str, admin: Client) -> None:
    response = admin.get(LIST, {"o": order, "q": words})
    shown = {lock.name: lock for lock in listed(response)}
    assert shown.keys() == ({"persisted"} if words else {"persisted", "foreign", "sound"})
    assert {name for name, lock in shown.items() if lock.info.status is LockStatus.ERROR} == shown.keys() - {"sound"}
    assert response.content.decode().count("without end") == len(shown.keys() - {"sound"})
    if not words:
        assert shown["foreign"].owner == "?"
        assert order not in ("4", "-4") or names(response)[0 if order == "4" else -1] == "sound"


def test_a_suspended_lock_is_listed_as_held_by_nobody(admin: Client) -> None:
    Lock("a").suspend(3600, note="rate limited")
    for query in ("", "?q=suspended"):
        assert "nobody (suspended by " in admin.get(f"{LIST}{query}").content.decode()


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("order", ["1", "6"])
def test_the_list_shows_who_waits_for_any_member_beside_those_who_wait_for_this_one(order: str, admin: Client) -> None:
    page, members = admin.get(LIST, {"o": order}), ["pool:accounts:alice", "pool:accounts:bob"]
    assert names(page) == ["a", *(members if order == "1" else reversed(members))]
    cells = re.findall(r'field-shown_waiters">(.*?)<', page.content.decode())
    assert sorted(cells) == ["0", "0, and 103 for any member of the pool", "2, and 103 for any member of the pool"]


@pytest.mark.parametrize(("words", "refused"), [(["ord", "r:1"] * 10, False), (["ord"] * 21, True)])
def test_a_search_for_too_many_words_is_refused(words: list[str], refused: bool, admin: Client, client: Any) -> None:
    put(client, "order:1")
    put(client, "order:2")
    query = urlencode({"q": " ".join(words)})
    found = admin.get(f"{LIST}?{query}", follow=True)
    assert (told(found) == ["Nothing was searched: give at most 20 words."]) is refused
    assert names(found) == (["order:1", "order:2"] if refused else ["order:1"])
    select(admin, "order:1", path=f"{LIST}?{query}", select_across="1", index="0", post="yes")
    assert [get_lock(name) is None for name in ("order:1", "order:2")] == [not refused, False]
