"""Django's tasks, and those of the package django-tasks: of each kind, one at a time is queued or runs.

Their ids are not known before they are queued, except by ``LockedDatabaseBackend`` in ``django_tasks_db``: it alone can
acquire a lock then. What else they do not have is in docs/jobs-django.rst.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.utils import timezone

from ..base import Unpack
from ..call_names import Name
from ..engine.owner import running_django_task
from ..exceptions import LockError, LockUnavailable
from ..options import JobOptions
from .job_function import P, R, lock_function, lock_of
from .job_lock import JobLock


def locked_job(
    first: Name | None = None, /, *, name: Name | None = None, **options: Unpack[JobOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only one task of this function run at a time, below ``@task``.

        @task()
        @locked_job("report:{year}", lock_from="enqueue", busy="skip")
        def build(year): ...

    The first argument, or ``name``, is the name of the lock, and all else is described at
    :class:`~django_redislock.jobs.job_lock.JobLock`. A callable that makes the name gets None in place of the task's
    context.

    A coroutine function becomes a plain one, which every backend takes. ``call()`` acquires the lock, too, and raises
    LockNotAcquired if it is busy.
    """
    decorate = lock_function(first, name, _find, _run, **options)

    def decorate_sync(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def body(*args: P.args, **kwargs: P.kwargs) -> Any:
            return async_to_sync(function)(*args, **kwargs)  # type: ignore[arg-type]

        return decorate(body if iscoroutinefunction(function) else function)

    return decorate_sync


def arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Those of the function that name its lock. Its context is not known yet when the task is queued."""
    as_found = json.loads(json.dumps([args, kwargs]))  # by the worker: all keys are texts
    args, kwargs = json.loads(json.dumps(as_found, sort_keys=True))  # PostgreSQL reorders the keys of a dict
    return (None, *args) if task.takes_context else tuple(args), kwargs


class _Run:
    """A task that a worker runs: see Job."""

    repeated = None

    def __init__(self, result: Any) -> None:
        self._result = result
        self.id: str = result.id
        self.given = arguments(result.task, result.args, result.kwargs)

    def later(self, pause: float, refusal: LockError, *, is_copy: bool) -> None:
        backend = self._result.task.get_backend()
        if is_copy or not backend.supports_defer:  # another task would repeat what this one does already
            raise refusal
        start = timezone.now() + timedelta(seconds=pause)
        enqueue = getattr(backend, "enqueue_without_lock", None)
        lock = lock_of(self._result.task.func)
        if enqueue and lock and lock.from_enqueue and isinstance(refusal, LockUnavailable):
            raise refusal  # this one may have the lock, which another task would find busy
        (enqueue or backend.enqueue)(self._result.task.using(run_after=start), self._result.args, self._result.kwargs)

    def again(self) -> None:
        self._result.task.enqueue(*self._result.args, **self._result.kwargs)

    def comes_back_in(self, error: BaseException) -> None:
        return None


def _find(lock: JobLock) -> _Run | None:
    result = running_django_task()
    return _Run(result) if result is not None and lock_of(result.task.func) is lock else None


def _run(lock: JobLock, job: Any, args: Any, kwargs: Any, body: Callable[[], Any]) -> Any:
    args, kwargs = job.given
    return lock.run(job, args, kwargs, body)
