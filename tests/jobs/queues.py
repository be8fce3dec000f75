"""How each queue is used and worked through, for test_queues.py and the files of the queues."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from django import VERSION
from django.contrib import admin
from django.db import connections

from tests.helpers.actors import until
from tests.helpers.databases import one_database, sqlite_file
from tests.helpers.jobs import require_package, url
from tests.helpers.processes import Worker

LONG = 60.0

Start = Callable[..., Any]
Work = Callable[..., None]


class Queue(ABC):
    """Its ``site`` has the jobs of tests/jobs/examples.py; ``start`` starts a real worker."""

    send_by, call_by = "__call__", "__call__"  # the methods of jobs that queue them, and call them like functions
    way: str  # through which they go to the queue
    can_pickle = False  # the arguments of jobs
    takes_coroutines = False
    keeps_ids = True  # a job that comes again later is the same job
    locks_before_immediate = False  # a job that runs at once; else when it starts

    def __init__(self, site: Any, start: Start) -> None:
        self.site, self.start = site, start

    def job(self, name: str) -> Any:
        return getattr(self.site, name)

    def send(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Queue a job; return what its queue returns."""
        return getattr(self.job(name), self.send_by)(*args, **kwargs)

    @abstractmethod
    def send_in(self, seconds: float, name: str, *args: Any, at: bool) -> Any:
        """Queue a job that starts later; ``at``: its time is given, where its queue can be told that, too."""

    def id(self, job: Any) -> str:
        return str(job.id)

    @abstractmethod
    def work(self, *, scheduled: bool = False) -> None:
        """Run in this process what is due, as a worker does; with ``scheduled`` what is not due as well."""

    @abstractmethod
    def outcome(self, job: Any) -> Any:
        """What it has returned, or the name of its error; None before."""

    def result(self, job: Any) -> Any:
        return until(lambda: self.outcome(job), within=LONG)

    def call(self, name: str, *args: Any) -> Any:
        return getattr(self.job(name), self.call_by)(*args)

    def declare(self, function: Any, lock: Any = None, **options: Any) -> Any:
        """Put a function under a lock, as a job."""
        return self.site.locked_job(lock, **options)(function)

    def immediate(self) -> None:
        """From now on, jobs run where they are queued."""
        raise NotImplementedError


class CeleryQueue(Queue):
    send_by, way = "delay", "tests.jobs.celery_site.app.send_task"

    def send_in(self, seconds: float, name: str, *args: Any, at: bool) -> Any:
        when = {"eta": datetime.now(timezone.utc) + timedelta(seconds=seconds)} if at else {"countdown": seconds}
        return self.job(name).apply_async(args, **when)

    def work(self, *, scheduled: bool = False) -> None:
        from celery.worker.request import Request  # type: ignore[import-untyped]

        app, later = self.site.app, list[Any]()
        with app.connection_for_read() as connection:
            queue = app.amqp.queues["celery"].bind(connection.default_channel)
            while found := list(iter(queue.get, None)):
                for message in found:
                    if message.headers["eta"] and not scheduled:
                        later.append(message)
                        continue
                    ends = {"on_ack": message.ack_log_error, "on_reject": message.reject_log_error}
                    Request(message, app=app, task=app.tasks[message.headers["task"]], **ends).execute()
                scheduled = False
            for message in later:
                message.requeue()

    def outcome(self, job: Any) -> Any:
        result = job.result if job is not None and job.ready() else None
        return type(result).__name__ if isinstance(result, Exception) else result

    def declare(self, function: Any, **options: Any) -> Any:  # type: ignore[override]
        name = f"{__name__}.{function.__name__}"
        return self.site.app._task_from_fun(function, name=name, base=self.site.LockedTask, **options)

    def immediate(self) -> None:
        self.site.app.conf.task_always_eager = True


class HueyQueue(Queue):
    call_by, way = "call_local", "tests.jobs.huey_site.huey.storage.enqueue"
    can_pickle = True

    def send_in(self, seconds: float, name: str, *args: Any, at: bool) -> Any:
        when = {"eta": datetime.now() + timedelta(seconds=seconds)} if at else {"delay": seconds}
        return self.job(name).schedule(args, **when)

    def work(self, *, scheduled: bool = False) -> None:
        huey = self.site.huey
        now = datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(days=9 if scheduled else 0)
        for task in huey.read_schedule(now):
            huey.enqueue(task)
        while huey.pending_count():
            huey.execute(huey.dequeue(), now)

    def outcome(self, job: Any) -> Any:
        try:
            return job and job.get(preserve=True)
        except self.site.TaskException as error:
            return error.metadata["error"].partition("(")[0]

    def immediate(self) -> None:
        self.site.huey.storage.pool.disconnect()  # Huey replaces it, and leaves it open
        self.site.huey.immediate = True


class RqQueue(Queue):
    way = "tests.jobs.rq_site.queue.push_job_id"
    can_pickle, locks_before_immediate = True, True

    @property
    def rq(self) -> Any:
        return self.site.queue

    def send(self, name: str, *args: Any, **kwargs: Any) -> Any:
        retry = self.site.Retry(self.site.RETRIES, 600) if name in ("patient", "stubborn") else None
        return self.rq.enqueue(self.job(name), *args, **kwargs, retry=retry)

    def send_in(self, seconds: float, name: str, *args: Any, at: bool) -> Any:
        wait, function = timedelta(seconds=seconds), self.job(name)
        if at:
            return self.rq.enqueue_at(datetime.now() + wait, function, *args)
        return self.rq.enqueue_in(wait, function, *args)

    def work(self, *, scheduled: bool = False) -> None:
        from rq import Queue, SimpleWorker
        from rq.timeouts import BaseDeathPenalty

        class NoDeathPenalty(BaseDeathPenalty):
            def setup_death_penalty(self) -> None: ...

            def cancel_death_penalty(self) -> None: ...

        class Worker(SimpleWorker):
            death_penalty_class = NoDeathPenalty  # pytest's own time limit uses the same signal

            def _install_signal_handlers(self) -> None: ...

        queue = self.rq
        registry = queue.scheduled_job_registry
        for id in registry.get_job_ids() if scheduled else []:
            registry.remove(id)
            Queue(connection=queue.connection)._enqueue_job(queue.fetch_job(id))  # as RQ's scheduler does
        classes = {"queue_class": type(queue), "job_class": queue.job_class, "serializer": queue.serializer}
        worker = Worker([queue], connection=queue.connection, **classes)
        worker.work(burst=True, logging_level="CRITICAL")

    def outcome(self, job: Any) -> Any:
        result = job and job.latest_result()
        if result is None or result.type != result.Type.FAILED:
            return result and result.return_value
        return result.exc_string.strip().rpartition("\n")[2].partition(":")[0].rpartition(".")[2]

    def immediate(self) -> None:
        self.site.queue = type(self.rq)(connection=self.rq.connection, is_async=False)


class DramatiqQueue(Queue):
    send_by, way, takes_coroutines = "send", "tests.jobs.dramatiq_site.broker.enqueue", True

    def job(self, name: str) -> Any:
        return getattr(self.site.actors, name)

    def send_in(self, seconds: float, name: str, *args: Any, at: bool) -> Any:
        delay = timedelta(seconds=seconds) if at else seconds * 1000
        return self.job(name).send_with_options(args=args, delay=delay)

    def id(self, job: Any) -> str:
        return str(job.message_id)

    def work(self, *, scheduled: bool = False) -> None:
        from dramatiq import Message, Worker

        broker, late = self.site.broker, "dramatiq:default.DQ"
        waiting = broker.client.hvals(f"{late}.msgs") if scheduled else []
        if waiting:
            broker.client.delete(late, f"{late}.msgs")
        for message in map(Message.decode, waiting):
            due: Any = message.copy(queue_name="default")
            del due.options["eta"]
            broker.enqueue(due)
        worker = Worker(broker, worker_timeout=20, worker_threads=3)
        worker.start()
        until(lambda: broker.client.hlen("dramatiq:default.msgs") == 0)
        worker.stop()

    def outcome(self, job: Any) -> Any:
        results = self.site.dramatiq.results
        try:
            return job and job.get_result()
        except results.ResultMissing:
            return None
        except results.ResultFailure as error:
            return error.orig_exc_type

    def declare(self, function: Any, **options: Any) -> Any:  # type: ignore[override]
        from dramatiq.brokers.stub import StubBroker

        broker = StubBroker([self.site.RedisLock()])
        return self.site.dramatiq.actor(broker=broker, actor_class=self.site.LockedActor, **options)(function)


class DjangoTasksQueue(Queue):
    send_by, call_by, way = "enqueue", "call", "django_tasks_db.DatabaseBackend.enqueue"
    takes_coroutines, keeps_ids = True, False
    rows: Any  # of the table of tasks, which wait there for a worker
    settings: Any

    def send_in(self, seconds: float, name: str, *args: Any, at: bool) -> Any:
        when = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        return self.job(name).using(run_after=when).enqueue(*args)

    def work(self, *, scheduled: bool = False, most: int | None = None) -> None:
        """``most``: run no more than these."""
        from django_tasks_db.management.commands.db_worker import Worker

        if scheduled:
            self.rows.filter(status="READY").update(run_after=datetime.now(timezone.utc))
        queues = {"queue_names": ["default"], "excluded_queue_names": [], "backend_name": "default"}
        options: Any = {"batch": True, "interval": 0.0, "startup_delay": False, "worker_id": "here", **queues}
        Worker(**options, max_tasks=most).run()
        if threading.current_thread() is not threading.main_thread():
            connections.close_all()

    def outcome(self, job: Any) -> Any:
        if job is not None and not job.is_finished:
            job.refresh()
        return job and (job.errors[0].exception_class.__name__ if job.errors else job._return_value)

    def immediate(self) -> None:
        self.settings.TASKS = {"default": {"BACKEND": self.site.IMMEDIATE}}


@pytest.fixture
def celery_queue(program: Start) -> CeleryQueue:
    if redis.VERSION < (6, 1):
        pytest.skip("Celery's broker and results in Redis need redis-py 6.1")
    from tests.jobs import celery_site

    celery_site.app.conf.task_always_eager = False
    code, first = "from celery.__main__ import main; main()", "celery.apps.worker, celery.bin.celery"
    first = f"import celery.__main__, {first}, celery.concurrency.prefork, tests.jobs.celery_site"
    options = "-A", "tests.jobs.celery_site", "worker", "-l", "WARNING"

    def start(*arguments: str, **environment: str) -> Any:
        before = "" if "gevent" in arguments else first  # which patches what must not be imported yet
        return program(code, *options, *(arguments or ("-c", "3")), first=before, **environment)

    return CeleryQueue(celery_site, start)


@pytest.fixture
def huey_queue(program: Start) -> Iterator[HueyQueue]:
    require_package("huey")
    from tests.jobs import huey_site

    huey_site.SEEN.clear()
    code, first = "huey.bin.huey_consumer.consumer_main()", "import huey.bin.huey_consumer, tests.jobs.huey_site"
    options = "tests.jobs.huey_site.huey", "--quiet", "--no-periodic"
    every = ("-w", "2", "-k", "process")
    yield HueyQueue(huey_site, lambda *arguments: program(code, *options, *(arguments or every), first=first))
    huey_site.huey.immediate = False


@pytest.fixture
def rq_queue(program: Start, monkeypatch: pytest.MonkeyPatch) -> RqQueue:
    require_package("rq")
    from tests.jobs import rq_site

    monkeypatch.setattr(rq_site, "queue", rq_site.queue)  # a test may put another one there
    options = "worker", "-u", url(1), "--logging_level", "WARNING"
    first = "import rq.cli, tests.jobs.rq_site"
    return RqQueue(rq_site, lambda *arguments: program("rq.cli.main()", *options, *arguments, first=first))


@pytest.fixture
def dramatiq_queue(program: Start, monkeypatch: pytest.MonkeyPatch) -> DramatiqQueue:
    require_package("dramatiq")
    from tests.jobs import dramatiq_site

    def start(**options: object) -> Any:
        """It and the workers that are started later have these options in their environment."""
        for name, value in options.items():
            monkeypatch.setenv(name, str(value))
        code = "import sys; from dramatiq.cli import main; sys.exit(main())"
        return program(code, "tests.jobs.dramatiq_site", "--processes=1", "--threads=3")

    return DramatiqQueue(dramatiq_site, start)


@pytest.fixture
def django_tasks_site(settings: Any) -> Any:
    """Its tasks run at once."""
    if VERSION < (6,):
        require_package("django_tasks")
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_tasks"]
    from tests.jobs import django_tasks_site as site

    settings.TASKS = {"default": {"BACKEND": site.IMMEDIATE}}
    return site


@pytest.fixture
def django_tasks_queue(
    django_tasks_site: Any, settings: Any, tmp_path: Path, django_db_blocker: Any, start: Callable[..., Worker]
) -> Iterator[DjangoTasksQueue]:
    require_package("django_tasks_db")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_tasks_db"]
    from django_tasks_db.models import DBTaskResult

    settings.TASKS = {"default": {"BACKEND": django_tasks_site.DATABASE}}
    code = """
from django.core.management import call_command
call_command("db_worker", "--no-startup-delay", "--interval=0.02")
"""
    with django_db_blocker.unblock(), one_database("default", sqlite_file(tmp_path)):
        with connections["default"].schema_editor() as editor:
            editor.create_model(DBTaskResult)
        first = f"""
import tests.settings as s
s.INSTALLED_APPS += ["django_tasks_db"]
s.TASKS = {settings.TASKS!r}
s.DATABASES["default"] = {connections.settings["default"]!r}
"""
        queue = DjangoTasksQueue(django_tasks_site, lambda: start(code, first=first))
        queue.rows, queue.settings = DBTaskResult.objects, settings
        yield queue
    if admin.site.is_registered(DBTaskResult):  # other tests have no such app
        admin.site.unregister(DBTaskResult)
