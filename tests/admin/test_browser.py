"""The admin as people see it: a real browser, a live server, a real Redis."""

import re
from typing import Any

import pytest
import redis
from playwright.sync_api import expect

from django_redislock.admin import LockAdmin
from redisserver import RedisServer
from tests.helpers.browser import LIST, Picture, Visit, names, row, run_action
from tests.helpers.state import holder, put

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.complete]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages refresh themselves ten times a second."""
    script: Any = LockAdmin.Media.js[-1]
    monkeypatch.setitem(script.attributes, "data-seconds", 0.1)


def test_the_index_leads_to_the_list_which_sorts_and_searches(visit: Visit, client: Any, picture: Picture) -> None:
    put(client, "order:42", owner="web-1:7:MainThread /orders/42/pay/", since=200, ttl=500, waiters=3)
    put(client, "order:report", owner="cron:9:MainThread build_report", since=7500, ttl=600)
    put(client, "größe:鍵:ключ", owner="web-2:1:asyncio_0", since=1)
    page = visit("/admin/")
    expect(page.locator(".app-django_redislock caption")).to_have_text("Redis locks")
    page.locator(".app-django_redislock").get_by_role("link", name="Locks", exact=True).first.click()
    heads = ["", "Name", "Owner", "Held for", "Lease left", "Fence", "Waiters"]
    expect(page.locator("#result_list thead th .text")).to_have_text(heads)
    assert names(page) == ["größe:鍵:ключ", "order:42", "order:report"]
    expect(row(page, "order:42")).to_contain_text(re.compile(r"web-1:7:MainThread /orders/42/pay/\s*3 min [2-5]\d s"))
    picture(page, "list")
    page.locator("#searchbar").fill("ORDER MainThread")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**q=ORDER**")
    expect(page.locator("#toolbar .quiet")).to_contain_text("2 results (3 total)")
    for column, order, shown in [
        ("Waiters", "6", ["order:report", "order:42"]),
        ("Held for", "3", ["order:42", "order:report"]),
        ("Held for", "-3", ["order:report", "order:42"]),
    ]:
        page.locator("thead a", has_text=column).click()
        page.wait_for_url(f"**o={order}**")
        assert names(page) == shown


@pytest.mark.usefixtures("often")
def test_the_list_refreshes_itself_and_keeps_the_selection(visit: Visit, client: redis.Redis, picture: Picture) -> None:
    new, after = "<img src=x onerror='document.title=1'>\"&", "<script>document.title=2</script>"
    for name in ("b", "d", "f"):
        put(client, name, owner="before")
    page = visit()
    row(page, "b").locator("input").check()
    row(page, "d").locator("input").check()
    put(client, new, owner="new")
    put(client, "d", owner=after, since=200)
    client.delete("redislock{0}:lock:b", "redislock{0}:lock:f")
    client.zrem("redislock{0}:index", "b", "f")
    expect(page.locator("#result_list tbody th")).to_have_text([new, "d", "b"])
    expect(row(page, "d").locator(".field-shown_owner")).to_have_text(after)
    expect(row(page, "d").locator("input")).to_be_checked()
    expect(row(page, "b").locator("input")).to_be_checked()
    expect(row(page, "b")).to_have_class(re.compile("redislock-kept"))
    expect(page.locator(".action-counter")).to_have_text("2 of 3 selected")
    assert page.title() not in ("1", "2")
    picture(page, "kept")
    run_action(page)
    expect(page.locator("#content")).to_contain_text("held for 3 min")
    picture(page, "confirm-several")
    assert holder(client, "d")
    page.get_by_role("button", name="Yes, force-release").click()
    expect(page.locator(".messagelist .success")).to_have_text("1 lock was force-released.")
    assert not holder(client, "d")
    page.get_by_role("link", name=new).click()
    expect(page.locator(".field-shown_owner .readonly")).to_have_text("new")
    page.get_by_role("button", name="Force-release").click()
    picture(page, "confirm-one")
    page.get_by_role("button", name="Yes, force-release").click()
    expect(page.locator(".messagelist .success")).to_have_text("1 lock was force-released.")
    assert names(page) == []
    page.get_by_label("Refresh automatically").uncheck()
    page.reload()
    expect(page.get_by_label("Refresh automatically")).not_to_be_checked()
    page.get_by_label("Refresh automatically").check()
    page.context.clear_cookies()
    expect(page.locator(".redislock-refresh")).to_have_text("This page no longer refreshes. Please reload it.")


@pytest.mark.usefixtures("often")
def test_redis_stops_and_starts_again_under_open_pages(visit: Visit, server: RedisServer, picture: Picture) -> None:
    down = "Could not read the locks from Redis"
    with server.client() as client:
        put(client, "a", owner="before")
    page = visit()
    row(page, "a").locator("input").check()
    one = page.context.new_page()
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
    finally:
        server.start()
    with server.client() as client:
        put(client, "a", owner="after")
        put(client, "b")
    expect(page.locator("#result_list tbody th")).to_have_text(["a", "b"])
    expect(row(page, "a").locator("input")).to_be_checked()
    expect(one.locator(".field-shown_owner .readonly")).to_have_text("after")
    for open_page in (page, one):
        expect(open_page.locator(".messagelist .error")).to_have_count(0)
