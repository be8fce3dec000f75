"""Locks and transactions in the safe order: ``locked_atomic``, and the release of a lock when it is too late for it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.http import FileResponse, HttpRequest, StreamingHttpResponse

from . import blocks
from .decorators import Name, name_maker, refuse_generators
from .exceptions import LockLost
from .lease import Lease
from .lock import FairLock, Lock
from .names import check_name, has_fields
from .steps import run

P = ParamSpec("P")
R = TypeVar("R")


class locked_atomic:  # noqa: N801 (reads as Django's ``atomic`` does)
    """Lock, BEGIN, the block or function, COMMIT, release: the next holder sees what this one has written.

    .. code-block:: python

        with locked_atomic("account:7") as lock: ...

        @locked_atomic("account:{pk}", db=["default", "ledger"])
        def book(pk): ...

    ``name`` is the lock's; for a decorator it may be a template over the arguments of the call or a callable that gets
    them, as in :func:`locked`; a block has no arguments and refuses both. ``db`` is one alias in ``DATABASES`` or
    several: the first begins first and commits last. (Two databases do not commit as one: what the second refuses, the
    first has not yet written.) ``fair`` takes a :class:`FairLock`; the other options are those of :class:`Lock`.

    Guaranteed: the lock is held from before BEGIN until after COMMIT or ROLLBACK, and by callbacks of ``on_commit()``
    as well: a task that one of them queues may still find the lock busy. When the lock is known to be lost at the end
    of the block, the transaction is rolled back.

    Raises RuntimeError, before anything is locked, where a transaction is open already (that of a test case does not
    count) or autocommit is off: its COMMIT would come after the release. LockNotAcquired, LockLost and LockUnavailable
    as ``with Lock(...)`` does. For sync code; transactions know no coroutines.
    """

    def __init__(
        self, name: Name, *, db: str | Iterable[str] = DEFAULT_DB_ALIAS, fair: bool = False, **options: Any
    ) -> None:
        self._name = name
        self._aliases = [db] if isinstance(db, str) else list(db)
        if not self._aliases or not all(isinstance(alias, str) for alias in self._aliases):
            raise TypeError(f"db must be an alias in DATABASES or a list of aliases, not {db!r}.")
        self._kind = FairLock if fair else Lock
        self._options = options
        self._entered = threading.local()  # a block of a transaction belongs to its thread
        self._kind("check", **options)

    def __enter__(self) -> Lock:
        if not isinstance(self._name, str):
            raise TypeError(f"A with block has no arguments to make a name of: give a str, not {self._name!r}.")
        if has_fields(self._name):
            raise ValueError(
                f"A with block has no arguments to fill {self._name!r} with: make the name yourself, with lock_name()."
            )
        block = self._block(self._name)
        lock = block.__enter__()
        self._entered.block = block
        return lock

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block: AbstractContextManager[Lock] = self._entered.__dict__.pop("block")
        block.__exit__(kind, error, traceback)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        refuse_generators(function, "locked_atomic")
        if iscoroutinefunction(function):
            raise TypeError(
                f"locked_atomic cannot decorate {function!r}: Django's transactions are for sync code. Decorate a "
                f"function and call it through sync_to_async."
            )
        name_of = name_maker(self._name)
        signature = inspect.signature(function)

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._block(name_of(signature, args, kwargs)):
                return function(*args, **kwargs)

        return wrapper

    @contextmanager
    def _block(self, name: str) -> Iterator[Lock]:
        check_name(name)
        for alias in self._aliases:
            _refuse_open(name, alias)
        with self._kind(name, **self._options) as lock, ExitStack() as transactions:
            for alias in self._aliases:
                transactions.enter_context(transaction.atomic(using=alias, durable=True))
            yield lock
            lock.check()


def _refuse_open(name: str, alias: str) -> None:
    connection = connections[alias]
    if blocks.in_block(connection):
        trouble = "is inside an open atomic block"
    elif not connection.in_atomic_block and not connection.get_autocommit():
        trouble = "has autocommit off"
    else:
        return
    raise RuntimeError(
        f"locked_atomic({name!r}) must begin the transaction itself, but the database {alias!r} {trouble}: that would "
        f"commit after the lock is released. For a view under ATOMIC_REQUESTS use locked_view, which holds the lock "
        f"until COMMIT, or mark it with non_atomic_requests; else move locked_atomic to the outside."
    )


def open_transactions(function: Callable[..., R], aliases: list[str], lease: Lease | None = None) -> Callable[..., R]:
    """``function`` inside a transaction on each alias, the last one outermost, as Django's handler nests them.

    They are rolled back when the ``lease`` under which it runs is known to be lost at the end.
    """

    def checked(*args: Any, **kwargs: Any) -> R:
        answer = function(*args, **kwargs)
        if lease is not None and lease.lost:
            raise lease.lost_error()
        return answer

    wrapped = checked
    for alias in aliases:
        wrapped = transaction.atomic(using=alias)(wrapped)
    return wrapped


class LateRelease:
    """The release of a lock whose view has returned or raised, when that is too early: once, from any thread or loop.

    The lock goes when the last of the transactions ``begun`` has committed; when the response streams, when its
    content ends. Where neither is seen (a rollback, a middleware that replaces the response), when the response that
    left, whichever it is, is closed. If nothing of all that happens, the lease ends: it is renewed no more, unless a
    streaming response is alive.
    """

    def __init__(self, lock: Lock, lease: Lease, request: HttpRequest, response: Any, begun: list[str]) -> None:
        self._lock = lock
        self._lease = lease
        self._path = request.path
        self._once = threading.Lock()
        self._open = len(begun)
        streams = isinstance(response, StreamingHttpResponse)
        lease.follow(response if streams else None)
        lock._let_go(lease)
        # what DRF hands to views is around the request that the handler closes
        _after_close(getattr(request, "_request", request), self.release)
        if hasattr(response, "_resource_closers"):
            response._resource_closers.append(self.release)
        if streams:
            if not isinstance(response, FileResponse):  # which servers may send without iterating over it
                response.streaming_content = self._follow(response)
        else:
            for alias in begun:
                if connections[alias].in_atomic_block:
                    transaction.on_commit(self.committed, using=alias, robust=True)

    def committed(self) -> None:
        """One of the transactions has."""
        self._open -= 1
        if not self._open:
            self.release()

    def release(self) -> None:
        """Release the lock, unless that is done. In the background where an event loop runs."""
        if not self._once.acquire(blocking=False) or not self._lease.ours:
            return
        if asyncio._get_running_loop() is not None:
            self._lock._release_later(self._lease)
            return
        try:
            run(self._lock._release_surely(self._lease, path=self._path))
        except LockLost:
            pass  # which has been told

    def _follow(self, response: Any) -> Iterator[Any] | AsyncIterator[Any]:
        # not response.streaming_content, which hides what is to be closed
        content = response._iterator
        return self._aiterate(content) if response.is_async else self._iterate(content)

    def _iterate(self, content: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from content
        finally:
            self.release()

    async def _aiterate(self, content: AsyncIterator[Any]) -> AsyncIterator[Any]:
        try:
            async for part in content:
                yield part
        finally:
            try:
                if hasattr(content, "aclose"):
                    await content.aclose()  # what it does at its end, it does under the lock
            finally:
                self.release()


def _after_close(request: HttpRequest, callback: Callable[[], None]) -> None:
    """Let ``request.close()``, which handlers call with the response that has left, call back as well."""
    close = request.close

    def closing() -> None:
        request.__dict__.pop("close", None)  # it refers to the request
        try:
            close()
        finally:
            callback()

    request.close = closing  # type: ignore[method-assign]
