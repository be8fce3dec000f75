"""What jobs under locks do whatever their queue: with the queues' own workers, from the call to the end of the job."""

from collections.abc import Callable
from typing import Any

import pytest

from django_redislock import Lock, LockNotAcquired
from tests.helpers.actors import Other, until
from tests.helpers.jobs import agenerator, coroutine, generator, held, hiding, lease_of, let_pass, runs
from tests.helpers.state import known
from tests.jobs.queues import LONG, Queue

pytestmark = [
    pytest.mark.filterwarnings("ignore:Call to deprecated setex"),  # by Celery
    pytest.mark.filterwarnings("ignore:Task name 'report'"),  # shared tasks of other tests
]

QUEUES = ["celery", "huey", "rq", "dramatiq", "django_tasks"]


@pytest.fixture(params=QUEUES)
def queue(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_queue")


def all_but(name: str) -> Any:
    return pytest.mark.parametrize("queue", [one for one in QUEUES if one != name], indirect=True)


def test_of_equal_calls_one_is_queued_and_the_others_get_its_result(queue: Queue) -> None:
    first = queue.send("report", 7, wait="here")
    assert [queue.id(queue.send("report", 7)) for _ in range(3)] == [queue.id(first)] * 3
    other = queue.send("report", 8)
    assert queue.id(other) != queue.id(first)
    assert sorted(held()) == ["report:7", "report:8"]
    queue.start()
    until(lambda: "report 7" in runs(), within=LONG)
    again = queue.send("report", 7)  # it runs
    assert queue.id(again) == queue.id(first)
    assert known("report:7").owner.endswith(f"report[{queue.id(first)}]")
    let_pass("here")
    assert [queue.result(job) for job in (again, first, other)] == ["report 7", "report 7", "report 8"]
    until(lambda: held() == [])
    last = queue.send("report", 7)
    assert queue.id(last) != queue.id(first)
    assert queue.result(last) == "report 7"
    assert sorted(runs()) == ["report 7", "report 7", "report 8"]


def test_who_finds_a_lock_that_no_job_has_gets_none_or_an_error(queue: Queue) -> None:
    with Lock("report:7"):
        assert queue.send("report", 7) is None
        with pytest.raises(LockNotAcquired, match=r": this thread or task holds it already\.$"):
            queue.send("strict", 7)
    queue.work(scheduled=True)
    assert (runs(), held()) == ([], [])


def test_a_job_that_cannot_be_sent_leaves_no_lock(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"missing (1|a) required .*argument: 'year'"):
        queue.send("report")
    if not queue.can_pickle:
        with pytest.raises(Exception, match=r"serializable|Unsupported type"):
            queue.send("report", 7, wait={1})
    monkeypatch.setattr(queue.way, lambda *args, **options: 1 / 0)
    for name in ("report", "patient"):
        with pytest.raises(ZeroDivisionError):
            queue.send(name, 7)
        assert held() == []
    with Lock("report:7") as lock:
        with pytest.raises(ZeroDivisionError):
            queue.send("patient", 7)  # which comes again in the worker, and does not have the lock
        lock.check()


@pytest.mark.parametrize("at", [False, True], ids=["after a time", "at a time"])
def test_a_lock_waits_as_long_as_its_job(at: bool, queue: Queue) -> None:
    job = queue.send_in(7200, "report", 7, at=at)
    assert 10_000 < lease_of("report:7") <= 7200 + 3600
    assert queue.id(queue.send("report", 7)) == queue.id(job)
    queue.work()
    assert (runs(), held()) == ([], ["report:7"])
    queue.work(scheduled=True)
    assert (queue.outcome(job), held()) == ("report 7", [])


def test_busy_may_come_again_later(queue: Queue) -> None:
    with Lock("report:7"):
        job = queue.send("patient", 7)
        queue.work()
        assert runs() == []
    queue.work(scheduled=True)
    assert (runs(), held()) == (["patient 7"], [])  # of its own retries, none is used up
    assert queue.outcome(job) == ("patient 7" if queue.keeps_ids else None)


@pytest.mark.parametrize("fails", [0, 1], ids=["ends well", "fails"])
def test_busy_may_be_merged_so_that_no_change_is_lost(fails: int, queue: Queue, other: Callable[[], Other]) -> None:
    first = queue.send("sync", 7, wait="here", fails=fails)
    assert queue.id(queue.send("sync", 7)) == queue.id(first)  # it has not begun: it will see whatever changed
    working = other().start(queue.work)
    until(lambda: runs() == ["sync 7"])
    for _ in range(3):
        assert queue.id(queue.send("sync", 7)) == queue.id(first)
    let_pass("here")
    working.result(LONG)
    queue.work(scheduled=True)
    assert (runs(), held()) == (["sync 7"] * 2, [])


def test_a_job_may_lock_when_it_starts(queue: Queue) -> None:
    with Lock("page:7"):
        skipped, failed, again = (queue.send(name, 7) for name in ("page", "impatient", "later"))
        queue.work()
        assert (runs(), queue.outcome(skipped), queue.outcome(failed)) == ([], None, "LockNotAcquired")
    assert held() == []
    queue.work(scheduled=True)
    assert (runs(), held()) == (["later 7"], [])
    assert queue.outcome(again) == ("later 7" if queue.keeps_ids else None)
    assert queue.id(queue.send("page", 7)) != queue.id(skipped)
    queue.work()
    assert (runs(), held()) == (["later 7", "page 7"], [])


@all_but("django_tasks")
def test_retries_keep_the_lock_and_after_the_last_one_it_is_free(queue: Queue) -> None:
    job = queue.send("stubborn", 7, fails=9)
    for number in range(3):
        assert queue.id(queue.send("report", 7)) == queue.id(job)
        assert not number or lease_of("report:7") > 4000  # it stays for the time until the retry, too
        queue.work(scheduled=True)
    assert (queue.outcome(job), held()) == ("Trouble", [])
    assert runs() == ["stubborn 7", "stubborn 7 after 1", "stubborn 7 after 2"]


def test_a_call_has_the_lock_too_also_inside_a_job(queue: Queue) -> None:
    assert queue.call("report", 7) == "report 7"
    with Lock("report:7"), pytest.raises(LockNotAcquired):
        queue.call("report", 7)
    job = queue.send("outer", 1)
    queue.work()
    assert (queue.outcome(job), held()) == ([["outer:0", "outer:1"]] * 2 + ["patient 8"], [])


@all_but("dramatiq")
def test_an_immediate_job_has_the_lock(queue: Queue) -> None:
    queue.immediate()
    assert queue.outcome(queue.send("report", 7)) == "report 7"
    assert queue.outcome(queue.send("report", 8, fails=1)) == "Trouble"
    assert held() == []
    with Lock("report:7"):
        skipped = queue.send("report", 7)
        assert (queue.outcome(skipped), skipped is None) == (None, queue.locks_before_immediate)
        assert queue.outcome(queue.send("patient", 7)) == "LockNotAcquired"  # nothing runs later here
    assert (runs(), held()) == (["report 7", "report 8"], [])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, TypeError, "no lock|not None"),
        ({"lock": ["a", "b"]}, TypeError, "one name"),
        ({"lock": "a:{wrong}"}, ValueError, "'wrong'. Available values: year"),
        ({"lock": "a", "on_lost": "cancel"}, TypeError, "was given on_lost='cancel', .* sync code"),
        ({"lock": "a", "lock_form": "enqueue"}, (TypeError, ValueError), "lock_form"),
        ({"lock": "a", "lock_from": "end"}, ValueError, "'start', 'enqueue'"),
        ({"lock": "a", "busy": "wait"}, ValueError, "'skip', 'retry', 'raise', 'merge'"),
        ({"lock": "a", "limit": 2, "lock_from": "enqueue"}, ValueError, "permit"),
        ({"lock": "a", "busy": "merge", "at_least": 3}, ValueError, "at_least"),
        ({"lock": "a", "adopt": True}, ValueError, "adopt"),
        ({"lock": "a", "queued_ttl": 0}, ValueError, "queued_ttl"),
        ({"lock": "a", "ttl": "soon"}, TypeError, "ttl"),
    ],
)
def test_wrong_options_are_an_error_where_the_job_is_declared(
    options: dict[str, Any], error: Any, words: str, queue: Queue
) -> None:
    def job(year: int) -> None: ...

    with pytest.raises(error, match=words):
        queue.declare(job, **options)


@pytest.mark.parametrize("body", [coroutine, generator, agenerator])
def test_what_runs_when_the_lock_is_free_again_is_no_job(body: Callable[..., Any], queue: Queue) -> None:
    if body is not coroutine or not queue.takes_coroutines:
        why = r"asyncio\.run\(\)" if body is coroutine else "when the lock is free again"
        with pytest.raises(TypeError, match=f" cannot lock <function {body.__name__} .*{why}"):
            queue.declare(body, lock="report")
    hidden = queue.declare(hiding(body), lock="report")
    with pytest.raises(TypeError, match="cannot lock"):
        hidden(7)
    assert (runs(), held()) == ([], [])
