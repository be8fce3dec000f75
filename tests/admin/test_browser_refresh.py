"""Pages of the admin that refresh themselves."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis
from playwright.sync_api import Page, expect

from django_redislock.admin import LockAdmin
from redisserver import RedisServer
from tests.helpers.browser import LIST, Picture, Visit, names, row, run_action
from tests.helpers.state import holder, put

pytestmark = [pytest.mark.complete, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("often")]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages refresh themselves ten times a second."""
    script: Any = LockAdmin.Media.js[-1]
    monkeypatch.setitem(script.attributes, "data-seconds", 0.1)


def test_the_list_refreshes_itself_and_keeps_the_selection(visit: Visit, client: redis.Redis, picture: Picture) -> None:
    for name in ("b", "d", "f"):
        put(client, name, owner="before")
    page = visit()
    row(page, "b").locator("input").check()
    row(page, "d").locator("input").check()
    put(client, "a", owner="new")
    put(client, "d", owner="after")
    client.delete("redislock{0}:lock:b", "redislock{0}:lock:f")
    client.zrem("redislock{0}:index", "b", "f")
    expect(page.locator("#result_list tbody th")).to_have_text(["a", "d", "b"])
    expect(row(page, "d").locator(".field-shown_owner")).to_have_text("after")
    expect(row(page, "d").locator("input")).to_be_checked()
    expect(row(page, "b").locator("input")).to_be_checked()
    expect(row(page, "b")).to_have_class(re.compile("redislock-kept"))
    expect(page.locator(".action-counter")).to_have_text("2 of 3 selected")
    picture(page, "kept")
    row(page, "a").locator("input").check()
    expect(page.locator(".action-counter")).to_have_text("3 of 3 selected")
    expect(page.locator("#action-toggle")).to_be_checked()
    row(page, "b").locator("input").click()  # uncheck() would look at it again, and the next refresh takes it away
    expect(row(page, "b")).to_have_count(0)
    run_action(page)
    page.get_by_role("button", name="Yes, force-release").click()
    expect(page.locator(".messagelist .success")).to_have_text("2 locks were force-released.")
    assert not holder(client, "a")
    assert not holder(client, "d")


def test_the_first_lock_appears_and_the_last_one_vanishes(visit: Visit, client: redis.Redis) -> None:
    page = visit()
    expect(page.locator(".paginator")).to_contain_text("0 locks")
    put(client, "a")
    row(page, "a").locator("input").check()
    expect(page.locator(".action-counter")).to_have_text("1 of 1 selected")
    row(page, "a").locator("input").uncheck()
    client.flushall()
    expect(page.locator("#result_list")).to_have_count(0)
    expect(page.locator(".paginator")).to_contain_text("0 locks")


def test_refreshing_can_be_turned_off_and_stays_off(visit: Visit, client: redis.Redis) -> None:
    put(client, "a")
    page = visit()
    page.get_by_label("Refresh automatically").uncheck()
    page.reload()
    expect(page.get_by_label("Refresh automatically")).not_to_be_checked()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(500)  # five times the interval
    assert asked == []


def test_a_page_whose_user_has_logged_out_says_that_it_has_stopped(visit: Visit, client: redis.Redis) -> None:
    put(client, "a")
    page = visit()
    page.context.clear_cookies()
    expect(page.locator(".redislock-refresh")).to_have_text("This page no longer refreshes. Please reload it.")
    assert names(page) == ["a"]


def test_redis_stops_and_starts_again_under_open_pages(visit: Visit, server: RedisServer, picture: Picture) -> None:
    down = "Could not read the locks from Redis"
    with server.client() as client:
        put(client, "a", owner="before")
    page = visit()
    row(page, "a").locator("input").check()
    one, fresh = page.context.new_page(), page.context.new_page()
    one.goto(f"{LIST}a/change/")
    server.stop()
    try:
        for open_page in (page, one):
            expect(open_page.locator(".messagelist .error")).to_contain_text(down)
            expect(open_page.locator(".messagelist .error")).to_have_count(1)
        assert names(page) == ["a"]
        picture(page, "down-open")
        expect(one.locator("#heldlock_form")).to_have_class(re.compile("redislock-stale"))
        expect(one.locator(".field-shown_owner .readonly")).to_have_text("before")
        response = fresh.goto(LIST)
        assert response
        assert response.status == 200
        expect(fresh.locator(".messagelist .error")).to_contain_text(down)
        picture(fresh, "down")
    finally:
        server.start()
    with server.client() as client:
        put(client, "a", owner="after")
        put(client, "b")
    for listing in (page, fresh):
        expect(listing.locator("#result_list tbody th")).to_have_text(["a", "b"])
    expect(row(page, "a").locator("input")).to_be_checked()
    expect(one.locator(".field-shown_owner .readonly")).to_have_text("after")
    expect(one.get_by_label("Refresh automatically")).to_be_checked()
    for open_page in (page, one, fresh):
        expect(open_page.locator(".messagelist .error")).to_have_count(0)


def focused(page: Page) -> str:
    """The focused element, if it is the same as before."""
    text: str = page.evaluate("document.activeElement.before ? document.activeElement.textContent.trim() : ''")
    return text


def focus(link: Any) -> None:
    link.focus()
    link.evaluate("link => link.before = true")


def test_the_page_of_a_lock_refreshes_itself_and_the_focus_stays_where_it_is(visit: Visit, client: redis.Redis) -> None:
    put(client, "a", owner="first")
    page = visit(f"{LIST}a/change/")
    expect(page.locator(".field-shown_owner .readonly")).to_have_text("first")
    focus(page.get_by_role("button", name="Force-release"))
    put(client, "a", owner="second")
    expect(page.locator(".field-shown_owner .readonly")).to_have_text("second")
    assert focused(page) == "Force-release…"
    page.get_by_role("button", name="Back to the list").focus()
    client.flushall()  # the rest of the page becomes another
    expect(page.locator("#content")).to_contain_text("Nobody holds this lock now.")
    expect(page.get_by_role("button", name="Back to the list")).to_be_focused()
    expect(page.get_by_role("button", name="Force-release")).to_have_count(0)


def test_the_focus_moves_with_its_row(visit: Visit, client: redis.Redis) -> None:
    for number, name in enumerate("abc", 1):
        put(client, name, waiters=number)
    page = visit(f"{LIST}?o=6")
    assert names(page) == ["a", "b", "c"]
    focus(page.get_by_role("link", name="c", exact=True))
    client.delete("redislock{0}:queue:c")
    expect(page.locator("#result_list tbody th")).to_have_text(["c", "a", "b"])
    assert focused(page) == "c"
