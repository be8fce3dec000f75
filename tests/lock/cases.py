"""Test cases that hold a lock from their set-up to their tear-down, for ``test_whose_calls.py``.

Each of the three is a task of its own, in one context. (Where pytest finds test cases, it runs them itself.)
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import unittest

from django_redislock import Lock
from tests.helpers.state import NAME

from .kin import Kin

TTL = 2.0


class Case(unittest.IsolatedAsyncioTestCase):
    """Holds a lock from set-up to tear-down. Its subclasses differ in how."""

    lock: Lock

    def setUp(self) -> None:
        if sys.version_info < (3, 11):  # which leaves them to the garbage collection, and with them our connections
            self.addAsyncCleanup(self._end_generators)

    async def _end_generators(self) -> None:
        await asyncio.get_running_loop().shutdown_asyncgens()

    async def test(self) -> None:
        assert await self.lock.aowned()
        assert self.lock.token is not None
        self.lock.check()
        assert await self.lock.aextend(0.1)
        assert await Kin(tasks=True).renewed(TTL)
        assert not self.lock.lost


class TasksCase(Case):
    async def asyncSetUp(self) -> None:
        self.lock = Lock(NAME, ttl=TTL)
        assert await self.lock.aacquire()

    async def asyncTearDown(self) -> None:
        await self.lock.arelease()


class CleanupCase(Case):
    async def asyncSetUp(self) -> None:
        self.lock = Lock(NAME, ttl=TTL)
        await self.lock.aacquire()
        self.addAsyncCleanup(self.lock.arelease)


class StackCase(Case):
    async def asyncSetUp(self) -> None:
        self.stack = contextlib.AsyncExitStack()
        self.lock = await self.stack.enter_async_context(Lock(NAME, ttl=TTL))

    async def asyncTearDown(self) -> None:
        await self.stack.aclose()


class SyncCase(Case):
    """Its set-up and tear-down are sync code, in the thread of the event loop, which stands still then."""

    def setUp(self) -> None:
        super().setUp()
        self.lock = Lock(NAME, ttl=TTL)
        self.lock.acquire()

    def tearDown(self) -> None:
        self.lock.release()


class HandCase(Case):
    """As ``enterAsyncContext`` does it, which Python 3.10 has not."""

    async def asyncSetUp(self) -> None:
        self.lock = Lock(NAME, ttl=TTL)
        kind = type(self.lock)
        await kind.__aenter__(self.lock)
        self.addAsyncCleanup(kind.__aexit__, self.lock, None, None, None)


CASES: list[type[Case]] = [TasksCase, CleanupCase, StackCase, SyncCase, HandCase]

if sys.version_info >= (3, 11):

    class EnterAsyncCase(Case):
        async def asyncSetUp(self) -> None:
            self.lock = await self.enterAsyncContext(Lock(NAME, ttl=TTL))

    class EnterInTestCase(Case):
        async def test(self) -> None:
            self.lock = await self.enterAsyncContext(Lock(NAME, ttl=TTL))
            await super().test()

    class EnterCase(Case):
        def setUp(self) -> None:
            self.lock = self.enterContext(Lock(NAME, ttl=TTL))

    CASES += [EnterAsyncCase, EnterInTestCase, EnterCase]
