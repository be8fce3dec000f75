"""The list of locks, as the server makes it; test_browser.py looks at it through a browser."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
import redis
from django.test import Client

from django_redislock import Lock, LockStatus, get_lock
from tests.admin.pages import LIST, listed, names, select, told
from tests.helpers.listed import put_member
from tests.helpers.state import put
from tests.inside import PREFIX

pytestmark = pytest.mark.django_db


def test_a_page_that_is_gone_shows_the_last_one_and_all_shows_all(admin: Client, client: redis.Redis) -> None:
    for number in range(101):
        put(client, f"order:{number:03}")
    assert names(admin.get(LIST, {"p": "99"})) == ["order:100"]
    for page, shown in (("99", 2), ("-1", 1), ("x", 1)):
        assert admin.get(LIST, {"p": page}).context["cl"].page_num == shown
    assert len(listed(admin.get(LIST, {"all": ""}))) == 101


def test_sorting_by_several_columns(admin: Client, client: redis.Redis) -> None:
    for name, owner in {"a": "x", "b": "y", "c": "x"}.items():
        put(client, name, owner=owner)
    assert names(admin.get(LIST, {"o": "-2.-1"})) == ["b", "c", "a"]


@pytest.mark.parametrize("query", ["?owner=x", "?key__startswith=a", "?nonsense=1"])
def test_an_unknown_parameter_leads_to_the_plain_list(query: str, admin: Client) -> None:
    assert admin.get(f"{LIST}{query}").headers["Location"] == f"{LIST}?e=1"


@pytest.mark.parametrize("query", ["o=99", "o=x", "o=", "q=%00", "q=%22", "o=-2.5.1.-6.3.4"])
def test_odd_parameters_break_nothing(query: str, admin: Client, client: redis.Redis) -> None:
    put(client, "a")
    assert admin.get(f"{LIST}?{query}").status_code == 200


# -- locks that never end, and suspended ones -------------------------------------------------------------------------


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("order", ["1", "2", "3", "4", "5", "6", "-4"])
@pytest.mark.parametrize("words", ["", "web"])
def test_locks_that_never_end_are_listed_and_come_last_by_what_is_left(order: str, words: str, admin: Client) -> None:
    response = admin.get(LIST, {"o": order, "q": words})
    shown = {lock.name: lock for lock in listed(response)}
    assert shown.keys() == ({"persisted"} if words else {"persisted", "foreign", "sound"})
    assert response.context["cl"].result_count == len(shown)
    assert {name for name, lock in shown.items() if lock.info.status is LockStatus.ERROR} == shown.keys() - {"sound"}
    assert response.content.decode().count("without end") == len(shown.keys() - {"sound"})
    if not words:
        assert shown["foreign"].owner == "?"
        assert order not in ("4", "-4") or names(response)[0 if order == "4" else -1] == "sound"


def test_a_pools_member_that_never_ends_is_listed(admin: Client, client: redis.Redis) -> None:
    put_member(client, "accounts", "alice", ttl=None)
    (shown,) = listed(admin.get(LIST))
    assert (shown.name, shown.info.status) == ("pool:accounts:alice", LockStatus.ERROR)


def test_a_suspended_lock_is_listed_as_held_by_nobody(admin: Client) -> None:
    Lock("a").suspend(3600, note="rate limited")
    for query in ("", "?q=suspended"):
        assert "nobody (suspended by " in admin.get(f"{LIST}{query}").content.decode()


# -- pools ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("order", ["1", "6"])
def test_the_list_shows_who_waits_for_any_member_beside_those_who_wait_for_this_one(order: str, admin: Client) -> None:
    page, members = admin.get(LIST, {"o": order}), ["pool:accounts:alice", "pool:accounts:bob"]
    assert names(page) == ["a", *(members if order == "1" else reversed(members))]
    cells = re.findall(r'field-shown_waiters">(.*?)<', page.content.decode())
    assert sorted(cells) == ["0", "0, and 103 for any member of the pool", "2, and 103 for any member of the pool"]


@pytest.mark.parametrize("order", ["1", "6"])
def test_the_queues_of_many_pools_cost_no_round_trip(
    order: str, admin: Client, client: redis.Redis, trips: list[int]
) -> None:
    for number in range(50):
        put_member(client, str(number), "alice")
        put_member(client, str(number), "bob", ttl=None if number == 7 else 60)
        client.zadd(f"{PREFIX}queue:pool:{number}:", {"t" * 22: 1})
    client.set(f"{PREFIX}queue:pool:8:", "no queue")
    trips.clear()
    rows = listed(admin.get(LIST, {"o": order, "all": ""}))
    assert len(rows) == 100
    assert {lock.name for lock in rows if not lock.info.pool_waiters} == {"pool:8:alice", "pool:8:bob"}
    assert {lock.info.pool_waiters for lock in rows} == {0, 1}
    assert len(trips) <= 3


@pytest.mark.parametrize(
    ("words", "refused"), [(["ord", "r:1"] * 10, False), (["ord"] * 21, True), (["1"] * 1000, True)]
)
def test_a_search_for_too_many_words_is_refused(
    words: list[str], refused: bool, admin: Client, client: redis.Redis
) -> None:
    put(client, "order:1")
    put(client, "order:2")
    query = urlencode({"q": " ".join(words)})
    found = admin.get(f"{LIST}?{query}", follow=True)
    assert (told(found) == ["Nothing was searched: give at most 20 words."]) is refused
    assert names(found) == (["order:1", "order:2"] if refused else ["order:1"])
    select(admin, "order:1", path=f"{LIST}?{query}", select_across="1", index="0", post="yes")
    assert [get_lock(name) is None for name in ("order:1", "order:2")] == [not refused, False]
