"""Programs that tests need from the machine. Without them, tests are skipped, and a line at the end of the run says so.

If the environment variable ``CI`` is set, nothing may be missing: the tests fail.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest

Found = TypeVar("Found")

_MARK = "the machine lacks "


class MissingError(RuntimeError):
    """``what`` is not on this machine; ``remedy`` says how to get it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} ({remedy})")


def require(find: Callable[[], Found]) -> Found:
    """Return what ``find`` finds; if it finds nothing, skip the test, or fail it in CI."""
    try:
        return find()
    except MissingError as missing:
        message = f"{_MARK}{missing}"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def left_out(reasons: Iterable[str]) -> str:
    """The last line of a run whose tests were skipped for these reasons; empty if nothing was missing."""
    missing = Counter(reason.partition(_MARK)[2] for reason in reasons if _MARK in reason)
    parts = [f"{count} test{'s that need' if count > 1 else ' that needs'} {what}" for what, count in missing.items()]
    return f"Left out: {'; '.join(parts)}." if parts else ""


def wheel_folder(package: str) -> Path | None:
    """The folder of an installed package, which is not imported."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None
