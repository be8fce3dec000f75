"""The scripts do what the reference says. The suite draws the same sequences each time; with
``REDISLOCK_TEST_EXAMPLES=5000`` it draws that many new ones, and a failure prints how to repeat it."""

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.protocol.machine import EXAMPLES, QUIETLY, Machine, OnServer, prepared
from tests.protocol.permits import Permits


@pytest.mark.complete
@pytest.mark.timeout(0 if EXAMPLES else 600)
@pytest.mark.parametrize(
    ("kind", "examples"),
    [(Machine, 100), (Permits, 60)],
    ids=["what the reference says", "of a semaphore, all in order and no more than its limit"],
)
def test_the_scripts_do_what_they_should(kind: type[OnServer], examples: int, client: redis.Redis) -> None:
    chosen = settings(QUIETLY, max_examples=EXAMPLES or examples, derandomize=not EXAMPLES, print_blob=True)
    with prepared(client, kind) as machine:
        run_state_machine_as_test(machine, settings=chosen)
