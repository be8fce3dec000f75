"""The scripts do what the reference says. The suite draws the same sequences each time; with
``REDISLOCK_TEST_EXAMPLES=5000`` it draws that many new ones, and a failure prints how to repeat it."""

from __future__ import annotations

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.protocol.machine import EXAMPLES, QUIETLY, Machine, prepared
from tests.protocol.permits import Permits


@pytest.mark.complete
@pytest.mark.timeout(0 if EXAMPLES else 600)
def test_the_scripts_do_what_the_reference_says(client: redis.Redis) -> None:
    chosen = settings(QUIETLY, max_examples=EXAMPLES or 100, derandomize=not EXAMPLES, print_blob=True)
    with prepared(client, Machine) as machine:
        run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.complete
@pytest.mark.timeout(0 if EXAMPLES else 600)
def test_a_semaphore_serves_all_in_order_and_no_more_than_its_limit(client: redis.Redis) -> None:
    chosen = settings(QUIETLY, max_examples=EXAMPLES or 60, derandomize=not EXAMPLES, print_blob=True)
    with prepared(client, Permits) as machine:
        run_state_machine_as_test(machine, settings=chosen)
