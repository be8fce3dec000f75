"""Pools for the tests: one in each world, and what Redis holds of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest

from django_redislock import LockPool, lock_name
from django_redislock.connection import get_backend
from django_redislock.names import pool_keys, pool_name

from .actors import GENEROUS

POOL = "accounts"
PREFIX = "redislock{0}:"


@pytest.fixture(params=[False, True], ids=["barging", "fair"])
def fair(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Way:
    """One of the worlds in which a pool can be used, by one thread or one task: ``way("extend", ["alice"])``."""

    def __init__(self, using: str, *, coroutines: bool) -> None:
        self.using = using
        self.pool = LockPool(POOL, using=using)
        self._task = _Task() if coroutines else None

    def __call__(self, method: str, *args: Any, **options: Any) -> Any:
        """A method of the pool, or its twin."""
        return self.on(self.pool, method, *args, **options)

    def on(self, thing: Any, method: str, *args: Any, **options: Any) -> Any:
        if self._task is None:
            return getattr(thing, method if hasattr(thing, method) else f"__{method}__")(*args, **options)
        return self._task(lambda: getattr(thing, f"a{method}")(*args, **options))

    def read(self, look: Callable[[], Any]) -> Any:
        """What the thread or task sees that has done all this."""
        if self._task is None:
            return look()

        async def alook() -> Any:
            return look()

        return self._task(alook)

    def redis(self, *command: Any) -> Any:
        """A command of somebody else."""
        return get_backend(self.using).execute(command)

    def close(self) -> None:
        if self._task is not None:
            self._task.end()


class _Task:
    """A task, in an event loop of its own, that does what it is told, one thing after the other."""

    def __init__(self) -> None:
        self._jobs: asyncio.Queue[tuple[Future[Any], Callable[[], Awaitable[Any]]] | None] = asyncio.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self) -> None:
        while (job := await self._jobs.get()) is not None:
            future, call = job
            try:
                future.set_result(await call())
            except Exception as error:
                future.set_exception(error)

    def __call__(self, call: Callable[[], Awaitable[Any]]) -> Any:
        future: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, (future, call))
        return future.result(GENEROUS)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, None)
        self._thread.join(GENEROUS)


def lock_of(key: str, pool: str = POOL) -> str:
    """The name of a member's lock, as the documentation tells users to make it."""
    return lock_name("pool", pool, key)


def audit(client: Any, pool: str = POOL, prefix: str = PREFIX) -> dict[str, set[str]]:
    """What Redis has of a pool, if it fits together: the members, and those that are free, busy, leaving and locked."""
    stem = f"{prefix}lock:{pool_name(pool)}"
    with client.pipeline() as moment:
        for key in pool_keys(prefix, pool_name(pool))[:4]:
            moment.zrange(key, 0, -1)
        moment.keys(f"{stem}*")
        *sets, locks = moment.execute()
    members, free, busy, leaving = ({member.decode() for member in found} for found in sets)
    locked = {key.decode().removeprefix(stem) for key in locks}
    assert members == free | busy
    assert not free & busy
    assert leaving <= busy
    assert locked <= members
    return {"members": members, "free": free, "busy": busy, "leaving": leaving, "locked": locked}


def leftovers(client: Any, prefix: str = PREFIX) -> list[str]:
    """Keys that are no pool's members, but for the last fence and what ends by itself within a minute or so."""
    kept = {f"{prefix}{kind}:" for kind in ("members", "free")}
    return sorted(
        key.decode()
        for key in client.keys(f"{prefix}*")
        if not key.decode().startswith(tuple(kept)) and key.decode() != f"{prefix}fence" and not expires(client, key)
    )


def expires(client: Any, key: bytes) -> bool:
    """Whether it holds up nobody and ends by itself: a token that is gone, the trace of a handoff or of a member."""
    kind = key.split(b":")[1]
    trace = kind == b"waiters" and client.hkeys(key) in ([], [b"!"])
    return (trace or kind in (b"gone", b"took")) and 0 < client.pttl(key) <= 70_000
