"""A real browser for the tests of the admin."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
HELP = (
    "No Chromium was found. Install one (Debian: apt-get install chromium), or name an executable in the environment "
    "variable CHROMIUM."
)
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str:
    named = os.environ.get("CHROMIUM")
    for name in [named] if named else NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    raise RuntimeError(HELP)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser for the time of a block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=QUIET)
        try:
            yield browser
        finally:
            browser.close()
