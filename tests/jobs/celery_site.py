"""A site with Celery tasks under locks, for test_celery.py and the workers that it starts."""

import os
from typing import Any

import django
from celery import Celery, chain, chord, group  # type: ignore[import-untyped]  # noqa: F401
from celery.exceptions import Reject  # type: ignore[import-untyped]

django.setup()

from django_redislock.jobs.celery import LockedTask
from tests.helpers.jobs import gate, note

URL = os.environ.get("REDISLOCK_TEST_URL", "redis://127.0.0.1:1/0").rsplit("/", 1)[0]

app = Celery("tests.jobs.celery_site", broker=os.environ.get("TEST_BROKER", f"{URL}/1"), backend=f"{URL}/2")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": float(os.environ.get("TEST_VISIBILITY", 3600)),
        "unacked_restore_interval": 0.5,
        "unacked_restore_throttle": 1,
    }
    if "TEST_VISIBILITY" in os.environ
    else {},
    worker_prefetch_multiplier=int(os.environ.get("TEST_PREFETCH", 4)),
    worker_hijack_root_logger=False,
    task_acks_late=os.environ.get("TEST_ACKS_LATE") == "1",
    task_reject_on_worker_lost=os.environ.get("TEST_ACKS_LATE") == "1",
)


def queued(**options: Any) -> Any:
    return app.task(base=LockedTask, lock_from="enqueue", **options)


@queued(lock="report:{year}")
def report(year: int, wait: str = "") -> int:
    note("begins", report.request.id)
    gate(wait)
    note("ends", report.request.id)
    return year


@queued(lock="report:{year}", busy="raise")
def strict(year: int) -> None:
    note("strict", year)


@queued(lock="report:{year}", busy="retry")
def patient(year: int) -> str:
    note("patient", patient.request.retries)
    return "patient"


@queued(lock="mail:{pk}", bind=True, max_retries=20)
def mail(self: Any, pk: int, retries: int, countdown: float = 0.05) -> str:
    note("mail", self.request.retries)
    if self.request.retries < retries:
        raise self.retry(countdown=countdown)
    return "sent"


@queued(lock="auto", autoretry_for=(ZeroDivisionError,), retry_backoff=0.01, retry_jitter=False, max_retries=2)
def auto() -> None:
    note("auto")
    raise ZeroDivisionError


@queued(lock="broken:{how}", bind=True)
def broken(self: Any, how: str) -> None:
    note("broken", how)
    if how == "rejected":
        raise Reject("no", requeue=False)
    if how == "killed":
        os.kill(os.getpid(), 9)
    raise ZeroDivisionError


@queued(lock="short", ttl=5)
def short(wait: str) -> None:
    note("short")
    gate(wait)


@app.task(base=LockedTask, lock="page:{pk}", ttl=5)
def page(pk: int, wait: str = "") -> str:
    note("page", pk)
    gate(wait)
    return "rendered"


@app.task(base=LockedTask, lock="page:{pk}", busy="retry")
def later(pk: int) -> str:
    note("later", pk)
    return "later"


@app.task(base=LockedTask, lock="page:{pk}", busy="raise")
def impatient(pk: int) -> str:
    return "impatient"


@app.task(base=LockedTask, lock="export", limit=2, busy="raise")
def export(wait: str) -> None:
    note("export")
    gate(wait)


@queued(lock="paint:{color}")
def paint(color: str) -> None: ...


@queued(lock="again", busy="merge")
def again() -> None:
    note("again")
    again.delay()


@queued(lock="replaced:{by}", bind=True)
def replaced(self: Any, by: str) -> None:
    raise self.replace(replaced.s(by) if by == "same" else report.s(7))


@queued(lock="count:{n}", bind=True, busy="merge")
def count(self: Any, n: int, again: str = "") -> str:
    note("count", n)
    if n == 1 and again == "retried":
        raise self.retry(args=(2,), countdown=0)
    if n == 1 and again == "replaced":
        raise self.replace(count.s(2))
    return "counted"


class Shelf(LockedTask):
    abstract, lock_from = True, "enqueue"

    def run(self, year: int) -> None: ...


class Books(Shelf):
    lock, name = "books:{year}", "books"


class Archive(Books):
    lock, name, busy = "archive", "archive", "raise"


books, archive = app.register_task(Books()), app.register_task(Archive())


@app.task
def add(numbers: Any) -> Any:
    return sum(number for number in numbers if number)
