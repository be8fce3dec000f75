"""Celery: tasks of which one at a time is queued or runs."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from inspect import getattr_static
from typing import Any

from billiard.exceptions import WorkerLostError  # type: ignore[import-untyped]
from celery import Task, current_task, signals, states  # type: ignore[import-untyped]
from celery.app.task import Context  # type: ignore[import-untyped]
from celery.contrib.django.task import DjangoTask  # type: ignore[import-untyped]
from celery.exceptions import Ignore, Reject, Retry, TimeLimitExceeded  # type: ignore[import-untyped]
from celery.utils import uuid  # type: ignore[import-untyped]
from celery.utils.time import maybe_iso8601, maybe_make_aware  # type: ignore[import-untyped]
from kombu import serialization

from ..base.display import did_you_mean
from ..call_names import signature_of
from ..exceptions import LockError
from .job_lock import OPTIONS, JobLock, running_job

# among the headers of a message: whether the lock was acquired when it was sent
HEADER = "redislock"


class LockedTask(DjangoTask):
    """The base of a Celery task that runs under a lock.

        @shared_task(base=LockedTask, lock="report:{year}", lock_from="enqueue", busy="skip")
        def build(year): ...

    ``lock`` is its name, and all else is described at :class:`~django_redislock.jobs.job_lock.JobLock`; options of
    Celery go beside these.

    With ``lock_from="enqueue"``, ``delay()`` and ``apply_async()`` acquire the lock, and return the result of the task
    that has it where that is known, else None, if it is busy. A task whose id was made before, since others wait for
    its result (in a chain, a group or a chord, or with ``task_id=``), is sent all the same, and so is one that Celery
    sends itself (``link=``). It does nothing in the worker if the lock is busy then: its result is None.

    A task that is called like a function acquires the lock, too, and raises LockNotAcquired if it is busy.
    """

    abstract = True
    lock: Any = None

    _job_lock: JobLock
    _dump_pydantic_arguments: Any = None  # Celery's own, which older versions do not have

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__[: cls.__mro__.index(LockedTask)]:
            if "__call__" in vars(base) and not issubclass(base, LockedTask):
                what = f"{cls.__qualname__} has the base {base.__qualname__}"
                raise TypeError(f"{what}, whose __call__ would run outside the lock: put LockedTask first.")
        body = getattr_static(cls, "run")
        if body is Task.run or vars(cls).get("abstract"):
            return  # a base of other tasks
        function, is_bound = (body.__func__, False) if isinstance(body, staticmethod) else (body, True)
        signature = signature_of(function)
        if is_bound:
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        what = f"The task {getattr(cls, 'name', None) or cls.__qualname__}"
        if cls.lock is None:
            raise TypeError(f'{what} has a base LockedTask and no lock: give lock="report:{{year}}", say.')
        for name in vars(cls):
            if name.startswith("lock_") and name not in OPTIONS:
                raise TypeError(f"{what} has {name}, which LockedTask does not know.{did_you_mean(name, OPTIONS)}")
        options = {name: getattr(cls, name) for name in OPTIONS if hasattr(cls, name)}
        others = cls.__mro__[cls.__mro__.index(LockedTask) + 1 : cls.__mro__.index(Task)]
        awaits = any("__call__" in vars(base) for base in others)  # perhaps with asyncio.run()
        cls._job_lock = JobLock(function, signature, cls.lock, what=what, awaits=awaits, **options)

    def apply_async(self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any) -> Any:
        send, lock, headers = super().apply_async, self._job_lock, dict(options.pop("headers", None) or {})
        running = None if task_id is None else running_job(task_id)
        sent_before = HEADER in headers and running is None  # by later()
        if not lock.from_enqueue or sent_before or self._get_app().conf.task_always_eager:
            return send(args, kwargs, task_id=task_id, headers=headers, **options)
        (given, named), id = self._as_delivered(args, kwargs, options), task_id or uuid()
        wait, most = _seconds_to(options.get("eta") or options.get("countdown") or 0), math.inf
        expires = options.get("expires", self.expires)
        if expires is not None:  # a broker may drop it then, and tell nobody
            most = max(_seconds_to(expires), 1.0)

        def publish(taken: bool) -> Any:
            return send(args, kwargs, task_id=id, headers={**headers, HEADER: taken}, **options)

        # it tries again; under another name it gives its lock back, and acquires that one
        if running is not None and running.lock.name == lock.make(given, named, id).name:
            running.keep_for_next(wait, most)
            return lock.publish_with(running.lock, publish)
        if self.typing and hasattr(self, "__header__"):
            self.__header__(*given, **named)  # wrong arguments are an error before anything is locked
        # parent_id: Celery sends it for a task that has ended, whose ``link`` this is
        awaited = task_id is not None or "parent_id" in options
        by_task = awaited and bool(current_task)  # which would fail although it has ended well
        return lock.enqueue(
            given, named, id, publish, self.AsyncResult, wait=wait, most=most, awaited=awaited, sends_anyway=by_task
        )

    def _as_delivered(self, args: Any, kwargs: Any, options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as the worker will see them, and name the lock: an Enum is a str there, say."""
        serializer = options.get("serializer") or self.serializer
        if self._dump_pydantic_arguments is not None and serializer != "pickle":
            args, kwargs = self._dump_pydantic_arguments(args, kwargs)
        content_type, encoding, data = serialization.dumps((tuple(args or ()), kwargs or {}), serializer)
        given, named = serialization.loads(data, content_type, encoding, accept=[content_type])
        return tuple(given), named

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it under its lock."""
        request, above = self.request, super().__call__
        body = self.run if getattr(above, "__func__", None) is Task.__call__ else above  # of another base class
        is_called = request.called_directly or running_job(request.id) is not None  # like a function, by itself even
        given = args, kwargs
        if is_called or request.is_eager:  # for the lock of an equal job
            with suppress(Exception):  # of any serializer, or for the name of what it makes: no equal job can be queued
                delivered = self._as_delivered(args, kwargs, {})
                if self._dump_pydantic_arguments is None:  # else such jobs are meant to be queued, and would all fail
                    self._job_lock.make(*delivered)
                given = delivered
        if is_called:
            return self._job_lock.call(self._job_lock.make(*given), partial(above, *args, **kwargs))
        request.redislock_began = True
        return self._job_lock.run(_Delivery(self, request), *given, partial(body, *args, **kwargs))


class _Delivery:
    """A task that a worker runs, or will not run to its end: see Job."""

    def __init__(self, task: LockedTask, request: Any) -> None:
        self._task, self._request = task, request
        self.id: str = self._request.id

    def later(self, pause: float, refusal: LockError, *, is_copy: bool) -> Any:
        if self._request.is_eager:
            raise refusal
        # one that waits for longer is delivered again meanwhile, and each of the two would send another one
        visible = self._task.app.conf.broker_transport_options.get("visibility_timeout") or math.inf
        request, pause = self._request, min(pause, visible / 2)
        signature = self._task.signature_from_request(
            request, request.args, request.kwargs, countdown=pause, retries=request.retries
        )
        signature.set(headers={HEADER: False, **(request.headers or {})}).apply_async()
        raise Retry(exc=refusal, when=pause)

    def again(self) -> None:
        """To the queue of this one, as Celery sends a retry."""
        request = self._request
        info, (hard, soft) = request.delivery_info or {}, request.timelimit or (None, None)
        exchange, key = info.get("exchange"), info.get("routing_key")
        way = {"exchange": exchange, "routing_key": key} if exchange else {"queue": key}
        options = {**way, "priority": info.get("priority"), "time_limit": hard, "soft_time_limit": soft}
        given = {name: one for name, one in options.items() if one is not None}
        self._task.apply_async(request.args, request.kwargs, **given)

    def repeated(self) -> Any:
        raise Ignore  # the result is there already

    def comes_back_in(self, error: BaseException) -> float | None:
        # apply_async() has seen to a retry; and a message that is acknowledged early is gone by now
        if not self._task.acks_late:
            return None
        if not isinstance(error, Exception) and (running := running_job(self.id)) is not None:
            # this process ends: only its parent knows whether it was for good, after a time limit or a revocation
            running.keep_for_next(most=running.lock.ttl)
        return 0.0 if isinstance(error, Reject) and error.requeue else None


def _seconds_to(moment: datetime | str | float) -> float:
    """The seconds until ``moment``, which may be given as such; as a text in a message that is sent again."""
    when: Any = maybe_iso8601(moment) if isinstance(moment, str) else moment
    if isinstance(when, datetime):
        when = (maybe_make_aware(when) - datetime.now(timezone.utc)).total_seconds()
    return max(0.0, float(when))


def _release(task: Any, request: Any) -> None:
    if isinstance(task, LockedTask):
        task._job_lock.release(_Delivery(task, request), tuple(request.args or ()), request.kwargs or {})


@signals.task_revoked.connect(weak=False)
def _on_revoked(sender: Any, request: Any, **facts: Any) -> None:
    """It was revoked, or has expired, before it ran; or its process was terminated."""
    _release(sender, request)


@signals.task_failure.connect(weak=False)
def _on_failure(sender: Any, task_id: str, exception: Any, args: Any, kwargs: Any, **facts: Any) -> None:
    """The process that ran it is gone, and its message with it."""
    if isinstance(exception, (WorkerLostError, TimeLimitExceeded)):
        _release(sender, Context(id=task_id, args=args, kwargs=kwargs))


@signals.task_postrun.connect(weak=False)
def _on_end(sender: Any, state: Any, **facts: Any) -> None:
    """Release the lock of a task whose body has not run: before_start() has refused it, say."""
    if not isinstance(sender, LockedTask) or sender.request.get("redislock_began") or state == states.RETRY:
        return
    if sender._job_lock.from_enqueue:
        _release(sender, sender.request)
