"""A site with Huey tasks under locks, for test_huey.py and the consumers that it starts."""

import os
from typing import Any

import django
from huey import CancelExecution, PriorityRedisHuey, chord, crontab  # noqa: F401
from huey.exceptions import RateLimitExceeded, RetryTask

django.setup()

from django_redislock.jobs.huey import LockedHuey, locked_job
from tests.helpers.jobs import gate, note, url


class SiteHuey(LockedHuey, PriorityRedisHuey): ...


huey = SiteHuey("tests", url=url(1))


@huey.task()
@locked_job("report:{year}", lock_from="enqueue")
def report(year: int, wait: str = "") -> int:
    note("begins", year)
    gate(wait)
    note("ends", year)
    return year


@huey.task(retries=2, context=True)
@locked_job("report:{year}", lock_from="enqueue", busy="retry")
def patient(year: int, task: Any = None) -> str:
    note("patient", task.retries)
    return "patient"


@huey.task(priority=7)
@locked_job("sync", lock_from="enqueue", busy="merge")
def sync(wait: str = "", fails: bool = False) -> None:
    note("sync")
    gate(wait)
    if fails:
        raise ZeroDivisionError


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


@huey.task()
@locked_job("page:{pk}")
def page(pk: int, wait: str = "") -> str:
    note("page", pk)
    gate(wait)
    return "rendered"


@huey.task()
@locked_job("page:{pk}", busy="retry")
def later(pk: int) -> str:
    note("later", pk)
    return "later"


@huey.task()
@locked_job("page:{pk}", busy="raise")
def impatient(pk: int) -> str:
    return "impatient"


@huey.periodic_task(crontab())
@locked_job("minutely", lock_from="enqueue")
def minutely() -> None:
    note("minutely")


@huey.task()
def caller(year: int) -> int:
    result: int = report.call_local(year)
    return result


@huey.task()
def add(*numbers: Any) -> Any:
    return sum(number or 0 for number in (numbers[0] if isinstance(numbers[0], list) else numbers))


@huey.task()
@locked_job("report:1", lock_from="enqueue")
def report_one(rendered: str) -> str:
    note("one", rendered)
    return rendered
