"""A failover loses grants that no replica had; with REPLICAS nobody believes such a grant."""

from __future__ import annotations

import pytest

from .replicas import count_losses

pytestmark = pytest.mark.complete


def test_what_a_replica_has_acknowledged_is_not_lost_with_the_master() -> None:
    without, with_one = count_losses(0, 5), count_losses(1, 5)
    assert without.lost > 0
    assert with_one.lost == 0
    assert with_one.believed > 20
