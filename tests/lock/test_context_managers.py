"""What the language and its library do with a context manager, with each of ours."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis

from django_redislock import FairLock, Lock, LockLost, LockPool, PoolMember, aforce_release, force_release, lock_name
from tests.helpers.state import NAME
from tests.inside import keys_of, renew_all

from .kin import Kin, both, owner_rule

Way = Callable[[Kin, Any], contextlib.AbstractAsyncContextManager[None]]


class Subclass(Lock):
    """As sites have them, with something of their own at the end of each block."""

    def __exit__(self, *error: Any) -> Any:
        return super().__exit__(*error)

    async def __aexit__(self, *error: Any) -> Any:
        return await super().__aexit__(*error)


@contextlib.asynccontextmanager
async def by_statement(kin: Kin, manager: Any) -> AsyncIterator[None]:
    if kin.tasks:
        async with manager:
            yield
    else:
        with manager:
            yield


@contextlib.asynccontextmanager
async def by_a_stack_that_was_moved(kin: Kin, manager: Any) -> AsyncIterator[None]:
    if kin.tasks:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(manager)
            moved = stack.pop_all()
        async with moved:
            yield
    else:
        with contextlib.ExitStack() as sync_stack:
            sync_stack.enter_context(manager)
            sync_moved = sync_stack.pop_all()
        with sync_moved:
            yield


@contextlib.asynccontextmanager
async def by_the_type(kin: Kin, manager: Any) -> AsyncIterator[None]:
    """Looked up there first, as ``enterContext()`` of unittest does it."""
    enter, exit = (getattr(type(manager), f"__{'a' * kin.tasks}{method}__") for method in ("enter", "exit"))
    await enter(manager) if kin.tasks else enter(manager)
    failed: Any = None, None, None
    try:
        yield
    except BaseException as error:
        failed = type(error), error, error.__traceback__
        raise
    finally:
        await exit(manager, *failed) if kin.tasks else exit(manager, *failed)


WAYS: list[Way] = [by_statement, by_a_stack_that_was_moved, by_the_type]
every_way = pytest.mark.parametrize("way", WAYS)


MEMBER = lock_name("pool", "seats", "a")
MANAGERS: dict[str, Callable[[], Any]] = {
    "Lock": lambda: Lock(NAME),
    "reentrant": lambda: FairLock(NAME, reentrant=True),
    "subclass": lambda: Subclass(NAME),
    "pool member": lambda: LockPool("seats"),
}


@every_way
@pytest.mark.parametrize("which", MANAGERS)
@both
async def test_a_lock_is_held_until_its_context_manager_is_left(kin: Kin, way: Way, which: str) -> None:
    made, name = MANAGERS[which](), MEMBER if which == "pool member" else NAME
    if which == "pool member":
        await kin(made, "extend", ["a"])
    for fails in (False, True, False):
        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            async with way(kin, await kin(made, "acquire") if which == "pool member" else made):
                assert await kin.info(name) is not None
                if fails:
                    raise ZeroDivisionError
        assert await kin.info(name) is None


@every_way
@both
async def test_a_reentrant_object_is_held_until_its_outermost_block_is_left(kin: Kin, way: Way) -> None:
    lock = Lock(NAME, reentrant=True)
    async with way(kin, lock):
        async with way(kin, lock), way(kin, Lock(NAME, reentrant=True)):
            assert await kin(lock, "owned")
        assert await kin(lock, "owned")
    assert await kin.info() is None


@every_way
@both
async def test_a_lock_that_was_lost_in_its_block_is_told_at_its_end(kin: Kin, way: Way) -> None:
    with pytest.raises(LockLost):
        async with way(kin, Lock(NAME)):
            await aforce_release(NAME) if kin.tasks else force_release(NAME)


@both
async def test_a_lock_that_only_its_block_refers_to_is_renewed(kin: Kin, client: redis.Redis) -> None:
    keys = [keys_of(f"{NAME}:{number}").lock for number in range(len(WAYS))]
    async with contextlib.AsyncExitStack() as stack:
        for number, way in enumerate(WAYS):
            await stack.enter_async_context(way(kin, Lock(f"{NAME}:{number}", ttl=600)))
            assert client.pexpire(keys[number], 300_000)
        gc.collect()
        renew_all()  # as after a reconnect, and not when a third of the TTL has passed
        await kin.until(lambda: all(client.pttl(key) > 300_000 for key in keys))


@both
async def test_the_lock_of_a_generator_is_free_soon_after_that_was_closed(kin: Kin) -> None:
    """In the background, since a finalizer may have closed it."""

    def generator() -> Iterator[None]:
        with Lock(NAME):
            yield

    async def agenerator() -> AsyncIterator[None]:
        async with Lock(NAME):
            yield

    async def is_free() -> bool:
        return await kin.info() is None

    begun: Any = agenerator() if kin.tasks else generator()
    await anext(begun) if kin.tasks else next(begun)
    assert not await is_free()
    await begun.aclose() if kin.tasks else begun.close()
    await kin.until(is_free)


@owner_rule
@pytest.mark.parametrize("kind", [Lock, PoolMember])
def test_the_end_of_an_async_block_is_a_coroutine_function(kind: type[Lock]) -> None:
    """Else ``enterAsyncContext()`` does not await it."""
    assert inspect.iscoroutinefunction(kind.__aexit__)
