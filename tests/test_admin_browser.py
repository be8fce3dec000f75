"""The admin as people see it: a real browser, a live server, a real Redis."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Permission, User
from django.test import Client
from playwright.sync_api import Browser, Page, expect

from django_redislock import FairLock, get_lock
from django_redislock.admin import LockAdmin
from redisserver import RedisServer

from .actors import GENEROUS, holder, put
from .browser import chromium, find_chromium

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/django_redislock/heldlock/"
PICTURES = os.environ.get("REDISLOCK_PICTURES")  # a folder for screenshots, for people to look at

Visit = Callable[..., Page]
Picture = Callable[..., None]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """No browser is a failure, never a skip."""
    # Playwright keeps an event loop in this thread, which would make Django and our locks refuse to block it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with chromium() as running:
            yield running


@pytest.fixture
def visit(browser: Browser, live_server: Any) -> Iterator[Visit]:
    """Open a page as an administrator, or as one of the staff who has these permissions only."""
    contexts = []
    errors: list[str] = []

    def visit(path: str = LIST, *, permissions: list[str] | None = None, **options: Any) -> Page:
        if permissions is None:
            user = User.objects.create_superuser("jo")
        else:
            user = User.objects.create_user("sam", is_staff=True)
            user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        context = browser.new_context(base_url=live_server.url, **options)
        contexts.append(context)
        context.set_default_timeout(GENEROUS * 1000)
        context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}])
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert errors == []  # of the scripts on the pages


@pytest.fixture
def picture() -> Picture:
    """Take screenshots, light and dark, wide and narrow, where somebody wants them."""

    def picture(page: Page, name: str) -> None:
        if PICTURES:
            for scheme in ("light", "dark"):
                for width in (1200, 400):
                    page.emulate_media(color_scheme=scheme)
                    page.set_viewport_size({"width": width, "height": 800})
                    page.screenshot(path=Path(PICTURES) / f"{name}-{scheme}-{width}.png", full_page=True)
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 1200, "height": 800})

    return picture


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages refresh themselves ten times a second."""
    script: Any = LockAdmin.Media.js[-1]
    monkeypatch.setitem(script.attributes, "data-seconds", 0.1)


def names(page: Page) -> list[str]:
    return page.locator("#result_list tbody th").all_inner_texts()


def row(page: Page, name: str) -> Any:
    return page.locator("#result_list tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def run_action(page: Page) -> None:
    page.locator("select[name=action]").select_option("delete_selected")
    page.locator("button[name=index]").click()


def test_a_missing_browser_is_a_failure_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    with pytest.raises(RuntimeError, match="apt-get install chromium"):
        find_chromium()


def test_the_index_leads_to_the_list(visit: Visit, client: redis.Redis, picture: Picture) -> None:
    put(client, "order:42", owner="web-1:7:MainThread /orders/42/pay/", since=200, ttl=500, waiters=3)
    put(client, "report:2026", owner="cron:9:MainThread build_report", since=7500, ttl=600)
    put(client, "größe:鍵:ключ", owner="web-2:1:asyncio_0", since=1)
    page = visit("/admin/")
    expect(page.locator(".app-django_redislock caption")).to_have_text("Redis locks")
    page.locator(".app-django_redislock").get_by_role("link", name="Locks", exact=True).first.click()
    expect(page.locator("#result_list thead th .text")).to_have_text(
        ["", "Name", "Owner", "Held for", "Lease left", "Fence", "Waiters"]
    )
    assert names(page) == ["größe:鍵:ключ", "order:42", "report:2026"]
    expect(row(page, "order:42")).to_contain_text(re.compile(r"web-1:7:MainThread /orders/42/pay/\s*3 min 2\d s"))
    picture(page, "list")


def test_search_and_sort(visit: Visit, client: redis.Redis) -> None:
    for number in range(5):
        put(client, f"order:{number}", owner=f"web-{number % 2}", since=10 * number, waiters=5 - number)
    page = visit()
    page.locator("#searchbar").fill("ORDER web-0")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**q=ORDER**")
    assert names(page) == ["order:0", "order:2", "order:4"]
    expect(page.locator("#toolbar .quiet")).to_contain_text("3 results (5 total)")
    page.locator("thead a", has_text="Waiters").click()
    page.wait_for_url("**o=6**")
    assert names(page) == ["order:4", "order:2", "order:0"]
    page.locator("thead a", has_text="Held for").click()
    page.wait_for_url("**o=3**")
    assert names(page) == ["order:0", "order:2", "order:4"]
    page.locator("thead a", has_text="Held for").click()
    page.wait_for_url("**o=-3**")
    assert names(page) == ["order:4", "order:2", "order:0"]


def test_pages(visit: Visit, client: redis.Redis, picture: Picture) -> None:
    for number in range(250):
        put(client, f"order:{number:03}")
    page = visit()
    assert names(page) == [f"order:{number:03}" for number in range(100)]
    picture(page, "pages")
    page.locator(".paginator a", has_text="3").click()
    page.wait_for_url("**p=3**")
    assert names(page) == [f"order:{number:03}" for number in range(200, 250)]


def test_the_page_of_a_lock_shows_its_queue_in_order(
    visit: Visit, client: redis.Redis, eventually: Callable[..., Any], picture: Picture
) -> None:
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with FairLock("order:42"):
            holding.set()
            done.wait(GENEROUS)

    def wait() -> None:
        with FairLock("order:42", blocking_timeout=GENEROUS):
            pass

    threads = [threading.Thread(target=hold, name="the-holder")]
    threads += [threading.Thread(target=wait, name=f"waiter-{number}") for number in range(3)]
    try:
        threads[0].start()
        assert holding.wait(GENEROUS)
        for number, thread in enumerate(threads[1:], 1):
            thread.start()
            eventually(lambda number=number: (info := get_lock("order:42")) and info.waiters == number)
        page = visit()
        page.get_by_role("link", name="order:42").click()
        expect(page.locator(".field-shown_owner .readonly")).to_contain_text("the-holder")
        expect(page.locator(".redislock-queue tbody td:nth-child(2)")).to_have_text(
            [re.compile(f"waiter-{number}") for number in range(3)]
        )
        picture(page, "detail")
    finally:
        done.set()
        for thread in threads:
            thread.join(GENEROUS)


def test_one_lock_is_set_free_after_a_confirmation_and_its_history_says_so(
    visit: Visit, client: redis.Redis, picture: Picture
) -> None:
    put(client, "order:42", owner="web-1:7:MainThread", since=200)
    put(client, "order:43")
    page = visit()
    page.get_by_role("link", name="order:42").click()
    page.get_by_role("button", name="Set free").click()
    expect(page.locator("#content")).to_contain_text("order:42, held for 3 min")
    picture(page, "confirm-one")
    assert holder(client, "order:42")
    page.get_by_role("button", name="Yes, set it free").click()
    expect(page.locator(".messagelist .success")).to_have_text("1 lock was set free.")
    assert not holder(client, "order:42")
    assert names(page) == ["order:43"]
    page.goto(f"{LIST}order_3A42/change/")
    expect(page.locator("#content")).to_contain_text("Nobody holds this lock now.")
    picture(page, "free")
    page.get_by_role("link", name="History").click()
    expect(page.locator("#change-history tbody tr")).to_have_count(1)
    expect(page.locator("#change-history tbody tr")).to_contain_text("jo")
    expect(page.locator("#change-history tbody tr")).to_contain_text("It was held by web-1:7:MainThread for 3 min")
    picture(page, "history")


def test_several_locks_are_set_free_after_a_confirmation(visit: Visit, client: redis.Redis, picture: Picture) -> None:
    for number in range(4):
        put(client, f"order:{number}")
    page = visit()
    for name in ("order:1", "order:3"):
        row(page, name).locator("input").check()
    expect(page.locator(".action-counter")).to_have_text("2 of 4 selected")
    run_action(page)
    expect(page.locator("#content")).to_contain_text("Do you want to set these 2 locks free?")
    picture(page, "confirm-several")
    page.get_by_role("button", name="No, take me back").click()
    expect(page.locator("#result_list")).to_be_visible()
    assert holder(client, "order:1")
    page.goto(LIST)
    for name in ("order:1", "order:3"):
        row(page, name).locator("input").check()
    run_action(page)
    page.get_by_role("button", name="Yes, set free").click()
    expect(page.locator(".messagelist .success")).to_have_text("2 locks were set free.")
    assert names(page) == ["order:0", "order:2"]


def test_all_locks_of_a_search_are_set_free_over_all_pages(visit: Visit, client: redis.Redis) -> None:
    for number in range(120):
        put(client, f"order:{number}")
    put(client, "seat:1")
    page = visit(f"{LIST}?q=order")
    page.locator("#action-toggle").check()
    page.get_by_role("button", name="Select all 120 locks").click()
    run_action(page)
    expect(page.locator("#content")).to_contain_text("Do you want to set these 120 locks free?")
    page.get_by_role("button", name="Yes, set free").click()
    expect(page.locator(".messagelist .success")).to_have_text("120 locks were set free.")
    page.goto(LIST)
    assert names(page) == ["seat:1"]


def test_who_may_only_view_is_offered_nothing_to_set_free(visit: Visit, client: redis.Redis) -> None:
    put(client, "order:42")
    page = visit(permissions=["view_heldlock"])
    assert names(page) == ["order:42"]
    expect(page.locator("select[name=action], .action-select")).to_have_count(0)
    page.get_by_role("link", name="order:42").click()
    expect(page.get_by_role("link", name="History")).to_be_visible()
    expect(page.get_by_role("button", name="Set free")).to_have_count(0)
    response = page.goto(f"{LIST}order_3A42/delete/")
    assert response
    assert response.status == 403


def test_staff_without_permissions_sees_nothing(visit: Visit, client: redis.Redis) -> None:
    put(client, "order:42")
    page = visit("/admin/", permissions=[])
    expect(page.locator("#content")).to_contain_text("have permission")
    expect(page.locator("body")).not_to_contain_text("Redis locks")
    for path in (LIST, f"{LIST}order_3A42/change/", f"{LIST}order_3A42/history/", f"{LIST}order_3A42/delete/"):
        response = page.goto(path)
        assert response
        assert response.status == 403
        assert "order:42" not in page.content()


# -- a page that refreshes itself -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("often")
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
    page.get_by_role("button", name="Yes, set free").click()
    expect(page.locator(".messagelist .success")).to_have_text("2 locks were set free.")
    assert not holder(client, "a")
    assert not holder(client, "d")


@pytest.mark.usefixtures("often")
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


@pytest.mark.usefixtures("often")
def test_the_page_of_a_lock_refreshes_itself(visit: Visit, client: redis.Redis) -> None:
    put(client, "a", owner="first")
    page = visit(f"{LIST}a/change/")
    expect(page.locator(".field-shown_owner .readonly")).to_have_text("first")
    put(client, "a", owner="second")
    expect(page.locator(".field-shown_owner .readonly")).to_have_text("second")
    client.flushall()
    expect(page.locator("#content")).to_contain_text("Nobody holds this lock now.")
    expect(page.get_by_role("button", name="Set free")).to_have_count(0)


@pytest.mark.usefixtures("often")
def test_refreshing_can_be_turned_off_and_stays_off(visit: Visit, client: redis.Redis) -> None:
    put(client, "a")
    page = visit()
    page.get_by_label("Refresh by itself").uncheck()
    page.reload()
    expect(page.get_by_label("Refresh by itself")).not_to_be_checked()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(500)  # five times the interval
    assert asked == []


@pytest.mark.usefixtures("often")
def test_a_page_whose_user_has_logged_out_says_that_it_has_stopped(visit: Visit, client: redis.Redis) -> None:
    put(client, "a")
    page = visit()
    page.context.clear_cookies()
    expect(page.locator(".redislock-refresh")).to_have_text("This page does not refresh itself any more. Reload it.")
    assert names(page) == ["a"]


@pytest.mark.usefixtures("often")
def test_redis_stops_and_starts_again_under_an_open_page(visit: Visit, server: RedisServer, picture: Picture) -> None:
    with server.client() as client:
        put(client, "a")
    page = visit()
    row(page, "a").locator("input").check()
    server.stop()
    try:
        expect(page.locator(".messagelist .error")).to_contain_text("Redis does not serve the locks now")
        expect(page.locator(".messagelist .error")).to_have_count(1)
        assert names(page) == ["a"]
        picture(page, "down-open")
        fresh = page.context.new_page()
        response = fresh.goto(LIST)
        assert response
        assert response.status == 200
        expect(fresh.locator(".messagelist .error")).to_contain_text("Redis does not serve the locks now")
        picture(fresh, "down")
    finally:
        server.start()
    with server.client() as client:
        put(client, "a")
        put(client, "b")
    for one in (page, fresh):
        expect(one.locator(".messagelist .error")).to_have_count(0)
        expect(one.locator("#result_list tbody th")).to_have_text(["a", "b"])
    expect(row(page, "a").locator("input")).to_be_checked()


@pytest.mark.usefixtures("often")
def test_the_page_of_a_lock_goes_on_after_redis_was_away(visit: Visit, server: RedisServer) -> None:
    with server.client() as client:
        put(client, "a", owner="before")
    page = visit(f"{LIST}a/change/")
    server.stop()
    try:
        expect(page.locator(".messagelist .error")).to_contain_text("Redis does not serve the locks now")
        expect(page.locator("#heldlock_form")).to_have_class(re.compile("redislock-stale"))
        expect(page.locator(".field-shown_owner .readonly")).to_have_text("before")
    finally:
        server.start()
    with server.client() as client:
        put(client, "a", owner="after")
    expect(page.locator(".field-shown_owner .readonly")).to_have_text("after")
    expect(page.locator(".messagelist .error")).to_have_count(0)
    expect(page.get_by_label("Refresh by itself")).to_be_checked()


def focused(page: Page) -> str:
    """What has the focus, if it is what had it before."""
    text: str = page.evaluate("document.activeElement.before ? document.activeElement.textContent.trim() : ''")
    return text


def focus(link: Any) -> None:
    link.focus()
    link.evaluate("link => link.before = true")


@pytest.mark.usefixtures("often")
def test_the_focus_stays_where_it_is_on_the_page_of_a_lock(visit: Visit, client: redis.Redis) -> None:
    put(client, "a", owner="first")
    page = visit(f"{LIST}a/change/")
    focus(page.get_by_role("button", name="Set free"))
    put(client, "a", owner="second")
    expect(page.locator(".field-shown_owner .readonly")).to_have_text("second")
    assert focused(page) == "Set free…"
    page.get_by_role("button", name="Back to the list").focus()
    client.flushall()  # the rest of the page becomes another
    expect(page.locator("#content")).to_contain_text("Nobody holds this lock now.")
    expect(page.get_by_role("button", name="Back to the list")).to_be_focused()


@pytest.mark.usefixtures("often")
def test_the_focus_moves_with_its_row(visit: Visit, client: redis.Redis) -> None:
    for number, name in enumerate("abc", 1):
        put(client, name, waiters=number)
    page = visit(f"{LIST}?o=6")
    assert names(page) == ["a", "b", "c"]
    focus(page.get_by_role("link", name="c", exact=True))
    client.delete("redislock{0}:queue:c")
    expect(page.locator("#result_list tbody th")).to_have_text(["c", "a", "b"])
    assert focused(page) == "c"


# -- hostile texts and other languages --------------------------------------------------------------------------------


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
    page.get_by_role("button", name="Set free").click()
    expect(page.locator("#content")).to_contain_text(owner)
    page.get_by_role("button", name="Yes, set it free").click()
    expect(page.locator(".messagelist .success")).to_be_visible()
    page.goto("/admin/")
    expect(page.locator("#recent-actions-module")).to_contain_text(name)
    assert page.title() not in ("1", "2")


@pytest.mark.parametrize(
    ("language", "heading", "button"), [("de", "Gehaltene Sperren", "Freigeben"), ("zh-hans", "已持有的锁", "释放")]
)
def test_the_admin_speaks_other_languages(
    language: str, heading: str, button: str, visit: Visit, client: redis.Redis, picture: Picture, settings: Any
) -> None:
    settings.LANGUAGE_CODE = language
    put(client, "order:42", since=200)
    page = visit()
    expect(page.locator("#content h1")).to_have_text(heading)
    picture(page, f"list-{language}")
    page.get_by_role("link", name="order:42").click()
    expect(page.get_by_role("button", name=button)).to_be_visible()
    picture(page, f"detail-{language}")
