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
from tests.jobs.examples import examples, run

queue = LockedQueue(connection=redis.Redis.from_url(url(1)))


def current() -> Any:
    return get_current_job()


@job(queue, queue.connection)
@locked_job("report:{year}", lock_from="enqueue")
def report(year: int, wait: str = "", fails: int = 0) -> str:
    return run("report", year, wait, fails)


def make(function: Any, lock: str, **options: Any) -> Any:
    return locked_job(lock, **options)(function)


RETRIES = 2  # of a job that has retries


def tried() -> int:
    job = current()
    left = RETRIES if job is None or job.retries_left is None else job.retries_left
    return RETRIES - left + ((job and job.number_of_retries) or 0)


globals().update(examples(__name__, make, tried))


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


@locked_job("nightly", lock_from="enqueue", at_least=300)
def nightly() -> None:
    note("nightly")


class Shop:
    @locked_job("shop", lock_from="enqueue")
    def open(self) -> str:
        return "open"


def plain() -> None: ...


@locked_job("hidden")
@hiding
async def hidden() -> None:
    note("hidden")
