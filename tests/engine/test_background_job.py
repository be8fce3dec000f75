"""The owner of a lock that a job of a task queue acquires is the job.

With the queues themselves, each in a process of its own; and with modules that look like them, in this one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.dispatch import Signal

from django_redislock.engine.owners.background_job import running_job
from tests.helpers.processes import Worker
from tests.helpers.requirements import MissingError, require, wheel_folder

CELERY = """
from celery import Celery
from celery.contrib.testing.worker import start_worker
from tests.engine.jobs import owner

app = Celery("site", broker="memory://", backend="cache+memory://")

@app.task(name="shop.inner")
def inner():
    return owner()

@app.task(name="shop.export")
def export():
    return owner(), inner()

with start_worker(app, perform_ping_check=False, pool="solo", loglevel="ERROR"):
    result = export.delay()
    for found in result.get(timeout=30):
        say("inside", found, result.id)
say("outside", owner())
"""

RQ = """
import redis
from rq import Queue, SimpleWorker
from tests.engine.jobs import owner

connection = redis.Redis.from_url(os.environ["REDISLOCK_TEST_URL"])
job = Queue(connection=connection).enqueue(owner, job_id="export-7")
SimpleWorker([job.origin], connection=connection).work(burst=True, logging_level="ERROR")
say("inside", job.return_value(), job.id)
say("outside", owner())
"""

DRAMATIQ = """
import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage
from tests.engine.jobs import owner

broker = StubBroker()
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)

@dramatiq.actor
def export():
    say("inside", owner(), message.message_id)

worker = dramatiq.Worker(broker, worker_threads=1)
message = export.send()
worker.start()
broker.join("default")
worker.stop()
say("outside", owner())
"""

DJANGO = """
from django_tasks import task
from tests.engine.jobs import aowner, owner

@task
def interrupted():
    raise KeyboardInterrupt  # its end is told to nobody

@task
async def awaited():
    return await aowner()

@task
def export():
    inner = awaited.enqueue()
    say("inside", inner.return_value, "awaited", inner.id)
    found = owner()
    try:
        interrupted.enqueue()
    except KeyboardInterrupt:
        return found

ran = export.enqueue()
say("inside", ran.return_value, "export", ran.id)
say("outside", owner())
"""


def needs(package: str, distribution: str) -> None:
    def find() -> object:
        folder = wheel_folder(package)
        if folder is None:
            raise MissingError(distribution, f"python -m pip install {distribution}")
        return folder

    require(find)


@pytest.mark.complete
@pytest.mark.parametrize(
    ("package", "code", "name", "asked"),
    [
        ("celery", CELERY, "shop.export", 2),
        ("rq", RQ, "tests.engine.jobs.owner", 1),
        ("dramatiq", DRAMATIQ, "export", 1),
    ],
)
def test_the_owner_is_the_job_or_outside_a_job_the_thread(
    package: str, code: str, name: str, asked: int, start: Callable[..., Worker]
) -> None:
    needs(package, package)
    worker = start(code)
    for _ in range(asked):
        owner, id = worker.expect("inside")
        assert owner == f"{name}[{id}]"
    assert worker.expect("outside") == ["MainThread"]


def test_the_owner_is_one_of_djangos_tasks(start: Callable[..., Worker]) -> None:
    needs("django_tasks", "django-tasks")
    worker = start(DJANGO, first="import tests.settings as s; s.INSTALLED_APPS.append('django_tasks')\n")
    for _ in range(2):
        owner, name, id = worker.expect("inside")
        assert owner.partition("/")[0] == f"__main__.{name}[{id}]"
    assert worker.expect("outside") == ["MainThread"]


def test_no_queue_is_imported(start: Callable[..., Worker]) -> None:
    worker = start(
        """
from tests.engine.jobs import owner
say("owner", owner())
say("imported", *{"celery", "rq", "dramatiq", "django_tasks"} & set(sys.modules))
"""
    )
    assert worker.expect("owner") == ["MainThread"]
    assert worker.expect("imported") == []


# -- with modules that look like the queues, in this process ----------------------------------------------------------


def celerys_state(task: object) -> SimpleNamespace:
    return SimpleNamespace(get_current_worker_task=lambda: task)


def rqs(job: object) -> SimpleNamespace:
    return SimpleNamespace(get_current_job=lambda: job)


def dramatiqs_middleware(message: object) -> SimpleNamespace:
    return SimpleNamespace(CurrentMessage=SimpleNamespace(get_current_message=lambda: message))


QUEUES = [
    ("celery._state", celerys_state, SimpleNamespace(name="a.b", request=SimpleNamespace(id="7 x:y"))),
    ("rq", rqs, SimpleNamespace(func_name="a.b", id="7 x:y")),
    ("dramatiq.middleware", dramatiqs_middleware, SimpleNamespace(actor_name="a.b", message_id="7 x:y")),
]


@pytest.mark.parametrize(("module", "make", "job"), QUEUES, ids=[queue[0] for queue in QUEUES])
def test_a_job_is_shown_by_its_quoted_name_and_id(
    module: str, make: Callable[[object], Any], job: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, make(job))
    assert running_job() == "a.b[7%20x%3Ay]"
    monkeypatch.setitem(sys.modules, module, make(None))
    assert running_job() == ""
    monkeypatch.setitem(sys.modules, module, SimpleNamespace())
    assert running_job() == "", "another version of the queue does no harm"


def test_djangos_tasks_are_followed_by_their_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = SimpleNamespace(task_started=Signal(), task_finished=Signal())
    monkeypatch.setitem(sys.modules, "django_tasks", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "django_tasks.signals", signals)
    monkeypatch.setattr(apps, "is_installed", {"django_tasks"}.__contains__)
    apps.get_app_config("django_redislock").ready()
    outer, inner, foreign = (SimpleNamespace(id=id, task=SimpleNamespace(module_path=f"shop.{id}")) for id in "oif")
    seen = []
    for signal, task in [
        (signals.task_started, outer),
        (signals.task_started, inner),
        (signals.task_finished, foreign),
        (signals.task_finished, inner),
        (signals.task_started, inner),  # and its end is told to nobody
        (signals.task_finished, outer),
    ]:
        signal.send(None, task_result=task)
        seen.append(running_job())
    assert seen == ["shop.o[o]", "shop.i[i]", "shop.i[i]", "shop.o[o]", "shop.i[i]", ""]
