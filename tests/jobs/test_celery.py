"""Celery tasks under locks, with real workers: from the call to the end of the job."""

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, NamedTuple

import pytest
import redis
from asgiref.sync import sync_to_async
from billiard.exceptions import WorkerLostError  # type: ignore[import-untyped]
from celery import signals  # type: ignore[import-untyped]
from celery.app.task import Context, Task  # type: ignore[import-untyped]
from celery.app.trace import build_tracer  # type: ignore[import-untyped]
from celery.exceptions import Ignore, Reject, Retry  # type: ignore[import-untyped]
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from django_redislock import Lock, LockNotAcquired, LockUnavailable, Semaphore
from django_redislock.jobs.celery import HEADER
from redisserver import RedisServer
from tests.helpers.actors import until
from tests.helpers.brokers import rabbitmq
from tests.helpers.jobs import held, lease_of, let_pass, note, runs
from tests.helpers.proxy import Proxy
from tests.jobs.queues import CeleryQueue, Start

pytestmark = [
    pytest.mark.filterwarnings("ignore:Call to deprecated setex"),  # by Celery
    pytest.mark.filterwarnings("ignore:Task name 'report'"),  # shared tasks of other tests
]


@pytest.fixture
def adapter(celery_queue: CeleryQueue) -> CeleryQueue:
    return celery_queue


@pytest.mark.complete
def test_retries_keep_the_lock_for_their_countdowns(site: Any, worker: Start) -> None:
    job, late = site.mail.delay(7, 10), site.mail.delay(8, 1, countdown=3000)
    worker()
    until(lambda: "mail 2" in runs(), within=60)
    assert site.mail.delay(7, 0).id == job.id
    assert job.get(timeout=60) == "sent"
    until(lambda: late.state == "RETRY" and held() == ["mail:8"], within=60)
    assert lease_of("mail:8") > 6000
    assert sorted(runs()) == sorted(["mail 0"] + [f"mail {number}" for number in range(11)])


@pytest.mark.complete
@pytest.mark.parametrize("how", ["failed", "rejected", "killed"])
def test_a_job_that_fails_gives_its_lock_back(how: str, site: Any, worker: Start) -> None:
    site.broken.delay(how)
    assert held() == [f"broken:{how}"]
    worker()
    until(lambda: runs() == [f"broken {how}"] and held() == [], within=60)


@pytest.mark.complete
@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_job_that_never_runs_gives_its_lock_back(how: str, site: Any, worker: Start) -> None:
    worker("-c", "1")
    blocked = site.page.delay(7, wait="here")
    until(lambda: runs() == ["page 7"], within=60)
    past = {"expires": datetime.now(timezone.utc) - timedelta(seconds=1)} if how == "expired" else {}
    job = site.report.apply_async((2024,), **past)
    if how == "revoked":  # of an expired one, the worker may have heard already
        assert "report:2024" in held()
        site.app.control.revoke(job.id, reply=True, timeout=30, limit=1)
    let_pass("here")
    assert blocked.get(timeout=60) == "page 7"
    until(lambda: held() == [], within=60)
    assert runs() == ["page 7"]


@pytest.mark.complete
@pytest.mark.parametrize("acks_late", ["0", "1"])
def test_a_job_that_is_terminated_is_free_after_its_ttl_and_one_that_runs_on_keeps_its_lock(
    acks_late: str, site: Any, worker: Start
) -> None:
    job = site.short.delay("never")
    worker("-c", "1", TEST_ACKS_LATE=acks_late)
    until(lambda: runs() == ["short"], within=60)
    job.revoke()  # it runs already, so that nothing ends
    again = site.short.delay("never")
    assert again.id == job.id
    job.revoke(terminate=True)
    until(lambda: held() == [], within=60)
    site.short.apply_async(("never",), time_limit=1)
    until(lambda: len(runs()) == 2, within=60)
    until(lambda: held() == [], within=60)


def test_no_lock_is_kept_for_longer_than_its_job_may_wait(site: Any) -> None:
    site.report.apply_async((3,), expires=50)
    assert lease_of("report:3") == pytest.approx(50, abs=30)


class Color(str, Enum):
    RED = "red"


def test_the_name_is_made_of_what_the_worker_gets(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = site.paint.delay(Color.RED)
    assert held() == ["paint:red"]
    assert deliver(site, site.paint, "red", id=job.id) == "SUCCESS"
    assert held() == []
    # as with pydantic=True
    monkeypatch.setattr(site.paint, "_dump_pydantic_arguments", lambda args, kwargs: (["blue"], kwargs))
    site.paint.delay(object())
    assert held() == ["paint:blue"]


def test_a_job_with_an_id_that_cannot_be_sent_takes_no_lock_from_others(site: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(site.app, "send_task", lambda *args, **options: 1 / 0)
    with Lock("report:2025"), pytest.raises(ZeroDivisionError):
        site.report.apply_async((2025,), task_id=ID)
    assert held() == []


async def test_a_call_that_would_block_an_event_loop_is_refused(site: Any) -> None:
    with pytest.raises(SynchronousOnlyOperation):
        site.report.delay(2024)
    job = await sync_to_async(site.report.delay)(2024)
    assert await sync_to_async(held)() == ["report:2024"]
    assert job.id


@pytest.mark.django_db(transaction=True)
def test_a_job_that_waits_for_commit_has_no_lock_before_and_after_a_rollback_none_at_all(site: Any) -> None:
    with transaction.atomic():
        site.report.delay_on_commit(2024)
        assert held() == []
    assert held() == ["report:2024"]
    with transaction.atomic():
        site.report.delay_on_commit(2025)
        transaction.set_rollback(True)
    assert held() == ["report:2024"]


@pytest.mark.complete
def test_chains_groups_and_chords_go_on_past_a_job_that_is_skipped(site: Any, worker: Start) -> None:
    first = site.report.delay(1, wait="here")
    worker()
    until(lambda: len(runs()) == 1, within=60)
    together = site.chord([site.report.s(1), site.report.s(2), site.report.s(3)])(site.collect.s())
    assert together.get(timeout=60) == ["report 2", "report 3"]
    chained = site.chain(site.page.si(1), site.report.si(4), site.page.si(2))()
    assert chained.get(timeout=60) == "page 2"
    assert site.group(site.report.s(1), site.report.s(5))().get(timeout=60) == [None, "report 5"]
    let_pass("here")
    assert first.get(timeout=60) == "report 1"
    until(lambda: held() == [])


@pytest.mark.complete
def test_a_job_is_delivered_again_while_it_runs_and_runs_once(site: Any, worker: Start) -> None:
    """Redis, as a broker, delivers again what nobody has acknowledged for longer than the visibility timeout."""
    job = site.report.delay(2024, wait="here")
    for _ in range(2):
        worker("-c", "1", TEST_VISIBILITY="1", TEST_ACKS_LATE="1", TEST_PREFETCH="1")
    until(lambda: job.state == "RETRY", within=90)  # the copy has met the job itself
    let_pass("here")
    assert job.get(timeout=60) == "report 2024"
    assert runs() == ["report 2024"]


@pytest.mark.complete
@pytest.mark.parametrize("limit", ["soft_time_limit", "time_limit"])
def test_a_job_that_takes_too_long_gives_its_lock_back(limit: str, site: Any, worker: Start) -> None:
    """At once where it is told so, and after its TTL where its process is killed."""
    task, arguments = (site.report, (2024, "never")) if limit == "soft_time_limit" else (site.short, ("never",))
    job = task.apply_async(arguments, **{limit: 5})  # for the worker has to begin by then
    worker("-c", "1")
    until(lambda: job.state == "FAILURE", within=60)
    assert len(runs()) == 1
    until(lambda: held() == [], within=15)  # the TTL of the first is 30 s


@pytest.mark.complete
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL], ids=["warm", "cold", "killed"])
def test_a_worker_that_ends_finishes_its_job_or_leaves_it_with_its_lock(how: Any, site: Any, worker: Start) -> None:
    job = site.report.delay(2024, wait="here")
    first = worker("-c", "1", TEST_VISIBILITY="1", TEST_ACKS_LATE="1")
    until(lambda: len(runs()) == 1, within=60)
    if how == signal.SIGKILL:
        first.kill()  # with its processes
    else:
        first.process.send_signal(how)
    if how != signal.SIGTERM:
        assert first.process.wait(60) is not None
        assert site.report.delay(2024).id == job.id
        worker("-c", "1", TEST_VISIBILITY="1", TEST_ACKS_LATE="1")
        until(lambda: len(runs()) == 2, within=60)
    let_pass("here")
    assert job.get(timeout=60) == "report 2024"
    until(lambda: held() == [])


@pytest.mark.complete
def test_rabbitmq_delivers_again_at_once_what_a_killed_worker_had(site: Any, worker: Start) -> None:
    with rabbitmq() as broker, site.app.connection_for_write(broker) as connection:
        first = worker("-c", "1", TEST_BROKER=broker, TEST_ACKS_LATE="1")
        job = site.report.apply_async((2024,), {"wait": "here"}, connection=connection)
        until(lambda: len(runs()) == 1, within=60)
        worker("-c", "1", TEST_BROKER=broker, TEST_ACKS_LATE="1")
        first.kill()
        assert site.report.apply_async((2024,), connection=connection).id == job.id
        until(lambda: len(runs()) == 2, within=60)  # with the lock of the dead one
        let_pass("here")
        assert job.get(timeout=60) == "report 2024"
        until(lambda: held() == [])


@pytest.mark.complete
@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_other_pools_than_processes(pool: str, site: Any, worker: Start) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent")
    job = site.report.delay(2024, wait="here")
    worker("-P", pool, "-c", "3")
    mail = site.mail.delay(7, 2)
    until(lambda: "report 2024" in runs(), within=60)
    assert site.report.delay(2024).id == job.id
    let_pass("here")
    assert (job.get(timeout=60), mail.get(timeout=60)) == ("report 2024", "sent")
    until(lambda: held() == [])


class Order(NamedTuple):
    pk: int


def ship(order: Any) -> list[str]:
    return held()


def test_such_a_call_and_an_equal_job_have_one_lock(site: Any) -> None:
    site.report.delay((1, 2))  # of which JSON makes a list
    assert held() == ["report:[1,%202]"]
    with pytest.raises(LockNotAcquired):
        site.report((1, 2))
    assert site.report.apply(((1, 2),)).result is None
    year = 1 + 2j
    assert site.report(year) == "report (1+2j)"  # no JSON, so no equal job
    shipping, order = site.queued(lock="order:{order.pk}")(ship), Order(7)  # JSON makes a list of it, without a pk
    assert shipping(order) == shipping.apply((order,)).result == ["order:7", "report:[1,%202]"]


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_no_call_has_a_lock_that_no_job_could_have(serializer: str, site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pydantic=True, Celery sends a dict in place of a model; by pickle, the model itself."""
    shipping = site.queued(lock="order:{order.pk}", serializer=serializer, name=f"ship_{serializer}")(ship)
    order = Order(7)
    monkeypatch.setattr(shipping, "_dump_pydantic_arguments", lambda args, kwargs: ([order._asdict()], kwargs))
    if serializer == "pickle":
        assert shipping(order) == shipping.apply((order,)).result == ["order:7"]
        shipping.delay(order)
        assert held() == ["order:7"]
        return
    for call in shipping, shipping.delay, lambda order: shipping.apply((order,), throw=True):
        with pytest.raises(ValueError, match="'dict' object has no attribute 'pk'"):
            call(order)


def test_the_retries_of_an_eager_task_have_the_lock_too(site: Any, adapter: CeleryQueue) -> None:
    adapter.immediate()
    assert site.mail.delay(7, 3).get() == "sent"
    assert (runs(), held()) == ([f"mail {number}" for number in range(4)], [])


def deliver(site: Any, task: Any, *args: Any, id: str, headers: Any = None, **facts: Any) -> Any:
    """Run ``task`` in this thread, as a worker does that has got its message; return the state in which it ends."""
    info = {"exchange": "", "routing_key": "celery", "redelivered": False}
    request = {"id": id, "args": args, "kwargs": {}, "delivery_info": info, "headers": headers, "retries": 0, **facts}
    trace = build_tracer(task.name, task, app=site.app)
    result = trace(id, args, {}, request=request)
    return result.info.state if result.info else "SUCCESS"


def sent(server: RedisServer) -> list[str]:
    """The ids of the messages at the broker."""
    with redis.Redis(port=server.port, db=1) as client:
        return [json.loads(line)["headers"]["id"] for line in client.lrange("celery", 0, -1)]


ID = "7d0f2c5e-7a3a-4f6e-9c62-0a4f9a1d7b11"


def test_a_delivery_that_meets_a_busy_lock_ends_as_it_was_said(site: Any) -> None:
    with Semaphore("export", limit=2), Semaphore("export", limit=2):
        assert deliver(site, site.export, "never", id=ID) == "FAILURE"
    with Lock("report:7"):
        assert deliver(site, site.report, 7, id=ID) == "SUCCESS"  # skipped
        assert deliver(site, site.strict, 7, id=ID) == "FAILURE"
        assert deliver(site, site.patient, 7, id=ID) == "RETRY"
    assert runs() == []


def test_what_others_wait_for_is_sent_and_raises_where_it_runs(site: Any, server: RedisServer) -> None:
    step = site.strict.si(7)
    step.freeze(f"{ID}2")
    with Lock("report:7"):
        assert deliver(site, site.page, 1, id=ID, chain=[step]) == "SUCCESS"  # not the error of the step after it
        assert deliver(site, site.page, 2, id=f"{ID}1", callbacks=[site.strict.si(7)]) == "SUCCESS"  # of link=, either
        member = site.strict.apply_async((7,), task_id=f"{ID}3")  # as a group does it
        assert sent(server)[::2] == [member.id, step.id]
        assert deliver(site, site.strict, 7, id=step.id, headers={HEADER: False}) == "FAILURE"
        assert isinstance(site.app.backend.get_result(step.id), LockNotAcquired)


def test_the_next_task_of_a_chain_is_sent_while_redis_is_away(
    site: Any, network: Proxy, retry_for: Callable[[float], None], server: RedisServer
) -> None:
    """The task before it, which has ended, would fail else, and the chain would end. Whoever calls anew is told."""
    retry_for(0.1)
    step = site.report.si(7)
    step.freeze(f"{ID}2")
    network.cut()
    assert deliver(site, site.collect, [1], id=ID, chain=[step]) == "SUCCESS"
    with pytest.raises(LockUnavailable):
        site.report.apply_async((8,), task_id=f"{ID}3")
    network.mend()
    assert (sent(server), held()) == ([step.id], [])
    assert deliver(site, site.report, 7, id=step.id, headers={HEADER: False}) == "SUCCESS"


def test_it_comes_again_before_a_broker_would_deliver_it_twice(
    site: Any, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would send another one, which would be delivered twice in its turn, and so on."""
    monkeypatch.setitem(site.app.conf.broker_transport_options, "visibility_timeout", 1)
    before = datetime.now(timezone.utc)
    with Lock("report:7"):
        assert deliver(site, site.patient, 7, id=ID) == "RETRY"
    with redis.Redis(port=server.port, db=1) as client:
        eta = datetime.fromisoformat(json.loads(client.lindex("celery", 0))["headers"]["eta"])
    assert eta <= datetime.now(timezone.utc) + timedelta(seconds=0.5)
    assert eta >= before + timedelta(seconds=0.5)


@pytest.mark.parametrize(
    ("error", "state", "left"),
    [
        (ZeroDivisionError(), "FAILURE", []),
        (Ignore(), "IGNORED", []),
        (Reject("no"), "REJECTED", []),
        (Retry(), "RETRY", ["report:7"]),  # of which a message has been sent
    ],
)
def test_a_task_that_ends_before_its_body_gives_its_lock_back(
    error: Exception, state: str, left: list[str], site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*facts: Any) -> None:
        raise error

    job = site.report.delay(7)
    for task in (site.report, site.page):
        monkeypatch.setattr(task.__class__, "before_start", refuse, raising=False)
    assert deliver(site, site.report, 7, id=job.id, headers={HEADER: True}) == state
    assert (runs(), held()) == ([], left)
    with Lock("page:7") as lock:  # it would have locked in its body
        assert deliver(site, site.page, 7, id=ID) == state
        lock.check()


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
def test_a_task_whose_start_cannot_be_noted_gives_its_lock_back(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``task_track_started``, where the result backend is away."""
    job, store = site.report.delay(7), site.app.backend.store_result

    def store_result(id: str, result: Any, state: str, **facts: Any) -> Any:
        return 1 / 0 if state == "STARTED" else store(id, result, state, **facts)

    monkeypatch.setattr(site.app.backend, "store_result", store_result)
    monkeypatch.setattr(site.report, "track_started", True)
    assert deliver(site, site.report, 7, id=job.id, headers={HEADER: True}) == "FAILURE"
    assert (runs(), held()) == ([], [])


def test_a_copy_that_comes_after_the_end_leaves_the_result(site: Any) -> None:
    assert [deliver(site, site.report, 7, id=ID) for _ in range(2)] == ["SUCCESS", "IGNORED"]
    assert site.app.AsyncResult(ID).get(timeout=10) == "report 7"


def test_a_retry_whose_message_cannot_be_sent_leaves_no_lock(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.app, "send_task", lambda *args, **options: 1 / 0)
    assert deliver(site, site.mail, 7, 1, id=ID) == "REJECTED"  # as Celery calls it
    assert held() == []


@pytest.mark.parametrize("acks_late", [False, True])
@pytest.mark.parametrize(
    ("error", "comes_back"), [(Reject("again", requeue=True), True), (SystemExit(), True), (Reject("no"), False)]
)
def test_a_lock_waits_for_a_message_that_comes_back(
    error: BaseException, comes_back: bool, acks_late: bool, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was acknowledged early is gone."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(site.report, "run", fail)
    monkeypatch.setattr(site.report, "acks_late", acks_late)
    with suppress(SystemExit):
        deliver(site, site.report, 7, id=ID)
    assert held() == (["report:7"] if comes_back and acks_late else [])


def test_what_a_worker_says_of_other_tasks_is_nothing_to_us(site: Any) -> None:
    request = Context(id=ID, args=[[1]], kwargs={})
    signals.task_revoked.send(sender=site.collect, request=request, terminated=False, signum=None, expired=False)
    site.report.apply_async((7,), task_id=ID)
    facts: dict[str, Any] = {"args": [7], "kwargs": {}, "traceback": None, "einfo": None}
    signals.task_failure.send(sender=site.report, task_id=ID, exception=ZeroDivisionError(), **facts)
    assert held() == ["report:7"]
    signals.task_failure.send(sender=site.report, task_id=ID, exception=WorkerLostError(), **facts)
    assert held() == []


def test_a_task_replaces_itself_and_another_one(site: Any, server: RedisServer) -> None:
    assert deliver(site, site.replaced, "same", id=ID) == "IGNORED"
    assert held() == ["replaced:same"]  # which waits with the new message
    assert deliver(site, site.replaced, "report", id=f"{ID}2") == "IGNORED"
    assert sorted(held()) == ["replaced:same", "report:7"]
    assert sent(server) == [f"{ID}2", ID]


@pytest.mark.parametrize(("how", "state"), [("retried", "RETRY"), ("replaced", "IGNORED")])
def test_a_job_that_goes_on_under_another_name_gives_its_lock_back(
    how: str, state: str, site: Any, server: Any
) -> None:
    job = site.count.delay(1, how)
    assert deliver(site, site.count, 1, how, id=job.id, headers={HEADER: True}) == state
    assert (held(), len(sent(server))) == (["count:2"], 2)


def test_a_retry_of_a_job_that_expires_has_the_time_that_is_left(site: Any, server: RedisServer) -> None:
    later = (datetime.now(timezone.utc) + timedelta(seconds=500)).isoformat()
    assert deliver(site, site.mail, 7, 1, id=ID, expires=later) == "RETRY"
    assert 400 < lease_of("mail:7") < 501


@pytest.mark.parametrize("how", ["ran", "revoked"])
def test_what_was_merged_goes_to_the_queue_of_the_other_with_its_priority_and_limits(
    how: str, site: Any, server: RedisServer
) -> None:
    facts: dict[str, Any] = {"delivery_info": {"exchange": "", "routing_key": "slow", "priority": 3}}
    facts["timelimit"] = [60, 30]
    if how == "ran":
        assert deliver(site, site.again, id=ID, **facts) == "SUCCESS"
    else:
        job = site.again.apply_async(queue="fast")
        site.again.apply_async(queue="fast")
        request = Context(id=job.id, args=[], kwargs={}, **facts)
        signals.task_revoked.send(sender=site.again, request=request, terminated=False, signum=None, expired=True)
    assert held() == ["again"]
    with redis.Redis(port=server.port, db=1) as client:
        (message,) = client.lrange("slow\x06\x163", 0, -1)
    assert json.loads(message)["headers"]["timelimit"] == [60, 30]


def test_an_eager_retry_that_is_not_made_leaves_no_lock(site: Any) -> None:
    site.app.conf.update(task_always_eager=True, task_eager_propagates=True)
    try:
        with pytest.raises(Retry):
            site.mail.delay(7, 1)
    finally:
        site.app.conf.update(task_always_eager=False, task_eager_propagates=False)
    assert held() == []


def test_a_class_may_be_a_task_and_its_subclass_has_a_lock_of_its_own_and_its_base_needs_none(site: Any) -> None:
    site.books.delay(2024)
    site.archive.delay(2024)
    assert sorted(held()) == ["archive", "books:2024"]
    with pytest.raises(LockNotAcquired):
        site.archive.delay(2025)


class Tenant(Task):
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note("tenant", held())
        return self.run(*args, **kwargs)


def test_the_call_of_another_base_class_runs_under_the_lock(site: Any) -> None:
    class Base(site.LockedTask, Tenant):
        abstract = True

    @site.app.task(base=Base, lock="tenant:{pk}", name=f"{__name__}.of_tenant")
    def of_tenant(pk: int) -> int:
        note("runs", held())
        return pk

    expected = ["tenant ['tenant:7']", "runs ['tenant:7']"]
    with Lock("tenant:7"):
        assert deliver(site, of_tenant, 7, id=ID) == "SUCCESS"  # skipped
    assert runs() == []
    assert deliver(site, of_tenant, 7, id=ID) == "SUCCESS"
    assert runs() == expected
    assert of_tenant(7) == of_tenant.apply((7,)).result == 7
    assert runs() == expected * 3


def test_another_base_class_may_run_the_coroutine_of_a_task_under_the_lock(site: Any) -> None:
    class Runs(Task):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return asyncio.run(self.run(*args, **kwargs))

    class Base(site.LockedTask, Runs):
        abstract = True

    @site.app.task(base=Base, lock="tenant:{pk}", name=f"{__name__}.of_coroutine")
    async def of_coroutine(pk: int) -> int:
        note("runs", await asyncio.to_thread(held))
        return pk

    assert deliver(site, of_coroutine, 7, id=ID) == "SUCCESS"
    assert of_coroutine(7) == 7
    assert runs() == ["runs ['tenant:7']"] * 2


def test_another_base_class_with_a_call_of_its_own_may_not_come_first(site: Any) -> None:
    with pytest.raises(TypeError, match="base Tenant, whose __call__ would run outside the lock: put LockedTask first"):

        class Base(Tenant, site.LockedTask):
            abstract = True
