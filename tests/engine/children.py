"""Ways in which asyncio lets another task await a call."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from tests.helpers.actors import GENEROUS

Child = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


async def by_gather(call: Callable[[], Awaitable[Any]]) -> Any:
    return (await asyncio.gather(call()))[0]


async def by_wait_for(call: Callable[[], Awaitable[Any]]) -> Any:
    return await asyncio.wait_for(call(), GENEROUS)


async def by_context(call: Callable[[], Awaitable[Any]]) -> Any:
    return await contextvars.copy_context().run(asyncio.ensure_future, call())


CHILDREN = [by_gather, by_context]
if sys.version_info >= (3, 11):

    async def by_group(call: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call())  # type: ignore[arg-type,var-annotated]
        return task.result()

    CHILDREN.append(by_group)
