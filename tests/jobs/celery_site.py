"""A site with Celery tasks under locks, for test_celery.py and the workers that it starts."""

import os
from typing import Any

import django
from celery import Celery, chain, chord, current_task, group  # type: ignore[import-untyped]  # noqa: F401
from celery.exceptions import Reject  # type: ignore[import-untyped]
from celery.result import AsyncResult  # type: ignore[import-untyped]

django.setup()

from django_redislock.jobs.celery import LockedTask
from tests.helpers.jobs import gate, note
from tests.jobs.examples import Trouble, examples, run

# it unsubscribes when it is collected, in whichever test that is, and makes all connections anew if that fails
del AsyncResult.__del__

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
    result_backend_thread_safe=True,  # else each thread has a client of its own, which Celery never closes
    task_acks_late=os.environ.get("TEST_ACKS_LATE") == "1",
    task_reject_on_worker_lost=os.environ.get("TEST_ACKS_LATE") == "1",
)


@app.task(base=LockedTask, lock="report:{year}", lock_from="enqueue")
def report(year: int, wait: str = "", fails: int = 0) -> str:
    return run("report", year, wait, fails)


RETRIES = {"autoretry_for": (Trouble,), "max_retries": 2, "default_retry_delay": 600}


def make(function: Any, **options: Any) -> Any:
    own = RETRIES if function.__name__ == "stubborn" else {}
    return app.task(base=LockedTask, **options, **own)(function)


globals().update(examples(__name__, make, lambda: current_task.request.retries))


def queued(**options: Any) -> Any:
    return app.task(base=LockedTask, lock_from="enqueue", **options)


@queued(lock="mail:{pk}", bind=True, max_retries=20)
def mail(self: Any, pk: int, retries: int, countdown: float = 0.05) -> str:
    note("mail", self.request.retries)
    if self.request.retries < retries:
        raise self.retry(countdown=countdown)
    return "sent"


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
def collect(found: Any) -> Any:
    return [one for one in found if one]
