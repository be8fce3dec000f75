from __future__ import annotations

from collections.abc import Iterator

import pytest

from .arena import Nursery


@pytest.fixture(scope="package")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()
