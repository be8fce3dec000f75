"""RQ: jobs of which one at a time is queued or runs. What RQ does not do is in docs/jobs-rq.rst."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any

from rq import Callback, Queue, Retry, get_current_job
from rq.job import Job, JobStatus
from rq.utils import now

from ..base import Unpack
from ..call_names import Name
from ..exceptions import LockError
from ..options import JobOptions
from .job_function import P, R, lock_function, lock_of
from .job_lock import JobLock


def locked_job(
    first: Name | None = None, /, *, name: Name | None = None, **options: Unpack[JobOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only one job of this function run at a time, below the decorator of the queue if there is one.

        @job("default")
        @locked_job("report:{year}", lock_from="enqueue", busy="skip")
        def build(year): ...

    The first argument, or ``name``, is the name of the lock, and all else is described at
    :class:`~django_redislock.jobs.job_lock.JobLock`. ``lock_from="enqueue"`` takes a :class:`LockedQueue`.

    A function that is called, and not queued, acquires the lock, too, and raises LockNotAcquired if it is busy.
    """
    return lock_function(first, name, _find, _execute, **options)


class LockedJob(Job):
    """A job whose lock is released when it is cancelled or deleted while it waits."""

    def cancel(self, *args: Any, **kwargs: Any) -> Any:
        result = super().cancel(*args, **kwargs)
        self._release_lock()
        return result

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        if self.get_status(refresh=False) != JobStatus.FINISHED:  # then it may have a lock that stays on purpose
            self._release_lock()
        return super().delete(*args, **kwargs)

    def _release_lock(self) -> None:
        lock = _lock_of(self)
        if lock is not None and lock.from_enqueue:
            lock.release(_Delivery(self), *_given(self))


class LockedQueue(Queue):
    """A queue that acquires the lock of a job when that is enqueued: see ``lock_from``.

    If it is busy, ``enqueue()`` returns the job that has it where that is known, else None.
    """

    job_class = LockedJob

    def enqueue_job(self, job: Job, pipeline: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._send(job, pipeline, 0.0, partial(super().enqueue_job, job, pipeline, *args, **kwargs))

    def schedule_job(self, job: Job, datetime: Any, pipeline: Any = None, *args: Any, **kwargs: Any) -> Any:
        wait = max(0.0, datetime.timestamp() - time.time())
        return self._send(job, pipeline, wait, partial(super().schedule_job, job, datetime, pipeline, *args, **kwargs))

    def _send(self, job: Job, pipeline: Any, wait: float, send: Callable[[], Any]) -> Any:
        lock = _lock_of(job)
        if lock is None or pipeline is not None:  # so RQ sends retries, which have their lock, and repeats
            return send()
        if job.enqueued_at is not None and job.get_status(refresh=False) != JobStatus.SCHEDULED:
            job.created_at = now()  # it is used once more, by rq-scheduler or in the admin
        if not lock.from_enqueue or job.instance is not None or job._dependency_ids:
            return send()
        return lock.enqueue(
            *_given(job),
            _run_of(job),
            lambda taken: send(),
            lambda other: self.fetch_job(other.rsplit("-", 2)[0]),
            wait=wait,
        )


def _given(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as a worker will see them, and name the lock: JSON makes a list of a tuple, say."""
    args, kwargs = job.args, job.kwargs
    with suppress(Exception):  # what only a worker can load has been named by what was given
        _, _, args, kwargs = job.serializer.loads(job.data)
    return tuple(args), kwargs


def _run_of(job: Job) -> str:
    """What is the same for every delivery and retry; repeats, and jobs whose id was chosen, use an id again."""
    return f"{job.id}-{job.created_at:%Y%m%d%H%M%S%f}-{job.repeats_left or 0}"


def _lock_of(job: Job) -> JobLock | None:
    try:
        return lock_of(job.func)
    except Exception:  # whatever its module raises; it can be imported where the job runs
        return None


def _find(lock: JobLock) -> _Delivery | None:
    job = get_current_job()
    return _Delivery(job) if job is not None and _lock_of(job) is lock else None


class _Delivery:
    """A job that a worker runs: see job_lock.Job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._is_sync = job.worker_name == "sync"
        self.given = _given(job) if self._is_sync else None  # what runs there has the arguments as they were
        self.id = _run_of(job)
        self.repeated = None if job.retries_left is None else job.return_value

    def later(self, pause: float, refusal: LockError, *, is_copy: bool) -> Retry:
        if self._is_sync:
            raise refusal
        self._job.number_of_retries = (self._job.number_of_retries or 0) - 1  # RQ is about to count one
        return Retry(max=sys.maxsize, interval=ceil(pause))

    def again(self) -> None:
        job: Any = self._job
        queue = LockedQueue(
            job.origin, connection=job.connection, serializer=job.serializer, is_async=not self._is_sync
        )
        queue.enqueue_call(
            job.func,
            job.args,
            job.kwargs,
            timeout=job.timeout,
            result_ttl=job.result_ttl,
            ttl=job.ttl,
            failure_ttl=job.failure_ttl,
            description=job.description,
            meta=job.meta,
            retry=Retry(job.retries_left, job.retry_intervals or 0) if job.retries_left else None,
            on_success=job.success_callback and Callback(job.success_callback, job.success_callback_timeout),
            on_failure=job.failure_callback and Callback(job.failure_callback, job.failure_callback_timeout),
            on_stopped=job.stopped_callback and Callback(job.stopped_callback, job.stopped_callback_timeout),
        )

    def comes_back_in(self, error: BaseException) -> float | None:
        job = self._job
        if isinstance(error, _Returned):
            count = job.number_of_retries or 0
            comes, wait = count < error.retry.max, Retry.get_interval(count, error.retry.intervals)
        else:
            comes = job.should_retry
            wait = job.get_retry_interval() if comes else 0
        return wait if comes and not self._is_sync else None


class _Returned(Exception):
    """A job has returned that it wants to be tried again."""

    def __init__(self, retry: Retry) -> None:
        super().__init__()
        self.retry = retry


def _execute(lock: JobLock, job: Any, args: Any, kwargs: Any, body: Callable[[], Any]) -> Any:
    def checked() -> Any:
        result = body()
        if isinstance(result, Retry):
            raise _Returned(result)
        return result

    args, kwargs = job.given or (args, kwargs)
    try:
        return lock.run(job, args, kwargs, checked)
    except _Returned as end:
        return end.retry
