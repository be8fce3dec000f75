"""The machine finds each script that is wrong: see mutants.py. A file of its own, so that another worker runs it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import redis
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.protocol.machine import QUIETLY, prepared
from tests.protocol.mutants import MUTANTS

SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0"))


@pytest.mark.complete
@pytest.mark.parametrize("name", MUTANTS)
def test_a_script_that_is_wrong_is_found(name: str, client: redis.Redis) -> None:
    mutant = MUTANTS[name]
    number = SEED or (mutant[3] if len(mutant) == 4 else 1)
    once = settings(QUIETLY, max_examples=1000, phases=[Phase.generate], report_multiple_bugs=False)
    with prepared(client, mutant[:3]) as machine:
        factory: Any = seed(number)(lambda: machine())  # the class itself would keep the seed
        with pytest.raises(AssertionError):
            run_state_machine_as_test(factory, settings=once)
