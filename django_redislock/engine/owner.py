"""How the owner of a lock is described to people: host, process, thread, and the job of a task queue that runs here.

A task queue that the site has not imported is not imported.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from django.dispatch import Signal

from ..base.names import quote
from .held import Runner

# the results of Django's running tasks, the innermost first: only signals tell which task runs
_django_tasks: ContextVar[tuple[Any, Any] | None] = ContextVar("django_redislock.django_tasks", default=None)
# the task that a LockedHuey runs, see jobs/huey.py: Huey itself does not tell
huey_delivery: ContextVar[Any] = ContextVar("django_redislock.huey_delivery", default=None)


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
        if (found := huey_delivery.get()) is not None:
            return _named(found.task.name, found.id)
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


def running_django_task() -> Any:
    """The result of Django's task that runs here; None outside of tasks."""
    found = _django_tasks.get()
    return None if found is None else found[0]


MAX_BYTES = 200


@lru_cache(maxsize=1)
def _describe_process(pid: int) -> tuple[str, str]:
    """Host and process id; and the management command that runs, if any."""
    program, *arguments = sys.argv or [""]
    managing = program.endswith(("manage.py", "django-admin", "django/__main__.py"))
    command = arguments[0] if managing and arguments and not arguments[0].startswith("-") else ""
    return f"{socket.gethostname()}:{pid}:", command


def describe_owner(purpose: str, runner: Runner | None, pid: int | None = None) -> str:
    """``host:pid:thread`` (with the task, if any), then ``purpose``, or without one the management command that runs.

    In a task queue's job, the job's name and id take the place of the thread. ``runner``: see caller().
    """
    where, command = _describe_process(pid or os.getpid())
    task_name: Any = getattr(runner, "get_name", None)  # a task's; gevent's threads have classes of their own
    if task_name is None:
        thread: Any = runner or threading.current_thread()
        who = running_job() or thread.name
    else:
        who = f"{running_job() or threading.current_thread().name}/{task_name()}"
    text = f"{where}{who} {purpose or command}".rstrip()
    if not text.isascii() or not text.isprintable() or len(text) > MAX_BYTES:
        text = "".join(char if char.isprintable() else "?" for char in text)
        text = text.encode(errors="replace")[:MAX_BYTES].decode(errors="ignore")
    return text
