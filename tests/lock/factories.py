"""Factories of tasks: asyncio's own, eager ones (Python 3.12), and one that wraps each coroutine in another, as the
integrations of Sentry, OpenTelemetry and ddtrace do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

Factory = Callable[..., "asyncio.Task[Any]"]


def wrapping(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    async def with_a_span() -> Any:
        return await coroutine

    return asyncio.Task(with_a_span(), loop=loop, **options)


FACTORIES: dict[str, Factory | None] = {"plain": None, "wrapping": wrapping}

if sys.version_info >= (3, 12):

    def eager_and_wrapping(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        return wrapping(loop, coroutine, **{"eager_start": True, **options})

    FACTORIES |= {"eager": asyncio.eager_task_factory, "eager and wrapping": eager_and_wrapping}
