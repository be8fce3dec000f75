"""RQ jobs under locks, with real workers: from the call to the end of the job."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_redislock import Lock
from tests.helpers.actors import until
from tests.helpers.jobs import held, lease_of, let_pass, note, require_package, runs, url
from tests.jobs.queues import RqQueue, Work


@pytest.fixture
def adapter(rq_queue: RqQueue) -> RqQueue:
    return rq_queue


@pytest.fixture
def queue(site: Any) -> Any:
    return site.queue


def status(job: Any) -> str:
    return str(job.get_status().value)


def test_one_more_run_has_what_the_one_that_ran_had(site: Any, queue: Any, work: Work, monkeypatch: Any) -> None:
    # asked for in the middle of the run
    monkeypatch.setattr("tests.jobs.examples.gate", lambda _: queue.enqueue(site.sync, 7) if len(runs()) == 1 else None)
    options = {"meta": {"a": 1}, "description": "syncs", "on_failure": site.Callback(site.has_failed, 5)}
    queue.enqueue(site.sync, 7, "here", retry=site.Retry(2, [7, 8]), **options)
    seen: list[Any] = []

    def noted(*facts: Any) -> None:
        note(*facts)
        seen.append(site.current())

    monkeypatch.setattr("tests.jobs.examples.note", noted)
    work()
    assert runs() == ["sync 7"] * 2
    first, second = seen
    assert first.id != second.id
    for name in ("args", "meta", "retries_left", "retry_intervals", "description", "failure_callback", "timeout"):
        assert getattr(first, name) == getattr(second, name)
    assert held() == []


def test_a_retry_may_be_sent_earlier_in_the_admin(site: Any, queue: Any, work: Work) -> None:
    job = queue.enqueue(site.report, 2024, fails=1, retry=site.Retry(2, 600))
    work()
    for _ in range(2):  # the second time it is in the queue already
        assert queue.enqueue_job(queue.fetch_job(job.id)).id == job.id
        assert (len(queue), held()) == (1, ["report:2024"])
    queue.scheduled_job_registry.remove(job.id)
    work()
    assert (status(job), runs(), held()) == ("finished", ["report 2024"] * 2, [])


@pytest.mark.parametrize("interval", [0, 600])
def test_a_job_that_returns_a_retry_keeps_the_lock(interval: int, site: Any, queue: Any, work: Work) -> None:
    job = queue.enqueue(site.polite, 2, interval)
    if interval:
        work()
        assert lease_of("polite") > 4000
        work(scheduled=True)
        assert held() == ["polite"]
    work(scheduled=True)
    assert (status(job), runs(), held()) == ("failed", ["polite True"] * 3, [])


def test_a_job_that_waits_for_its_time_may_be_sent_earlier(site: Any, queue: Any, work: Work) -> None:
    job = queue.enqueue_in(timedelta(seconds=100), site.report, 1)
    queue.enqueue_job(job)
    work()
    assert (status(job), held()) == ("finished", [])


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_job_that_never_runs_gives_its_lock_back(how: str, site: Any, queue: Any) -> None:
    job = site.report.delay(2024)
    getattr(queue.fetch_job(job.id), how)()
    assert held() == []
    assert site.report.delay(2024).id != job.id
    with Lock("page:7") as lock:  # a job that has none leaves those of others alone
        getattr(queue.enqueue(site.page, 7), how)()
        lock.check()
    first = queue.enqueue(site.sync, 7)
    assert queue.enqueue(site.sync, 7).id == first.id
    getattr(queue.fetch_job(first.id), how)()
    assert held() == ["report:2024", "report:7"]  # what was merged into it is run all the same
    assert queue.enqueue(site.sync, 7).id != first.id


@pytest.mark.parametrize("is_async", [True, False])
def test_the_lock_is_named_by_what_the_serializer_makes_of_the_arguments(
    is_async: bool, site: Any, queue: Any, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = type(queue)(connection=queue.connection, serializer="json", is_async=is_async)
    monkeypatch.setattr(site, "queue", queue)
    jobs = [queue.enqueue(site.report, (1, 2)) for _ in range(2)]  # JSON makes a list of a tuple
    work()
    assert (jobs[0].id == jobs[1].id, status(jobs[0]), held()) == (is_async, "finished", [])
    queue.enqueue(site.report, (1, 2)).cancel()
    assert held() == []


class OfAWorker:
    """What only a worker can load: it opens a file there, say."""

    def __str__(self) -> str:
        return "7"

    def __setstate__(self, state: Any) -> None:
        raise FileNotFoundError

    def __getstate__(self) -> Any:
        return 7


def test_who_queues_a_job_need_not_be_able_to_load_its_arguments(site: Any, queue: Any) -> None:
    queue.enqueue(site.report, OfAWorker())
    assert held() == ["report:7"]


def test_where_the_lock_cannot_be_taken_before_it_is_when_the_job_starts(site: Any, queue: Any, work: Work) -> None:
    parent = queue.enqueue(site.plain)
    pipeline = queue.connection.pipeline()
    jobs = [
        queue.enqueue(site.report, 1, depends_on=parent),
        queue.enqueue(site.report, 2, pipeline=pipeline),
        queue.enqueue(site.Shop().open),
        site.Queue(connection=queue.connection).enqueue(site.report, 4),
        *queue.enqueue_many([queue.prepare_data(site.report, (5,))]),
        queue.enqueue(site.page, 6),
    ]
    pipeline.execute()
    missing = queue.enqueue("no.such.module")
    assert held() == []
    work()
    assert [job.return_value() for job in jobs] == ["report 1", "report 2", "open", "report 4", "report 5", "page 6"]
    assert (status(missing), held()) == ("failed", [])


@pytest.mark.complete
def test_a_job_whose_process_is_killed_begins_again_at_once_with_its_lock(site: Any, queue: Any, worker: Any) -> None:
    job = queue.enqueue(site.killed, "again", retry=site.Retry(1))
    worker()
    until(lambda: status(job) == "finished", within=60)
    assert (runs(), held()) == (["killed again"] * 2, [])
    job = queue.enqueue(site.killed, "once")
    until(lambda: status(job) == "failed", within=60)
    until(lambda: held() == [])  # its lock has ended


@pytest.mark.complete
def test_a_job_is_delivered_again_while_it_runs_and_runs_once(site: Any, queue: Any, worker: Any) -> None:
    """RQ takes it for abandoned, since its worker has shown no sign of life for long."""
    job = queue.enqueue(site.copied, "here", retry=site.Retry(2))
    worker()
    until(lambda: runs() == ["begins"], within=60)
    registry = queue.started_job_registry
    queue.connection.zadd(registry.key, dict.fromkeys(queue.connection.zrange(registry.key, 0, -1), 1))
    registry.cleanup()
    assert len(queue) == 1
    worker("--with-scheduler")
    until(lambda: status(job) == "scheduled", within=60)  # the copy has met the job itself
    let_pass("here")
    until(lambda: runs() == ["begins", "ends"] and held() == [], within=60)
    until(lambda: not queue.scheduled_job_registry.get_job_ids() and len(queue) == 0, within=60)
    until(lambda: status(job) == "finished", within=60)
    assert runs() == ["begins", "ends"]


def test_a_copy_that_comes_after_the_end_does_not_run_but_what_is_enqueued_again_does(
    site: Any, queue: Any, work: Work
) -> None:
    job = queue.enqueue(site.report, 2024, retry=site.Retry(2), repeat=site.Repeat(1))
    work()
    assert len(runs()) == 2  # the repetition is a run of its own
    queue.push_job_id(job.id)
    work()
    assert (len(runs()), queue.fetch_job(job.id).return_value()) == (2, "report 2024")  # and has the result
    queue.enqueue_job(queue.fetch_job(job.id))
    assert held() == ["report:2024"]
    work()
    assert (len(runs()), held()) == (3, [])
    queue.enqueue(site.report, 2024, job_id=job.id, retry=site.Retry(2))
    work()
    assert (len(runs()), held()) == (4, [])


def test_a_lock_may_stay_when_the_job_ends_soon(site: Any, queue: Any, work: Work) -> None:
    for result_ttl in (0, None):
        queue.enqueue(site.nightly, result_ttl=result_ttl)
        work()
    assert (runs(), held()) == (["nightly"], ["nightly"])


def test_a_coroutine_that_a_decorator_hides_does_not_run_without_the_lock(site: Any, queue: Any, work: Work) -> None:
    job = queue.enqueue(site.hidden)  # RQ would run what it returns
    work()
    assert "locked_job() cannot lock <function hidden" in job.latest_result().exc_string
    with pytest.raises(TypeError, match="run after the call has returned, when the lock is free again"):
        site.hidden()
    assert (status(job), runs(), held()) == ("failed", [], [])


def test_a_synchronous_queue_makes_no_retries(site: Any, queue: Any) -> None:
    now = type(queue)(connection=queue.connection, is_async=False)
    assert status(now.enqueue(site.report, 2024, fails=3, retry=site.Retry(2))) == "failed"
    assert isinstance(now.enqueue(site.polite, 2).return_value(), site.Retry)
    assert held() == []


@pytest.mark.django_db(transaction=True)
def test_with_django_rq_a_job_that_waits_for_commit_has_no_lock_before(site: Any, queue: Any, settings: Any) -> None:
    require_package("django_rq")
    settings.RQ_QUEUES = {"default": {"URL": url(1)}}
    settings.RQ = {
        "QUEUE_CLASS": "django_redislock.jobs.django_rq.LockedDjangoRQ",
        "JOB_CLASS": "django_redislock.jobs.rq.LockedJob",
    }
    from django_rq import enqueue, get_queue

    with transaction.atomic():
        assert enqueue(site.report, 2024) is None
        assert held() == []
    assert held() == ["report:2024"]
    job = enqueue(site.report, 2024)
    assert [job.id] == get_queue().job_ids
    job.cancel()
    assert held() == []
    with transaction.atomic():
        enqueue(site.report, 2025)
        transaction.set_rollback(True)
    assert held() == []


def never() -> None: ...


def test_the_decorator_has_parentheses(site: Any) -> None:
    with pytest.raises(TypeError, match=r"@locked_job\(\"order:"):
        site.locked_job(never)


def test_a_job_of_rq_is_refused_below_the_decorator(site: Any) -> None:
    with pytest.raises(TypeError, match="Put @locked_job below the task's decorator"):
        site.locked_job("a")(site.job(site.queue, site.queue.connection)(lambda: None))
