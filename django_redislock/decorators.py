"""``locked`` for functions, and what all decorators share: names made of arguments."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction

from .lock import FairLock, Lock, Loop
from .names import NameTemplate
from .steps import Call, Steps, arun, run_blocking

P = ParamSpec("P")
R = TypeVar("R")

Name = str | Callable[..., str]


def locked(
    name: Name | None = None, *, fair: bool = False, **options: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only one call of a function run at a time, over all processes.

    ``name`` is a template over the arguments of the call (``"report:{year}"``, values quoted as by
    :func:`lock_name`), or a callable that gets the arguments and answers the name; None takes ``module.qualname``.
    ``fair`` takes a :class:`FairLock`; the other options are those of :class:`Lock`.

    Raises LockNotAcquired when the lock was not got in time, so that the call did not happen; LockLost when the lock
    was lost while the function ran; LockUnavailable when Redis cannot be reached.
    """
    kind = FairLock if fair else Lock
    name_of = name_maker(name) if name is not None else None
    kind("check", **options)  # a wrong option is an error here, not at the first call

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        refuse_generators(function, "locked")
        signature = inspect.signature(function)
        find_name = name_of or name_maker(
            f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
        )

        def guarded(args: Any, kwargs: Any, loop: Loop | None) -> Steps[Any]:
            lock = kind(find_name(signature, args, kwargs), **options)
            return lock._around(Call(function, args, kwargs), loop)

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            return run_blocking(guarded(args, kwargs, None), "a coroutine function")

        @wraps(function)
        async def awrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await arun(guarded(args, kwargs, asyncio.get_running_loop()))

        return awrapper if iscoroutinefunction(function) else wrapper  # type: ignore[return-value]

    return decorate


def name_maker(name: Name) -> Callable[..., str]:
    """A function (signature, args, kwargs, **more values) that makes the lock's name for one call."""
    if not isinstance(name, str) and callable(name):
        return lambda signature, args, kwargs, **more: name(*args, **kwargs)
    template = NameTemplate(name)

    def fill(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any], **more: Any) -> str:
        return template.fill({**_arguments(signature, args, kwargs), **more})

    return fill


def _arguments(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The arguments of a call by their names, defaults included, ``**kwargs`` laid flat."""
    if signature is None:
        return kwargs
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            values.update(values.pop(parameter.name))
    return values


def refuse_generators(function: Callable[..., Any], decorator: str) -> None:
    """A lock around the mere making of a generator would guard nothing."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{decorator} cannot decorate {function!r}: generators run after the call has returned, when the lock "
            f"would be free again."
        )
