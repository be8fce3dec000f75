"""``locked``: let only one call of a function run at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from asgiref.sync import iscoroutinefunction

from ..base import Unpack
from ..base.display import shown
from ..base.steps import Call, Steps, arun, run_blocking
from ..base.times import Seconds, seconds
from ..call_names import (
    CallTexts,
    Name,
    Names,
    are_several,
    check_function,
    given_name,
    is_decorated,
    refuse_body,
    refuse_tasks,
    template_of,
    wraps,
)
from ..engine.several import around, make_acquisition
from ..fencing.claim import begin
from ..open_transactions import aliases_to_claim, warn_of_release
from ..options import SectionOptions, SetOptions, check_kind, read_options

P = ParamSpec("P")
R = TypeVar("R")

_RUN = ("__main__", "__mp_main__")  # modules that are run, the second in a child of multiprocessing


@overload
def locked(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def locked(
    first: str | Sequence[Name] | None = None,
    /,
    *,
    name: Names | None = None,
    token: str | None = None,
    at_least: Seconds = 0,
    **options: Unpack[SectionOptions],
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def locked(
    first: Any = None,
    /,
    *,
    name: Names | None = None,
    token: str | None = None,
    at_least: Seconds = 0,
    **options: Unpack[SectionOptions],
) -> Any:
    """Let only one call of a function run at a time, across all processes; with a ``limit``, at most so many.

    The first argument, or ``name``, is a template over the arguments of the call (``"report:{year}"``, values quoted as
    by :func:`lock_name`; ``{key:digest}``: see :func:`lock_digest`); ``name`` may also be a callable that takes the
    arguments and returns the name. A list of names takes all these locks, as :class:`LockSet` does, without ``limit``,
    ``token`` and ``adopt``. Without either, the name is ``module.qualname`` (``@locked``, with or without parentheses).
    ``note`` and ``token`` are templates too; their values are not quoted, and a note that is too long is cut.
    ``at_least``: seconds for which the lock stays held, by nobody, if the call returns sooner; one that raises releases
    it at once. The other options are those of :class:`Lock`, or with a ``limit`` those of :class:`Semaphore`.

    Raises when it decorates: ValueError for a field that is no argument of the function, TypeError for a task (put
    ``locked`` below the task's decorator). A call raises LockNotAcquired when the lock was not acquired in time, or
    LockUnavailable when Redis cannot be reached: then the function was not called. And LockLost when the lock was lost
    while it ran. A release that fails afterwards is logged, and goes on in the background.
    """
    refuse_tasks(first, "locked")
    if is_decorated(first) and name is None and token is None and not at_least and not options:
        return locked()(first)
    given = given_name(first, name, "locked", token)
    options.setdefault("template", template_of(given))
    # a wrong option is an error here, not at the first call; the settings may not name the alias ``using`` yet
    known_options = SetOptions if are_several(given) else SectionOptions
    checked = read_options(options, "locked()", known_options, beside=["at_least", "name", "token"])
    if token is not None and checked.limit is not None:
        raise ValueError("locked() takes no token with a limit: only a lock can be adopted.")
    least = seconds(at_least, "at_least", least=0)
    known = None if given is None else CallTexts(given, checked.note, token)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = check_function(function, "locked")
        check_kind(function, checked, "locked", is_async=iscoroutinefunction(function))
        texts = known or CallTexts(_name_of(function), checked.note, token)
        texts.check(function, signature)

        def guarded(args: Any, kwargs: Any) -> Steps[Any]:
            names, note, filled = texts.fill(function, signature, args, kwargs)
            acquisition = make_acquisition(names, checked.with_note(note), token=filled)
            acquisition.keep(least)

            def claiming() -> Any:
                """Call the function; where transactions are open, claim the locks before, if they are fenced."""
                beside = aliases_to_claim(checked.fenced)
                with ExitStack() as opened:
                    begin(opened, [], acquisition.leases, beside=beside, required=bool(checked.fenced))
                    result = function(*args, **kwargs)
                    refuse_body(function, result, "locked")
                    return result

            result = yield from around(acquisition, Call(claiming, twin=partial(function, *args, **kwargs)))
            for lease in acquisition.leases:
                if lease.closed:  # else an outer acquisition still holds it
                    warn_of_release(lease)
            return result

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return run_blocking(guarded(args, kwargs), "Decorate a coroutine function")

        @wraps(function)
        async def awrapper(*args: Any, **kwargs: Any) -> Any:
            return await arun(guarded(args, kwargs))

        return awrapper if iscoroutinefunction(function) else wrapper  # type: ignore[return-value]

    return decorate


def _name_of(function: Any) -> str:
    """A template without fields."""
    if not hasattr(function, "__qualname__"):
        raise TypeError(f'locked cannot make a name of {shown(function)}, which has none: write locked("...").')
    module = function.__module__
    if module in _RUN:  # under the name by which it is imported elsewhere; a script has none
        spec = getattr(inspect.unwrap(function), "__globals__", {}).get("__spec__")
        module = getattr(spec, "name", module)
    if module in _RUN:
        trouble = f"whose module is a script: all are called {module}"
        raise TypeError(f'locked cannot make a name of {shown(function)}, {trouble}. Write locked("...").')
    return f"{module}.{function.__qualname__}".replace("<", "").replace(">", "")
