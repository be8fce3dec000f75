"""Huey: tasks of which one at a time is queued or runs. What Huey does not do is in docs/jobs-huey.rst."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from huey.api import Huey, RedisHuey, Result, TaskWrapper
from huey.exceptions import CancelExecution, RateLimitExceeded, RetryTask
from huey.utils import normalize_time

from ..base import Unpack
from ..call_names import Name
from ..engine.owner import huey_delivery
from ..exceptions import LockError
from ..options import JobOptions
from .job_function import P, R, lock_function, lock_of
from .job_lock import JobLock


def locked_job(
    first: Name | None = None, /, *, name: Name | None = None, **options: Unpack[JobOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only one task of this function run at a time, below ``task()`` or ``periodic_task()`` of a LockedHuey.

        @huey.task()
        @locked_job("report:{year}", lock_from="enqueue", busy="skip")
        def build(year): ...

    The first argument, or ``name``, is the name of the lock, and all else is described at
    :class:`~django_redislock.jobs.job_lock.JobLock`.

    ``call_local()`` acquires the lock, too, and raises LockNotAcquired if it is busy.
    """
    return lock_function(first, name, _find, **options)


class _Wrapper(TaskWrapper):
    def create_task(self, func: Any, *args: Any, **settings: Any) -> Any:
        return super().create_task(func, *args, **settings, _redislock_job=lock_of(func))


class LockedHuey(Huey):
    """A Huey, or a mixin for one, whose tasks may be under locks.

    If the lock of a task is busy when it is enqueued (see ``lock_from``), that returns the result of the task that has
    it where that is known, else None.
    """

    def get_task_wrapper_class(self) -> Any:
        return _Wrapper

    def enqueue(self, task: Any) -> Any:
        """See Huey's enqueue(), and LockedHuey."""
        lock = lock_of(task)
        if lock is None or not lock.from_enqueue or self.immediate:
            return super().enqueue(task)
        # Huey enqueues it again for every retry, and when its time has come: then it has the lock, and keeps it
        send = super().enqueue
        by_huey = huey_delivery.get() is not None or (task.eta and not self._seconds_to(task.eta))  # or by another task
        return lock.enqueue(
            *_call_of(task),
            task.id,
            lambda taken: send(task),
            lambda other: Result(self, type(task)(task.args, task.kwargs, id=other)) if self.results else None,
            wait=self._seconds_to(task.eta),
            awaited=task.on_complete is not None or task.chord_config is not None,
            sends_anyway=bool(by_huey),  # it may be nowhere else by now; when it starts, it acquires the lock
        )

    def execute(self, task: Any, timestamp: Any = None) -> Any:
        now = timestamp or self._get_timestamp()
        delivery = _Delivery(self, task)
        before = huey_delivery.set(delivery)
        try:
            return super().execute(task, now)
        finally:
            huey_delivery.reset(before)
            if not delivery.began and self.ready_to_run(task, now):  # revoked, expired, cancelled
                self._release_lock(task)

    def revoke(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        super().revoke(task, *args, **kwargs)
        self._release_lock(task)

    def _release_lock(self, task: Any) -> None:
        lock = lock_of(task)
        if lock is not None and lock.from_enqueue:
            lock.release(_Delivery(self, task), *_call_of(task))

    def _seconds_to(self, eta: Any) -> float:
        return 0.0 if eta is None else max(0.0, (eta - self._get_timestamp()).total_seconds())


class LockedRedisHuey(LockedHuey, RedisHuey):
    """The ``huey_class`` for Redis: see LockedHuey."""


def _call_of(task: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which its function is called."""
    return tuple(task.args), {**task.kwargs, "task": task} if task.context else task.kwargs


def _find(lock: JobLock) -> _Delivery | None:
    found: _Delivery | None = huey_delivery.get()
    if found is None or lock_of(found.task) is not lock:
        return None
    found.began = True
    return found


class _Delivery:
    """A task that a worker runs: see job_lock.Job."""

    repeated = None

    def __init__(self, huey: LockedHuey, task: Any) -> None:
        self._huey, self.task, self.began = huey, task, False
        self.id: str = task.id

    def later(self, pause: float, refusal: LockError, *, is_copy: bool) -> Any:
        if self._huey.immediate:
            raise refusal
        raise RetryTask(delay=pause)  # this one Huey does not count

    def again(self) -> None:
        task, expires = self.task, self.task.expires
        if isinstance(expires, datetime) and task.expires_resolved <= self._huey._get_timestamp():
            expires = None  # for whoever asked for this run, it was not over
        again = type(task)(task.args, task.kwargs, priority=task.priority, expires=expires, timeout=task.timeout)
        self._huey.enqueue(again)

    def comes_back_in(self, error: BaseException) -> float | None:
        task = self.task
        comes = isinstance(error, Exception) and task.retries > 0
        if isinstance(error, CancelExecution) and error.retry is not None:
            comes = error.retry
        elif isinstance(error, RetryTask) or (isinstance(error, RateLimitExceeded) and error.retry):
            comes = True
        if not comes or self._huey.immediate:
            return None
        eta, delay = getattr(error, "eta", None), max(task.retry_delay, getattr(error, "delay", None) or 0)
        return self._huey._seconds_to(normalize_time(eta, None if eta else delay, self._huey.utc))
