"""The machine finds each script that is wrong: see mutants.py. A file of its own, so that another worker runs it."""

from __future__ import annotations

import os

import pytest
import redis

from tests.protocol.machine import must_find_a_fault, prepared
from tests.protocol.mutants import MUTANTS

SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0"))


@pytest.mark.complete
@pytest.mark.parametrize("name", MUTANTS)
def test_a_script_that_is_wrong_is_found(name: str, client: redis.Redis) -> None:
    mutant = MUTANTS[name]
    number = SEED or (mutant[3] if len(mutant) == 4 else 1)
    with prepared(client, mutant[:3]) as machine:
        must_find_a_fault(machine, number)
