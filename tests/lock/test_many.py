"""Thousands of locks in one thread or task: each costs as much as the first."""

from __future__ import annotations

from time import process_time

import pytest

from django_redislock import Lock
from tests.helpers.actors import Crowd

FEW, MANY = 500, 5000


class Section:
    """So many locks, acquired and released one after the other."""

    def __init__(self, number: int) -> None:
        self.locks = [Lock(f"seat:{seat}", ttl=600) for seat in range(number)]

    def hold(self) -> None:
        for lock in self.locks:
            lock.acquire()
        for lock in self.locks:
            lock.release()

    async def ahold(self) -> None:
        for lock in self.locks:
            await lock.aacquire()
        for lock in self.locks:
            await lock.arelease()


@pytest.mark.complete
def test_a_lock_costs_as_much_in_a_thread_or_task_that_holds_thousands(crowd: Crowd) -> None:
    """Ten times as many locks cost ten times as much. If each were compared with all others, it would be a hundred
    times."""
    me, used = crowd(), []
    for number in (FEW, MANY):
        section = Section(number)
        began = process_time()
        me(section, "hold")
        used.append((process_time() - began) / number)
    assert used[1] < 3 * used[0]
