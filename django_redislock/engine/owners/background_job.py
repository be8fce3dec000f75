"""Which task queue's job is running here, to show people. A queue that the site has not imported is not imported."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Any

from django.dispatch import Signal

from ...base.names import quote

# the results of Django's running tasks, the innermost first: only signals tell which task runs
_django_tasks: ContextVar[tuple[Any, Any] | None] = ContextVar("django_redislock.django_tasks", default=None)


def running_job() -> str:
    """Name and id of the job that runs here, as ``shop.tasks.export[7d0f…]``; "" outside of jobs."""
    loaded = sys.modules.get
    try:
        found: Any = _django_tasks.get()
        if found is not None:
            return _named(found[0].task.module_path, found[0].id)
        celery = loaded("celery._state")  # it knows the worker's own task, whatever other tasks that one calls
        if celery is not None and (found := celery.get_current_worker_task()) is not None:
            return _named(found.name, found.request.id)
        rq = loaded("rq")
        if rq is not None and (found := rq.get_current_job()) is not None:
            return _named(found.func_name, found.id)
        dramatiq = loaded("dramatiq.middleware")
        if dramatiq is not None and (found := dramatiq.CurrentMessage.get_current_message()) is not None:
            return _named(found.actor_name, found.message_id)
    except AttributeError:
        pass  # an unknown version of a queue must not break a lock
    return ""


def _named(name: object, id: object) -> str:
    return f"{quote(name)}[{quote(id)}]"


def follow_django_tasks(started: Signal, finished: Signal) -> None:
    """Keep track of Django's running task by its signals ``task_started`` and ``task_finished``."""
    started.connect(_on_started, dispatch_uid="django_redislock.background_job")
    finished.connect(_on_finished, dispatch_uid="django_redislock.background_job")


def _on_started(*, task_result: Any, **kwargs: Any) -> None:
    _django_tasks.set((task_result, _django_tasks.get()))


def _on_finished(*, task_result: Any, **kwargs: Any) -> None:
    found = running = _django_tasks.get()
    while found is not None and found[0].id != task_result.id:
        found = found[1]  # a task that was interrupted sends no task_finished
    _django_tasks.set(running if found is None else found[1])
