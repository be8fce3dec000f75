"""How those who ask for a lock are described to people: by process, thread or task, job of a task queue, and purpose.

The queues themselves run in processes of their own; modules that look like them, in this one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.dispatch import Signal

from django_redislock import Lock
from tests.helpers.processes import Worker
from tests.helpers.requirements import MissingError, require, wheel_folder
from tests.helpers.state import NAME

from .jobs import owner

PROCESS = f"{socket.gethostname()}:{os.getpid()}:"
HERE = f"{PROCESS}{threading.current_thread().name}"


def described(purpose: str) -> str:
    with Lock(NAME, purpose=purpose) as lock:
        info = lock.info()
        assert info is not None
        assert info.note == ""
        return info.owner


@pytest.mark.parametrize(
    ("purpose", "shown"),
    [
        ("/orders/42", " /orders/42"),
        ("", ""),
        ("/straße/注文", " /straße/注文"),
        *[(f"/a{hostile}b", " /a?b") for hostile in "\n\r\x1b\0\u202e\u2028\ud800"],
    ],
    ids=ascii,
)
def test_an_owner_is_host_process_thread_and_purpose_without_what_could_deceive_a_terminal(
    purpose: str, shown: str
) -> None:
    assert described(purpose) == f"{HERE}{shown}"


@pytest.mark.parametrize("long", ["a" * 500, "ß" * 500, "x" + "注" * 500, "😀" * 500], ids=lambda long: long[:2])
def test_a_long_owner_is_cut_at_a_whole_character(long: str) -> None:
    found = described(long)
    assert f"{HERE} {long}".startswith(found)
    assert 197 <= len(found.encode()) <= 200


async def test_a_task_is_named_behind_its_thread() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.set_name("worker-7")
    async with Lock(NAME, purpose="/orders/42") as lock:
        info = await lock.ainfo()
    assert info is not None
    assert info.owner == f"{HERE}/worker-7 /orders/42"


def test_a_management_command_is_a_purpose(start: Callable[..., Worker]) -> None:
    worker = start(
        """
sys.argv = ["manage.py", "rebuild", "--all"]
for purpose in "", "/orders/42":
    with Lock("a", purpose=purpose) as lock:
        say("owner", lock.info().owner)
"""
    )
    assert worker.expect("owner") == [f"{socket.gethostname()}:{worker.pid}:MainThread", "rebuild"]
    assert worker.expect("owner") == [f"{socket.gethostname()}:{worker.pid}:MainThread", "/orders/42"]


# -- jobs of task queues -----------------------------------------------------------------------------------------------

CELERY = """
from celery import Celery
from celery.contrib.testing.worker import start_worker

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
"""

RQ = """
import redis
from rq import Queue, SimpleWorker

connection = redis.Redis.from_url(os.environ["REDISLOCK_TEST_URL"])
job = Queue(connection=connection).enqueue(owner, job_id="export-7")
SimpleWorker([job.origin], connection=connection).work(burst=True, logging_level="ERROR")
say("inside", job.return_value(), job.id)
"""

DRAMATIQ = """
import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage

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
"""

DJANGO = """
from django_tasks import task
from tests.engine.jobs import aowner

@task
def interrupted():
    raise KeyboardInterrupt  # its end is told to nobody

@task
async def awaited():
    return await aowner()

@task
def export():
    inner = awaited.enqueue()
    say("inside", inner.return_value.replace("__main__.awaited", "__main__.export").partition("/")[0], inner.id)
    found = owner()
    try:
        interrupted.enqueue()
    except KeyboardInterrupt:
        return found

ran = export.enqueue()
say("inside", ran.return_value, ran.id)
"""


@pytest.mark.complete
@pytest.mark.parametrize(
    ("package", "code", "name", "asked"),
    [
        ("celery", CELERY, "shop.export", 2),
        ("rq", RQ, "tests.engine.jobs.owner", 1),
        ("dramatiq", DRAMATIQ, "export", 1),
        ("django_tasks", DJANGO, "__main__.export", 2),
    ],
)
def test_a_job_stands_in_the_place_of_its_thread(
    package: str, code: str, name: str, asked: int, start: Callable[..., Worker]
) -> None:
    def find() -> object:
        if (folder := wheel_folder(package)) is None:
            raise MissingError(package, f"python -m pip install {package.replace('_', '-')}")
        return folder

    require(find)
    first = "import tests.settings as s; s.INSTALLED_APPS.append('django_tasks')\n" if package == "django_tasks" else ""
    worker = start(f"from tests.engine.jobs import owner\n{code}\nsay('outside', owner())", first=first)
    for _ in range(asked):
        found, id = worker.expect("inside")
        assert found == f"{name}[{id}]"
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


@pytest.mark.parametrize(
    ("module", "make", "job"),
    [
        (
            "celery._state",
            lambda task: SimpleNamespace(get_current_worker_task=lambda: task),
            SimpleNamespace(name="a.b", request=SimpleNamespace(id="7 x:y")),
        ),
        (
            "rq",
            lambda job: SimpleNamespace(get_current_job=lambda: job),
            SimpleNamespace(func_name="a.b", id="7 x:y"),
        ),
        (
            "dramatiq.middleware",
            lambda message: SimpleNamespace(CurrentMessage=SimpleNamespace(get_current_message=lambda: message)),
            SimpleNamespace(actor_name="a.b", message_id="7 x:y"),
        ),
    ],
)
def test_a_job_is_shown_by_its_quoted_name_and_id(
    module: str, make: Callable[[object], Any], job: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, make(job))
    assert owner() == "a.b[7%20x%3Ay]"
    for without_job in (make(None), SimpleNamespace()):  # another version of the queue does no harm, either
        monkeypatch.setitem(sys.modules, module, without_job)
        assert owner() == "MainThread"


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
        seen.append(owner())
    assert seen == ["shop.o[o]", "shop.i[i]", "shop.i[i]", "shop.o[o]", "shop.i[i]", "MainThread"]
