"""The database backend of django-tasks-db whose tasks acquire their locks when they are queued."""

from __future__ import annotations

from copy import copy
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import router
from django.utils import timezone
from django_tasks_db import DatabaseBackend
from django_tasks_db.compat import TaskResultDoesNotExist, normalize_json, task_finished, task_started

from ..base.log import warn
from ..engine.owner import follow_django_tasks
from ..open_transactions import open_aliases
from .django_tasks import arguments
from .job_function import lock_of

follow_django_tasks(task_started, task_finished)  # django-tasks may be missing in INSTALLED_APPS


class LockedDatabaseBackend(DatabaseBackend):
    """For ``TASKS["default"]["BACKEND"]``, in place of DatabaseBackend; its workers are the same.

    ``enqueue()`` of a task under a ``locked_job`` with ``lock_from="enqueue"`` acquires the lock. If it is busy, it
    returns the result of the task that has it, or None where no task has it, or its row cannot be seen yet.

    Inside a transaction, this warns: a rollback takes back the row, but not the lock, of which nobody is told.
    """

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        lock = lock_of(task.func)
        if lock is None or not lock.from_enqueue:
            return super().enqueue(task, args, kwargs)
        id = UUID(str(self._get_id()))
        normal: Any = normalize_json([args, kwargs])
        given = arguments(task, *normal)
        wait = 0.0 if task.run_after is None else max(0.0, (task.run_after - timezone.now()).total_seconds())

        def publish(taken: bool) -> Any:
            if taken:
                _warn_of_rollback(task.name, lock.queued_ttl)
            with_id = copy(self)
            with_id.id_function = lambda: id
            return with_id.enqueue_without_lock(task, args, kwargs)

        return lock.enqueue(*given, str(id), publish, self._find, wait=wait)

    def _find(self, id: str) -> Any:
        try:
            return self.get_result(id)
        except TaskResultDoesNotExist:
            return None

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        return await sync_to_async(self.enqueue)(task, args, kwargs)

    def enqueue_without_lock(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Queue a task that acquires its lock when it starts."""
        return super().enqueue(task, args, kwargs)


def _warn_of_rollback(name: str, queued_ttl: float) -> None:
    from django_tasks_db.models import DBTaskResult  # not before all apps are there

    if router.db_for_write(DBTaskResult) in open_aliases():
        warn(
            f"The task {name!r} was enqueued, and its lock acquired, inside an open transaction: after a rollback, the "
            f"lock would stay held for {queued_ttl:g} s. Enqueue it in a callback of transaction.on_commit()."
        )
