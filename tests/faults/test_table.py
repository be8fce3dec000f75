"""README's table "What happens when" has a row for each fault, with what is expected of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .faults import FAULTS, Fault

README = (Path(__file__).parents[2] / "README.rst").read_text()
TABLE = README.partition("What happens when\n====")[2].partition("Where two can hold at once")[0]
ROWS = {cells[0]: cells[1:] for line in TABLE.splitlines() if len(cells := re.split("  +", line)) == 5}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.strike.__name__)
def test_the_table_tells_what_happens(fault: Fault) -> None:
    holder, waiters, seconds, two = ROWS[fault.title]
    assert (holder, waiters) == (fault.holder, fault.waiters)
    assert float(seconds) <= 3
    assert two.startswith(fault.two)


def test_the_table_has_no_other_rows() -> None:
    assert len(ROWS) == len(FAULTS) + 2  # its heads and its rules
