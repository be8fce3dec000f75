"""Functions that are jobs: what the adapters of RQ, Huey and Django's tasks share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from ..base import Unpack
from ..call_names import Name, check_function, given_name, wraps
from ..options import JobOptions
from .job_lock import Job, JobLock, running_job

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
        lock = JobLock(function, signature, given, what="locked_job()", **options)

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            job, body = find(lock), partial(function, *args, **kwargs)
            if job is None or running_job(job.id) is not None:  # called like a function, by itself even
                return lock.call(lock.make(args, kwargs), body)
            return execute(lock, job, args, kwargs, body)

        result: Any = wrapper
        result._redislock_job = lock
        return result  # type: ignore[no-any-return]

    return decorate


def lock_of(function: object) -> JobLock | None:
    """The lock of a decorated function; decorators above it copy that."""
    found = getattr(function, "_redislock_job", None)
    return found if isinstance(found, JobLock) else None
