"""The admin as people see it: a real browser, a live server, a real Redis."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from playwright.sync_api import expect

from django_redislock import Lock, force_release, get_lock
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.browser import LIST, Picture, Visit, names, row, run_action
from tests.helpers.state import holder, put

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.complete]


def test_the_index_leads_to_the_list_which_sorts_and_searches(
    visit: Visit, client: redis.Redis, picture: Picture
) -> None:
    put(client, "order:42", owner="web-1:7:MainThread /orders/42/pay/", since=200, ttl=500, waiters=3)
    put(client, "order:report", owner="cron:9:MainThread build_report", since=7500, ttl=600)
    put(client, "größe:鍵:ключ", owner="web-2:1:asyncio_0", since=1)
    page = visit("/admin/")
    expect(page.locator(".app-django_redislock caption")).to_have_text("Redis locks")
    page.locator(".app-django_redislock").get_by_role("link", name="Locks", exact=True).first.click()
    expect(page.locator("#result_list thead th .text")).to_have_text(
        ["", "Name", "Owner", "Held for", "Lease left", "Fence", "Waiters"]
    )
    assert names(page) == ["größe:鍵:ключ", "order:42", "order:report"]
    expect(row(page, "order:42")).to_contain_text(re.compile(r"web-1:7:MainThread /orders/42/pay/\s*3 min 2\d s"))
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


def test_words_of_a_queue_are_not_broken_on_a_narrow_screen(
    visit: Visit, client: redis.Redis, other: Callable[[], Other], eventually: Callable[..., Any]
) -> None:
    put(client, "order:42", ttl=500)
    waiter = Lock(
        "order:42", blocking_timeout=GENEROUS, purpose="/orders_of_a_customer/42", note="invoice_of_the_year_2026"
    )
    waiting = other().start(waiter.acquire)
    eventually(lambda: waiter.info().waiters)  # type: ignore[union-attr]
    page = visit(f"{LIST}order_3A42/change/")
    page.set_viewport_size({"width": 390, "height": 800})
    cells = page.locator(".redislock-queue :is(th, td)")
    assert cells.count() == 8
    heights = cells.evaluate_all(
        """cells => cells.map(cell => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            const words = cell.innerText.split(/[\\s\\/-]+/).filter(word => word).length;
            return [words, new Set([...range.getClientRects()].map(line => line.top)).size];
        })"""
    )
    assert [(words, lines) for words, lines in heights if lines > words] == []
    force_release("order:42")
    assert waiting.result(GENEROUS)


def test_the_page_of_a_lock_shows_its_queue_in_order(
    visit: Visit, client: redis.Redis, other: Callable[[], Other], eventually: Callable[..., Any], picture: Picture
) -> None:
    put(client, "order:42", owner="the-holder", ttl=600)

    def wait(purpose: str) -> None:
        with Lock("order:42", blocking_timeout=GENEROUS, purpose=purpose):
            pass

    waiting = []
    for number in range(3):
        waiting.append(other().start(partial(wait, f"waiter-{number}")))
        eventually(lambda number=number: (info := get_lock("order:42")) and info.waiters == number + 1)
    page = visit()
    page.get_by_role("link", name="order:42").click()
    expect(page.locator(".field-shown_owner .readonly")).to_contain_text("the-holder")
    expect(page.locator(".redislock-queue tbody td:nth-child(2)")).to_have_text(
        [re.compile(f"waiter-{number}") for number in range(3)]
    )
    picture(page, "detail")
    force_release("order:42")
    for one in waiting:
        one.result(GENEROUS)


def test_locks_are_force_released_after_a_confirmation_and_their_histories_say_so(
    visit: Visit, client: redis.Redis, picture: Picture
) -> None:
    put(client, "order:0", owner="web-1:7:MainThread", since=200)
    for number in range(1, 4):
        put(client, f"order:{number}")
    page = visit()
    for answer in ("No, take me back", "Yes, force-release"):
        for name in ("order:1", "order:3"):
            row(page, name).locator("input").check()
        expect(page.locator(".action-counter")).to_have_text("2 of 4 selected")
        run_action(page)
        expect(page.locator("#content")).to_contain_text("Do you want to force-release these 2 locks?")
        picture(page, "confirm-several")
        assert holder(client, "order:1")
        page.get_by_role("button", name=answer).click()
        expect(page.locator("#result_list")).to_be_visible()
        if answer.startswith("No"):
            page.goto(LIST)
    expect(page.locator(".messagelist .success")).to_have_text("2 locks were force-released.")
    assert names(page) == ["order:0", "order:2"]
    page.get_by_role("link", name="order:0").click()
    page.get_by_role("button", name="Force-release").click()
    expect(page.locator("#content")).to_contain_text("order:0, held for 3 min")
    picture(page, "confirm-one")
    assert holder(client, "order:0")
    page.get_by_role("button", name="Yes, force-release").click()
    expect(page.locator(".messagelist .success")).to_have_text("1 lock was force-released.")
    assert names(page) == ["order:2"]
    page.goto(f"{LIST}order_3A0/change/")
    expect(page.locator("#content")).to_contain_text("Nobody holds this lock now.")
    picture(page, "free")
    page.get_by_role("link", name="History").click()
    expect(page.locator("#change-history tbody tr")).to_have_count(1)
    expect(page.locator("#change-history tbody tr")).to_contain_text(
        re.compile("jo.*It was held by web-1:7:MainThread for 3 min", re.S)
    )
    picture(page, "history")


def test_all_locks_of_a_search_are_force_released_over_all_pages(
    visit: Visit, client: redis.Redis, picture: Picture
) -> None:
    for number in range(120):
        put(client, f"order:{number:03}")
    put(client, "seat:1")
    page = visit(f"{LIST}?q=order")
    picture(page, "pages")
    page.locator(".paginator a", has_text="2").click()
    page.wait_for_url("**p=2**")
    assert names(page) == [f"order:{number:03}" for number in range(100, 120)]
    page.locator("#action-toggle").check()
    page.get_by_role("button", name="Select all 120 locks").click()
    run_action(page)
    expect(page.locator("#content")).to_contain_text("Do you want to force-release these 120 locks?")
    page.get_by_role("button", name="Yes, force-release").click()
    expect(page.locator(".messagelist .success")).to_have_text("120 locks were force-released.")
    page.goto(LIST)
    assert names(page) == ["seat:1"]


def test_texts_are_escaped_wherever_they_stand(visit: Visit, client: redis.Redis, picture: Picture) -> None:
    name, owner = "<img src=x onerror='document.title=1'>\"&", "<script>document.title=2</script>"
    put(client, name, owner=owner)
    put(client, f"{'long' * 60} {'x' * 200}", owner="o" * 200)
    page = visit()
    picture(page, "hostile")
    assert name in names(page)
    page.get_by_role("link", name=name).click()
    expect(page.locator(".field-shown_owner .readonly")).to_have_text(owner)
    picture(page, "hostile-detail")
    page.get_by_role("button", name="Force-release").click()
    expect(page.locator("#content")).to_contain_text(owner)
    page.get_by_role("button", name="Yes, force-release").click()
    expect(page.locator(".messagelist .success")).to_be_visible()
    page.goto("/admin/")
    expect(page.locator("#recent-actions-module")).to_contain_text(name)
    assert page.title() not in ("1", "2")
