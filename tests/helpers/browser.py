"""A real browser for the tests of the admin, and helpers that drive it."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, Page, sync_playwright

from .actors import GENEROUS, until
from .processes import MissingError, require

LIST = "/admin/django_redislock/heldlock/"
Visit = Callable[..., Page]
Picture = Callable[..., None]


def find_chromium() -> str:
    named = os.environ.get("CHROMIUM")
    for name in [named] if named else ["chromium", "chromium-browser", "google-chrome"]:
        if path := shutil.which(name):
            return path
    raise MissingError("Chromium", "apt-get install chromium, or name an executable in CHROMIUM")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = require(find_chromium)
    # Playwright keeps an event loop in this thread, which would make Django and our locks refuse to block it
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"]) as running:
            yield running


@pytest.fixture
def visit(browser: Browser, live_server: Any) -> Iterator[Visit]:
    errors: list[str] = []
    with ExitStack() as stack:

        def visit(path: str = LIST) -> Page:
            client = Client()
            client.force_login(User.objects.create_superuser("jo"))
            session = client.cookies["sessionid"].value
            context = stack.enter_context(browser.new_context(base_url=live_server.url))
            context.set_default_timeout(GENEROUS * 1000)
            context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
            page = context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(path)
            return page

        yield visit
    # the last request of a page must not run after the database was emptied; not with join(), which refuses a thread
    # that is only about to begin
    until(lambda: not any("process_request_thread" in thread.name for thread in threading.enumerate()))
    assert errors == []  # of the scripts on the pages


@pytest.fixture
def picture() -> Picture:
    """Take screenshots, light and dark, narrow and wide, in the folder REDISLOCK_PICTURES if that is set."""

    def picture(page: Page, name: str) -> None:
        folder = os.environ.get("REDISLOCK_PICTURES")
        for scheme, width in product(("dark", "light"), (400, 1200)) if folder else ():
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.set_viewport_size({"width": width, "height": 800})
            page.screenshot(path=Path(folder or "") / f"{name}-{scheme}-{width}.png", full_page=True)

    return picture


def names(page: Page) -> list[str]:
    return page.locator("#result_list tbody th").all_inner_texts()


def row(page: Page, name: str) -> Any:
    return page.locator("#result_list tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def run_action(page: Page) -> None:
    page.locator("select[name=action]").select_option("delete_selected")
    page.locator("button[name=index]").click()
