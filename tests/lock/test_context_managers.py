"""All that the language and its library do with a context manager, with each of ours."""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import unittest
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import Context
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from django.core.cache import caches

from django_redislock import (
    FairLock,
    Lock,
    LockLost,
    LockPool,
    PoolMember,
    aforce_release,
    aget_lock,
    force_release,
    get_lock,
    lock_name,
    locked_atomic,
)
from redisserver import RedisServer
from tests.helpers.databases import one_database
from tests.helpers.state import NAME

from .kin import Kin, owner_rule

MEMBER = lock_name("pool", "seats", "a")


class Subclass(Lock):
    """As sites have them, with something of their own around each block."""

    def __enter__(self) -> Any:
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        return super().__exit__(*error)

    async def __aenter__(self) -> Any:
        return await super().__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        return await super().__aexit__(*error)


# -- with --------------------------------------------------------------------------------------------------------------


class Manager(NamedTuple):
    """Makes a context manager that has not been entered; and the name and alias of its lock."""

    make: Callable[..., Any]
    name: str = NAME
    using: str | None = None

    def held(self) -> bool:
        return get_lock(self.name, using=self.using) is not None


MANAGERS = {
    "Lock": Manager(lambda **options: Lock(NAME, **options)),
    "reentrant": Manager(lambda **options: FairLock(NAME, reentrant=True, **options)),
    "subclass": Manager(lambda **options: Subclass(NAME, **options)),
    "pool member": Manager(lambda **options: LockPool("seats").acquire(**options), MEMBER),
    "cache.lock()": Manager(lambda **options: caches["ours"].lock(NAME), using="ours"),  # type: ignore[attr-defined]
    "locked_atomic": Manager(lambda **options: locked_atomic(NAME, **options)),
}


@pytest.fixture(params=MANAGERS)
def manager(
    request: pytest.FixtureRequest, settings: Any, server: RedisServer, sqlite: dict[str, Any], django_db_blocker: Any
) -> Iterator[Manager]:
    ours = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": server.url}
    settings.CACHES = {**settings.CACHES, "ours": ours}
    LockPool("seats").extend(["a"])
    if request.param != "locked_atomic":
        yield MANAGERS[request.param]
        return
    with django_db_blocker.unblock(), one_database("default", sqlite):
        yield MANAGERS[request.param]


def by_statement(manager: Any) -> Any:
    return manager


@contextlib.contextmanager
def by_exit_stack(manager: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(manager)
        yield


@contextlib.contextmanager
def by_a_stack_that_was_moved(manager: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(manager)
        moved = stack.pop_all()
    with moved:
        yield


@contextlib.contextmanager
def by_pushing_its_exit(manager: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        manager.__enter__()
        stack.push(manager)
        yield


@contextlib.contextmanager
def by_hand(manager: Any) -> Iterator[None]:
    manager.__enter__()
    try:
        yield
    except BaseException as error:
        if not manager.__exit__(type(error), error, error.__traceback__):
            raise
    else:
        manager.__exit__(None, None, None)


@contextlib.contextmanager
def by_the_type(manager: Any) -> Iterator[None]:
    enter, exit = type(manager).__enter__, type(manager).__exit__
    enter(manager)
    try:
        yield
    except BaseException as error:
        if not exit(manager, type(error), error, error.__traceback__):
            raise
    else:
        exit(manager, None, None, None)


class Wrapper:
    """Hands on to another context manager."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    def __enter__(self) -> Any:
        return self.manager.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self.manager.__exit__(*error)

    async def __aenter__(self) -> Any:
        return await self.manager.__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        return await self.manager.__aexit__(*error)


@contextlib.contextmanager
def by_a_generator(manager: Any) -> Iterator[None]:
    with manager:
        yield


WAYS: dict[str, Callable[[Any], Any]] = {
    "statement": by_statement,
    "ExitStack": by_exit_stack,
    "pop_all": by_a_stack_that_was_moved,
    "push": by_pushing_its_exit,
    "by hand": by_hand,
    "through the type": by_the_type,
    "wrapper": Wrapper,
    "contextmanager": by_a_generator,
}

if sys.version_info >= (3, 11):

    @contextlib.contextmanager
    def by_a_test_case(manager: Any) -> Iterator[None]:
        case = unittest.TestCase()
        case.enterContext(manager)
        try:
            yield
        finally:
            assert case.doCleanups()

    WAYS["enterContext"] = by_a_test_case

every_way = pytest.mark.parametrize("way", WAYS)


@pytest.mark.parametrize("fails", [False, True], ids=["well", "with an error"])
@every_way
def test_a_lock_is_held_until_its_context_manager_is_left(manager: Manager, way: str, fails: bool) -> None:
    def section() -> None:
        with WAYS[way](manager.make()):
            assert manager.held()
            if fails:
                raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            Context().run(section)
        assert not manager.held()


@every_way
def test_an_object_is_entered_once_more_after_its_block(way: str) -> None:
    lock, fences = Lock(NAME), []
    for _ in range(3):
        with WAYS[way](lock):
            fences.append(lock.fence)
        assert get_lock(NAME) is None
    assert len(set(fences)) == 3


@every_way
def test_a_reentrant_object_is_held_until_its_outermost_block_is_left(way: str) -> None:
    lock = Lock(NAME, reentrant=True)
    with WAYS[way](lock):
        with WAYS[way](lock), WAYS[way](Lock(NAME, reentrant=True)):
            assert lock.owned()
        assert lock.owned()
    assert get_lock(NAME) is None


@every_way
def test_a_lock_that_was_lost_in_its_block_is_told_at_its_end(way: str) -> None:
    def section() -> None:
        with WAYS[way](Lock(NAME)):
            force_release(NAME)

    # unittest keeps the errors of its cleanups to itself
    with pytest.raises(AssertionError if way == "enterContext" else LockLost):
        section()


@pytest.mark.parametrize("close", ["closing", "callback"])
def test_release_is_called_by_what_closes_things(close: str) -> None:
    lock = Lock(NAME)
    assert lock.acquire()
    if close == "closing":
        with contextlib.closing(SimpleNamespace(close=lock.release)):
            assert lock.owned()
    else:
        with contextlib.ExitStack() as stack:
            stack.callback(lock.release)
            assert lock.owned()
    assert get_lock(NAME) is None


def test_the_lock_of_a_generator_is_free_soon_after_that_was_closed(
    manager: Manager, eventually: Callable[..., Any]
) -> None:
    """In the background, since a finalizer may have closed it."""

    def generator() -> Iterator[None]:
        with manager.make():
            yield

    begun = generator()
    next(begun)
    assert manager.held()
    begun.close()  # type: ignore[attr-defined]
    eventually(lambda: not manager.held())


# -- async with --------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def aby_exit_stack(manager: Any) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(manager)
        yield


@contextlib.asynccontextmanager
async def aby_a_stack_that_was_moved(manager: Any) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(manager)
        moved = stack.pop_all()
    async with moved:
        yield


@contextlib.asynccontextmanager
async def aby_pushing_its_exit(manager: Any) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        await manager.__aenter__()
        stack.push_async_exit(manager)
        yield


@contextlib.asynccontextmanager
async def aby_hand(manager: Any) -> AsyncIterator[None]:
    await manager.__aenter__()
    try:
        yield
    except BaseException as error:
        if not await manager.__aexit__(type(error), error, error.__traceback__):
            raise
    else:
        await manager.__aexit__(None, None, None)


@contextlib.asynccontextmanager
async def aby_the_type(manager: Any) -> AsyncIterator[None]:
    enter, exit = type(manager).__aenter__, type(manager).__aexit__
    await enter(manager)
    try:
        yield
    except BaseException as error:
        if not await exit(manager, type(error), error, error.__traceback__):
            raise
    else:
        await exit(manager, None, None, None)


@contextlib.asynccontextmanager
async def aby_whatever_it_is(manager: Any) -> AsyncIterator[None]:
    """As ``enterAsyncContext`` leaves it: awaited if the function says that it is one of coroutines."""
    exit = type(manager).__aexit__
    await type(manager).__aenter__(manager)
    try:
        yield
    finally:
        left = exit(manager, None, None, None)
        if inspect.iscoroutinefunction(exit):
            await left
        else:
            left.close()  # it would warn that it was never awaited


@contextlib.asynccontextmanager
async def aby_a_generator(manager: Any) -> AsyncIterator[None]:
    async with manager:
        yield


ASYNC_WAYS: dict[str, Callable[[Any], Any]] = {
    "statement": by_statement,
    "AsyncExitStack": aby_exit_stack,
    "pop_all": aby_a_stack_that_was_moved,
    "push_async_exit": aby_pushing_its_exit,
    "by hand": aby_hand,
    "through the type": aby_the_type,
    "if it is a coroutine function": aby_whatever_it_is,
    "wrapper": Wrapper,
    "asynccontextmanager": aby_a_generator,
}
NOT_TODAY = ("if it is a coroutine function",)

every_async_way = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=owner_rule if way in NOT_TODAY else ()) for way in ASYNC_WAYS]
)


async def amake(which: str) -> Any:
    if which != "pool member":
        return MANAGERS[which].make()
    await LockPool("seats").aextend(["a"])
    return await LockPool("seats").aacquire()


@pytest.mark.parametrize("fails", [False, True], ids=["well", "with an error"])
@pytest.mark.parametrize(
    ("which", "way"),
    [
        # what a site's own class defines is a coroutine function
        pytest.param(which, way, marks=owner_rule if way in NOT_TODAY and which != "subclass" else ())
        for which in ("Lock", "reentrant", "subclass", "pool member")
        for way in ASYNC_WAYS
    ],
)
async def test_a_lock_is_held_until_its_async_context_manager_is_left(which: str, way: str, fails: bool) -> None:
    name = MANAGERS[which].name
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            async with ASYNC_WAYS[way](await amake(which)):
                assert await aget_lock(name) is not None
                if fails:
                    raise ZeroDivisionError
        assert await aget_lock(name) is None


@every_async_way
async def test_a_reentrant_object_is_held_until_its_outermost_async_block_is_left(way: str) -> None:
    lock = Lock(NAME, reentrant=True)
    async with ASYNC_WAYS[way](lock):
        async with ASYNC_WAYS[way](lock), ASYNC_WAYS[way](Lock(NAME, reentrant=True)):
            assert await lock.aowned()
        assert await lock.aowned()
    assert await aget_lock(NAME) is None


@every_async_way
async def test_a_lock_that_was_lost_in_its_async_block_is_told_at_its_end(way: str) -> None:
    with pytest.raises(LockLost):
        async with ASYNC_WAYS[way](Lock(NAME)):
            await aforce_release(NAME)


@pytest.mark.parametrize("close", ["aclosing", "push_async_callback"])
async def test_arelease_is_called_by_what_closes_things(close: str) -> None:
    lock = Lock(NAME)
    assert await lock.aacquire()
    if close == "aclosing":
        async with contextlib.aclosing(SimpleNamespace(aclose=lock.arelease)):
            assert await lock.aowned()
    else:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(lock.arelease)
            assert await lock.aowned()
    assert await aget_lock(NAME) is None


@pytest.mark.parametrize("which", ["Lock", "reentrant", "subclass", "pool member"])
async def test_the_lock_of_an_async_generator_is_free_soon_after_that_was_closed(
    which: str, aeventually: Callable[..., Any]
) -> None:
    async def is_free() -> bool:
        return await aget_lock(MANAGERS[which].name) is None

    async def generator() -> AsyncIterator[None]:
        async with await amake(which):
            yield

    begun: Any = generator()
    await anext(begun)
    assert not await is_free()
    await begun.aclose()
    await aeventually(is_free)


@owner_rule
@pytest.mark.parametrize("kind", [Lock, PoolMember])
def test_the_end_of_an_async_block_is_a_coroutine_function(kind: type[Lock]) -> None:
    assert inspect.iscoroutinefunction(kind.__aexit__)


# -- both --------------------------------------------------------------------------------------------------------------

TTL = 2.0


def test_a_lock_that_only_its_block_refers_to_is_renewed() -> None:
    """Its object lives as long as the block."""
    with contextlib.ExitStack() as stack:
        for number, way in enumerate(WAYS.values()):
            stack.enter_context(way(Lock(f"{NAME}:{number}", ttl=TTL)))
        gc.collect()
        kin = Kin(tasks=False)

        async def look_on() -> None:
            assert all([await kin.renewed(TTL, f"{NAME}:{number}") for number in range(len(WAYS))])

        kin.live(look_on())


async def test_a_lock_that_only_its_async_block_refers_to_is_renewed() -> None:
    ways = [way for name, way in ASYNC_WAYS.items() if name not in NOT_TODAY]
    async with contextlib.AsyncExitStack() as stack:
        for number, way in enumerate(ways):
            await stack.enter_async_context(way(Lock(f"{NAME}:{number}", ttl=TTL)))
        gc.collect()
        assert all([await Kin(tasks=True).renewed(TTL, f"{NAME}:{number}") for number in range(len(ways))])
