"""A site with Django's tasks under locks, for test_django_tasks.py and the workers that it starts."""

from collections.abc import Callable
from enum import Enum
from importlib import import_module
from typing import Any

from django import VERSION

from django_redislock.jobs.django_tasks import locked_job
from tests.helpers.jobs import gate, held, note

PACKAGE = "django.tasks" if VERSION >= (6,) else "django_tasks"
task: Any = import_module(PACKAGE).task

IMMEDIATE = f"{PACKAGE}.backends.immediate.ImmediateBackend"
DATABASE = "django_redislock.jobs.django_tasks_db.LockedDatabaseBackend"


class Trouble(Exception):
    pass


def make(lock: Any = "report:{year}", takes_context: bool = False, **options: Any) -> Callable[[Any], Any]:
    every = {"lock_from": "enqueue", **options}
    return lambda function: task(takes_context=takes_context)(locked_job(lock, **every)(function))


def run(name: str, year: int, wait: str, fails: bool) -> str:
    note(name, year)
    gate(wait)
    if fails:
        raise Trouble
    return f"{name} {year}"


@make()
def report(year: int, wait: str = "", fails: bool = False) -> str:
    return run("report", year, wait, fails)


@make(busy="raise")
def strict(year: int) -> str:
    return run("strict", year, "", False)


@make(busy="retry")
def patient(year: int) -> str:
    return run("patient", year, "", False)


@make(busy="merge")
def sync(year: int, wait: str = "", fails: bool = False) -> str:
    return run("sync", year, wait, fails)


@make(lock_from="start")
def at_start(year: int, wait: str = "") -> str:
    return run("at_start", year, wait, False)


class Kind(str, Enum):
    A = "a"


@make(lambda context, kind: f"kind:{kind}", takes_context=True)
def of_kind(context: Any, kind: str) -> list[str]:
    assert context.task_result.task.takes_context
    return held()


@make("awaited:{year}")
async def awaited(year: int) -> int:
    return year


@make("outer:{again}")
def outer(again: int) -> list[str]:
    if again:
        assert [outer.call(0) for _ in range(2)] == [["outer:0", "outer:1"]] * 2
        assert report.call(8) == "report 8"
        assert patient.enqueue(9).return_value == "patient 9"
    return held()


unlocked: Callable[[Any], Any] = task()


@unlocked
def plain() -> list[str]:
    return held()
