"""The async twins of blocking methods: what they acquire belongs to whoever has *called* them.

``asyncio.wait_for`` (before Python 3.12), ``gather`` and ``create_task`` run a coroutine in a task of its own, which
ends with it. So whose it is, and of which acquisition it speaks, is decided before there is a coroutine.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from types import MethodType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def _coroutine_function() -> None: ...


class _Twin:
    """A function that returns a coroutine, and passes for a coroutine function: ``unittest`` calls nothing else."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        update_wrapper(self, function)
        self.__defaults__ = self.__kwdefaults__ = None
        self.__code__ = _coroutine_function.__code__  # inspect looks at its flags

    def __get__(self, instance: object, kind: type | None = None) -> Callable[..., Any]:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        coroutine: Any = self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]
        coroutine.__qualname__ = self.__qualname__  # type: ignore[attr-defined]  # it may never be awaited
        return coroutine


def twin(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Let a method that returns a coroutine be one of coroutines."""
    return _Twin(function)
