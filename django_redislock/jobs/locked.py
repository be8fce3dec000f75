"""``locked``: let only one call of a function run at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction

from ..call_names import Name, name_maker, refuse_generators, template_of
from ..engine import Acquisition, current_owner
from ..names import check_name
from ..open_transactions import warn_of_release
from ..options import LockOptions, read_options
from ..steps import Call, Steps, arun, run_blocking

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.11 has it in typing

P = ParamSpec("P")
R = TypeVar("R")


def locked(name: Name | None = None, **options: Unpack[LockOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only one call of a function run at a time, across all processes.

    ``name`` is a template over the arguments of the call (``"report:{year}"``, values quoted as by
    :func:`lock_name`), or a callable that takes the arguments and returns the name; None takes ``module.qualname``.
    The options are those of :class:`Lock`.

    Raises LockNotAcquired when the lock was not acquired in time, so that the call did not happen; LockLost when the
    lock was lost while the function ran; LockUnavailable when Redis cannot be reached.
    """
    if name is not None:
        options.setdefault("template", template_of(name))
    checked = read_options(options, "locked()")  # a wrong option is an error here, not at the first call
    name_of = name_maker(name) if name is not None else None

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        refuse_generators(function, "locked")
        signature = inspect.signature(function)
        find_name = name_of or name_maker(
            f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
        )

        def guarded(args: Any, kwargs: Any) -> Steps[Any]:
            lock = check_name(find_name(signature, args, kwargs))
            section = Acquisition(current_owner(), lambda lease: lease, lock, checked)
            result = yield from section.around(Call(function, args, kwargs))
            warn_of_release(lock)
            return result

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            return run_blocking(guarded(args, kwargs), "Decorate a coroutine function")

        @wraps(function)
        async def awrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await arun(guarded(args, kwargs))

        return awrapper if iscoroutinefunction(function) else wrapper  # type: ignore[return-value]

    return decorate
