"""A site with RQ jobs under locks, for test_rq.py and the workers that it starts."""

import os
from typing import Any

import django
import redis
from rq import Callback, Queue, Repeat, Retry, get_current_job  # noqa: F401
from rq.decorators import job

django.setup()

from django_redislock import get_lock
from django_redislock.jobs.rq import LockedQueue, locked_job
from tests.helpers.jobs import gate, hiding, note, url

queue = LockedQueue(connection=redis.Redis.from_url(url(1)))


def current() -> Any:
    return get_current_job()


@job(queue, queue.connection)
@locked_job("report:{year}", lock_from="enqueue")
def report(year: int, wait: str = "", fails: int = 0) -> int:
    note("begins", year)
    gate(wait)
    if fails and (current().retries_left or 0) > 3 - fails:
        raise ZeroDivisionError
    note("ends", year)
    return year


@locked_job("report:{year}", lock_from="enqueue", busy="retry")
def patient(year: int) -> str:
    note("patient", current().number_of_retries, current().retries_left)
    return "patient"


@locked_job("sync", lock_from="enqueue", busy="merge")
def sync(wait: str = "", fails: bool = False) -> None:
    note("sync", *sorted(current().meta))
    gate(wait)
    if fails:
        raise ZeroDivisionError


def has_failed(*args: Any) -> None:
    note("has failed")


@locked_job("copied", lock_from="enqueue", ttl=6)
def copied(wait: str) -> None:
    note("begins")
    gate(wait)
    note("ends")


@locked_job("polite", lock_from="enqueue")
def polite(tries: int, interval: int = 0) -> Any:
    note("polite", get_lock("polite").lease_left > 0)  # type: ignore[union-attr]
    return Retry(tries, interval)


@locked_job("killed:{how}", lock_from="enqueue", ttl=3)
def killed(how: str) -> None:
    note("killed", how)
    if current().retries_left != 0:
        os.kill(os.getpid(), 9)


@locked_job("page:{pk}")
def page(pk: int, wait: str = "") -> str:
    note("page", pk)
    gate(wait)
    return "rendered"


@locked_job("page:{pk}", busy="retry")
def later(pk: int) -> str:
    note("later", pk)
    return "later"


@locked_job("page:{pk}", busy="raise")
def impatient(pk: int) -> str:
    return f"{page.__name__} {pk}"


@locked_job("nightly", lock_from="enqueue", at_least=300)
def nightly() -> None:
    note("nightly")


@locked_job(name=lambda n: f"deep:{n}")
def deep(n: int) -> int:
    return n if n == 0 else deep(n - 1)


@locked_job("self")
def calls_itself(again: bool = True) -> None:
    if again:
        calls_itself(again=False)


class Shop:
    @locked_job("shop", lock_from="enqueue")
    def open(self) -> str:
        return "open"


def caller(year: int) -> int:
    result: int = report(year)
    return result


def plain() -> None: ...


@locked_job("hidden")
@hiding
async def hidden() -> None:
    note("hidden")
