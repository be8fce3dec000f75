"""The documentation's table "What happens when" has a row for each fault, with what is expected of it."""

from __future__ import annotations

import re

import pytest

from tests.helpers.docs import page

from .faults import FAULTS, Fault
from .on_cluster import ON_CLUSTER
from .on_sentinels import ON_SENTINELS

TABLE = page("faults").partition("What happens when\n====")[2].partition("Where two can hold at once")[0]
ROWS = {cells[0]: cells[1:] for line in TABLE.splitlines() if len(cells := re.split("  +", line)) == 5}


ALL = [*FAULTS, *ON_SENTINELS, *ON_CLUSTER]


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.title)
def test_the_table_tells_what_happens(fault: Fault) -> None:
    holder, waiters, seconds, two = ROWS[fault.title]
    assert (holder, waiters) == (fault.holder, fault.waiters)
    assert float(seconds) <= (3 if fault in FAULTS else 15)  # those have a failover to wait for
    assert two.startswith(fault.two)


def test_the_table_has_no_other_rows() -> None:
    assert len(ROWS) == len(ALL) + 2  # its heads and its rules
