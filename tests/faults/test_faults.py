"""Whatever goes wrong, no two hold a lock at once without being told, and everything continues when it is over."""

from __future__ import annotations

import os
import random
from contextlib import nullcontext

import pytest

from redisserver import RedisServer, redis_server

from .faults import FAULTS, Fault, strike_at_random
from .trial import Launcher, trial

pytestmark = pytest.mark.complete

# for a longer run: how many random faults, one after the other
ROUNDS = int(os.environ.get("REDISLOCK_TEST_FAULTS", "3"))
SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0")) or random.SystemRandom().getrandbits(32)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.strike.__name__)
def test_a_fault_alone(fault: Fault, launcher: Launcher, bare_server: RedisServer) -> None:
    with (
        fault.server() if fault.server else nullcontext(bare_server) as struck,
        trial(launcher, struck, proxied=[0] if fault.network else []) as run,
    ):
        fault.strike(run)
        run.obtained(3)
        assert run.finish() == []
        if fault.two == "no":
            # a holder whose token others have may be considered dead, and is told
            history = run.history
            assert not [pair for pair in history.overlaps() if not history.adopted(pair[0], pair[1])]


def test_faults_at_random(launcher: Launcher) -> None:
    """One fault after the other, while processes are killed and stopped. REDISLOCK_TEST_FAULTS: how many."""
    print(f"REDISLOCK_TEST_SEED={SEED} REDISLOCK_TEST_FAULTS={ROUNDS}")
    with redis_server() as server, trial(launcher, server, workers=3, proxied=[0, 1], seed=SEED) as run:
        strike_at_random(run, ROUNDS, rest=10)
        assert run.finish() == []
        print(f"{len(run.history.obtained)} sections, {run.history.count('lost')} lost")
