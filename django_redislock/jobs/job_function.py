"""Functions that are jobs: what the adapters of RQ, Huey and Django's tasks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction

from ..call_names import Name, check_function, given_name, wraps
from ..options import JobOptions
from .job_lock import Job, JobLock, running_job

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.11 has it in typing

P = ParamSpec("P")
R = TypeVar("R")

Run = Callable[[JobLock, Job, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]


def lock_function(
    first: Name | None,
    name: Name | None,
    find: Callable[[JobLock], Job | None],
    execute: Run = JobLock.run,
    **options: Unpack[JobOptions],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the decorator ``locked_job`` of a queue.

    ``find`` returns the job of the queue that runs here, if it is one of this lock; ``execute`` is JobLock.run().
    """
    given: Any = given_name(first, name, "locked_job")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = check_function(function, "locked_job")
        if iscoroutinefunction(function):
            raise TypeError(
                f"locked_job cannot decorate {function!r}: write a plain function that calls asyncio.run()."
            )
        lock = JobLock(function, signature, given, what="locked_job()", **options)

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            job = find(lock)
            if job is None or running_job(job.id) is not None:  # called like a function, by itself even
                with lock.make(args, kwargs):
                    return function(*args, **kwargs)
            return execute(lock, job, args, kwargs, lambda: function(*args, **kwargs))

        result: Any = wrapper
        result._redislock_job = lock
        return result  # type: ignore[no-any-return]

    return decorate


def lock_of(function: object) -> JobLock | None:
    """The lock of a decorated function; decorators above it copy that."""
    found = getattr(function, "_redislock_job", None)
    return found if isinstance(found, JobLock) else None
