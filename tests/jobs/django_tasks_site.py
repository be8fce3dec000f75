"""A site with Django's tasks under locks, for test_django_tasks.py and the workers that it starts."""

from enum import Enum
from importlib import import_module
from typing import Any

from django import VERSION

from django_redislock.jobs.django_tasks import locked_job
from tests.helpers.jobs import held
from tests.jobs.examples import examples, run

PACKAGE = "django.tasks" if VERSION >= (6,) else "django_tasks"
task: Any = import_module(PACKAGE).task

IMMEDIATE = f"{PACKAGE}.backends.immediate.ImmediateBackend"
DATABASE = "django_redislock.jobs.django_tasks_db.LockedDatabaseBackend"


def make(function: Any, lock: str, **options: Any) -> Any:
    return task()(locked_job(lock, **options)(function))


@task()
@locked_job("report:{year}", lock_from="enqueue")
def report(year: int, wait: str = "", fails: int = 0) -> str:
    return run("report", year, wait, fails)


globals().update(examples(__name__, make, call=lambda task, year: task.call(year)))


class Kind(str, Enum):
    A = "a"


@task(takes_context=True)
@locked_job(lambda context, kind: f"kind:{kind}", lock_from="enqueue")
def of_kind(context: Any, kind: str) -> list[str]:
    assert context.task_result.task.takes_context
    return held()


@task()
@locked_job("awaited:{year}", lock_from="enqueue")
async def awaited(year: int) -> int:
    return year


@task()
def plain() -> list[str]:
    return held()
