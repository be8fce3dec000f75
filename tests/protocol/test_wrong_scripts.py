"""The machine finds each script that leaves out a rule. A file of its own, so that another worker runs it."""

import os

import pytest
import redis

from tests.protocol.machine import Machine, must_find_a_fault, prepared
from tests.protocol.mutants import MUTANTS, OF_PERMITS
from tests.protocol.permits import Permits

SEED = int(os.environ.get("REDISLOCK_TEST_SEED", "0"))


@pytest.mark.complete
@pytest.mark.parametrize("rule", MUTANTS)
def test_a_script_that_leaves_out_a_rule_is_found(rule: str, client: redis.Redis) -> None:
    with prepared(client, Machine, without=rule) as machine:
        must_find_a_fault(machine, SEED or MUTANTS[rule][0])


@pytest.mark.complete
@pytest.mark.parametrize("rule", OF_PERMITS)
def test_a_script_for_semaphores_that_leaves_out_a_rule_is_found(rule: str, client: redis.Redis) -> None:
    with prepared(client, Permits, without=rule) as machine:
        must_find_a_fault(machine, SEED or OF_PERMITS[rule][0])
