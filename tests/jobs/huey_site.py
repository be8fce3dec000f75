"""A site with Huey tasks under locks, for test_huey.py and the consumers that it starts."""

import os
from typing import Any

import django
from huey import CancelExecution, PriorityRedisHuey, chord, crontab  # noqa: F401
from huey.exceptions import RateLimitExceeded, RetryTask, TaskException  # noqa: F401

django.setup()

from django_redislock.jobs.huey import LockedHuey, locked_job
from tests.helpers.jobs import gate, note, url
from tests.jobs.examples import examples, run


class SiteHuey(LockedHuey, PriorityRedisHuey): ...


huey = SiteHuey("tests", url=url(1))


@huey.task()
@locked_job("report:{year}", lock_from="enqueue")
def report(year: int, wait: str = "", fails: int = 0) -> str:
    return run("report", year, wait, fails)


OWN = {"patient": {"retries": 2}, "stubborn": {"retries": 2, "retry_delay": 600}, "sync": {"priority": 7}}


def make(function: Any, lock: str, **options: Any) -> Any:
    own = OWN.get(function.__name__, {})
    return huey.task(context=True, **own)(locked_job(lock, **options)(function))


def tried(task: Any = None) -> int:
    return 0 if task is None else type(task).default_retries - task.retries


globals().update(examples(__name__, make, tried, call=lambda task, year: task.call_local(year)))


@huey.task(context=True)
@locked_job("mail:{pk}", lock_from="enqueue")
def mail(pk: int, how: str, task: Any) -> str:
    """Fail in this way, as long as there are retries; those that ask for one more get two."""
    note("mail", how)
    if how == "fails" or (how == "cancels" and task.retries):
        raise {"fails": ZeroDivisionError, "cancels": CancelExecution}[how]
    if how in ASKS and len(SEEN) < 2:
        SEEN.append(how)
        raise ASKS[how]
    return "sent"


SEEN: list[str] = []
ASKS = {
    "asks": RetryTask(delay=500),
    "asks to be cancelled": CancelExecution(retry=True),
    "is limited": RateLimitExceeded("mails", 500),
    "gives up": CancelExecution(retry=False),
}


@huey.task(timeout=3)
@locked_job("slow", lock_from="enqueue")
def slow() -> None:
    gate("never")


@huey.task()
@locked_job("killed", lock_from="enqueue", ttl=2)
def killed() -> None:
    note("killed")
    os.kill(os.getpid(), 9)


@huey.periodic_task(crontab())
@locked_job("minutely", lock_from="enqueue")
def minutely() -> None:
    note("minutely")


@huey.task()
def collect(*found: Any) -> Any:
    return [one for one in (found[0] if isinstance(found[0], list) else found) if one]


@huey.task()
@locked_job("report:1", lock_from="enqueue")
def report_one(rendered: str) -> str:
    note("one", rendered)
    return rendered
