"""The async twins of blocking methods: what they acquire belongs to the task that has *called* them.

``asyncio.wait_for`` (before Python 3.12), ``gather`` and ``create_task`` run a coroutine in a task of its own, which
ends with it. The lock must not end with that task, as whoever made the call goes on with it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from types import CodeType
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import markcoroutinefunction

from ...exceptions import LockError
from .owner import Owner, current_owner, running_task

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")

_twins: set[CodeType] = set()


class Caller:
    """The caller of a twin, kept until its coroutine runs."""

    __slots__ = ("_owner",)

    def __init__(self) -> None:
        # a callback of the event loop runs in no task, so there is no possible owner
        nobody = asyncio._get_running_loop() is not None and asyncio.current_task() is None
        self._owner = None if nobody else current_owner()

    def owner(self) -> Owner:
        """The owner of what the twin acquires. Raises LockError, before anything is sent, if there would be none."""
        task = running_task()
        if task is None or getattr(task.get_coro(), "cr_code", None) not in _twins:
            return current_owner()  # the task that awaits it
        if self._owner is None or not self._owner.alive():
            raise LockError(
                "Cannot use a lock in a task that runs only this call (as create_task, gather or wait_for make it): "
                "the lock would belong to a task that ends with this call. Await it in the task that needs the lock; "
                "limit the wait with blocking_timeout=."
            )
        return self._owner


def twin(
    function: Callable[Concatenate[S, Caller, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Pass a Caller to a coroutine method; its signature does not show it."""
    _twins.add(function.__code__)

    @wraps(function)
    def call(self: S, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return function(self, Caller(), *args, **kwargs)

    signature = inspect.signature(function)
    shown = [parameter for name, parameter in signature.parameters.items() if name != "caller"]
    call.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    marked: Any = markcoroutinefunction(call)
    return marked  # type: ignore[no-any-return]
