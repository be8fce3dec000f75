"""Whatever goes wrong on a cluster or with Sentinel, no two hold a lock at once without being told; it all goes on."""

from __future__ import annotations

import pytest

from .faults import Fault
from .on_cluster import ON_CLUSTER
from .on_sentinels import ON_SENTINELS
from .trial import INTERRUPTS, Launcher, trial

pytestmark = pytest.mark.complete


@pytest.mark.parametrize("fault", [*ON_CLUSTER, *ON_SENTINELS], ids=lambda fault: fault.title)
def test_a_fault_of_several_servers(fault: Fault, launcher: Launcher) -> None:
    assert fault.server is not None
    interrupts = 0.0 if fault.ttl else INTERRUPTS
    with (
        fault.server() as servers,
        trial(launcher, servers, workers=3, holds=fault.holds, ttl=fault.ttl, interrupts=interrupts) as run,
    ):
        fault.strike(run)
        run.obtained(3)
        assert run.finish() == []
        if fault.two == "no":
            assert run.history.longest_overlap() == 0.0
