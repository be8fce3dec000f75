"""Huey tasks under locks, with real consumers: from the call to the end of the task."""

import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import transaction

from django_redislock import Lock, LockNotAcquired, LockUnavailable
from tests.helpers.actors import Other, until
from tests.helpers.jobs import Program, held, lease_of, let_pass, note, require_package, runs, url
from tests.helpers.proxy import Proxy

Work = Callable[..., None]

FIRST, CONSUMER = "import huey.bin.huey_consumer, tests.jobs.huey_site", "huey.bin.huey_consumer.consumer_main()"


@pytest.fixture
def site() -> Iterator[Any]:
    require_package("huey")
    from tests.jobs import huey_site

    huey_site.SEEN.clear()
    yield huey_site
    huey_site.huey.immediate = False


@pytest.fixture
def consumer(site: Any, program: Callable[..., Program]) -> Callable[..., Program]:
    options = "tests.jobs.huey_site.huey", "--quiet", "--no-periodic"
    return lambda *arguments: program(CONSUMER, *options, *(arguments or ("-w", "2")), first=FIRST)


@pytest.fixture
def work(site: Any) -> Work:
    """Run in this process what is due, as a consumer does; with ``scheduled`` what is not due as well."""

    def work(*, scheduled: bool = False) -> None:
        huey = site.huey
        now = datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(days=9 if scheduled else 0)
        for task in huey.read_schedule(now):
            huey.enqueue(task)
        while huey.pending_count():
            huey.execute(huey.dequeue(), now)

    return work


def state(site: Any) -> tuple[int, int]:
    return site.huey.pending_count(), site.huey.scheduled_count()


def test_of_equal_calls_one_is_queued_and_the_others_get_its_result(site: Any, consumer: Any) -> None:
    first = site.report(2024, wait="here")
    others = [site.report(2024) for _ in range(3)]
    assert [result.id for result in others] == [first.id] * 3
    other = site.report(2025)
    assert other.id != first.id
    assert held() == ["report:2024", "report:2025"]
    consumer("-w", "2", "-k", "process")
    assert other.get(blocking=True, timeout=60) == 2025
    until(lambda: "begins 2024" in runs(), within=60)
    assert site.report(2024).id == first.id  # it runs
    let_pass("here")
    assert others[0].get(blocking=True, timeout=60) == 2024
    until(lambda: held() == [])
    last = site.report(2024)
    assert last.id != first.id
    assert last.get(blocking=True, timeout=60) == 2024
    assert len(runs()) == 6


def test_a_lock_that_no_task_has_is_told_as_none(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lock("report:2024"):
        assert site.report(2024) is None
    assert state(site) == (0, 0)
    site.report(2024)
    monkeypatch.setattr(site.huey, "results", False)
    assert site.report(2024) is None


def test_busy_may_come_again_later(site: Any, work: Work) -> None:
    with Lock("report:2024"):
        result = site.patient(2024)
        work()
        assert state(site) == (0, 1)
    work(scheduled=True)
    assert (result.get(), runs(), held()) == ("patient", ["patient 2"], [])  # of its own retries, none is used up


def test_one_more_run_has_what_the_one_that_ran_had(site: Any, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    site.huey.signal("executing")(collect := lambda signal, task: seen.append(task))
    # asked for in the middle of the run
    monkeypatch.setattr(site, "gate", lambda wait: site.sync() if len(runs()) == 1 else None)
    site.huey.enqueue(site.sync.s("here", priority=3, timeout=100))
    work()
    site.huey.disconnect_signal(collect)
    assert runs() == ["sync"] * 2
    first, second = seen
    assert first.id != second.id
    for name in ("args", "kwargs", "priority", "timeout", "expires"):
        assert getattr(first, name) == getattr(second, name)
    assert held() == []


@pytest.mark.parametrize(
    ("how", "retries", "times"),
    [
        ("fails", 2, 3),
        ("cancels", 2, 3),
        ("asks", 0, 3),
        ("asks to be cancelled", 0, 3),
        ("is limited", 0, 3),
        ("gives up", 2, 1),
        ("", 2, 1),
    ],
)
@pytest.mark.parametrize("delay", [0, 600])
def test_the_lock_is_kept_as_long_as_the_task_comes_back(
    delay: int, how: str, retries: int, times: int, site: Any, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []

    def noted(*facts: Any) -> None:
        note(*facts)
        kept.append(lease_of("mail:7") > 0)

    monkeypatch.setattr(site, "note", noted)
    result = site.mail(7, how, retries=retries, retry_delay=delay)
    for _ in range(times):
        if held() == ["mail:7"]:
            assert site.mail(7, "").id == result.id
            assert not kept or not delay or lease_of("mail:7") > 4000  # it stays for the delay, too
        else:
            assert len(kept) == times
        work(scheduled=True)
    assert (runs(), kept, held()) == ([f"mail {how}"] * times, [True] * times, [])


def test_a_retry_may_be_for_a_given_time(site: Any, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_hour = site.RetryTask(eta=datetime.now() + timedelta(hours=2))
    monkeypatch.setitem(site.ASKS, "asks", in_an_hour)
    site.mail(7, "asks")
    work()
    assert lease_of("mail:7") == pytest.approx(3 * 3600, abs=100)


def test_a_lock_waits_as_long_as_its_task(site: Any, work: Work) -> None:
    tasks = [
        site.report.schedule((1,), delay=100),
        site.report.schedule((2,), eta=datetime.now() + timedelta(seconds=200)),
    ]
    assert [lease_of(f"report:{year}") for year in (1, 2)] == pytest.approx([3700, 3800], abs=50)
    work()
    assert [site.report(year).id for year in (1, 2)] == [task.id for task in tasks]
    assert state(site) == (0, 2)
    work(scheduled=True)
    assert ([task.get() for task in tasks], held()) == ([1, 2], [])


@pytest.mark.parametrize("how", ["revoked", "revoked by an equal call", "revoked by id", "expired", "cancelled"])
def test_a_task_that_never_runs_gives_its_lock_back(how: str, site: Any, work: Work) -> None:
    expires = datetime.now() - timedelta(seconds=9) if how == "expired" else None
    result = site.report.schedule((2024,), delay=0, expires=expires)
    assert held() == ["report:2024"]
    if how in ("revoked", "revoked by an equal call"):
        (result if how == "revoked" else site.report(2024)).revoke()
        assert held() == []
    if how == "revoked by id":
        site.huey.revoke_by_id(result.id)
    if how == "cancelled":

        def cancel(task: Any) -> None:
            raise site.CancelExecution

        site.huey.pre_execute()(cancel)
    work()
    site.huey.unregister_pre_execute("cancel")
    assert (runs(), held()) == ([], [])


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_what_was_merged_into_a_task_that_never_runs_is_run(how: str, site: Any, work: Work) -> None:
    first = site.sync.schedule(delay=0, expires=datetime.now() - timedelta(seconds=9) if how == "expired" else None)
    assert site.sync().id == first.id  # asks for a run that begins after this
    if how == "revoked":
        first.revoke()
    work()
    assert (runs(), held()) == (["sync"], [])


@pytest.mark.parametrize("delay", [0, 1])
def test_a_retry_survives_that_redis_is_away_when_it_is_due(
    delay: int, site: Any, work: Work, network: Proxy, retry_for: Any, monkeypatch: Any
) -> None:
    """That of the locks. Huey has taken it out of its schedule by then, while whoever calls anew is told."""
    retry_for(0.1)
    network.cut()
    with pytest.raises(LockUnavailable):
        site.mail(7, "fails")
    network.mend()
    site.mail(7, "fails", retries=1, retry_delay=delay)
    site.huey.signal("retrying")(cut := lambda signal, task: network.cut())
    enqueue = site.huey.storage.enqueue

    def mends(*args: Any) -> Any:
        network.mend()
        return enqueue(*args)

    monkeypatch.setattr(site.huey.storage, "enqueue", mends)

    def has_run_twice() -> bool:
        work()
        return len(runs()) == 2

    until(has_run_twice)
    site.huey.disconnect_signal(cut)
    assert (runs(), held(), state(site)) == (["mail fails"] * 2, [], (0, 0))


def test_the_last_step_of_a_pipeline_is_queued_while_redis_is_away(
    site: Any, work: Work, network: Proxy, retry_for: Any
) -> None:
    """Nobody else would queue it."""
    retry_for(0.1)
    site.huey.enqueue(site.add.s(1, 2).then(site.report))
    network.cut()
    work()
    network.mend()
    work(scheduled=True)
    assert (runs(), held(), state(site)) == (["begins 3", "ends 3"], [], (0, 0))


@pytest.mark.parametrize("by_whom", ["whoever queued it", "an equal call"])
def test_a_task_may_be_scheduled_for_another_time(by_whom: str, site: Any, work: Work) -> None:
    first = site.report.schedule((2024,), delay=100)
    known = first if by_whom == "whoever queued it" else site.report(2024)
    second = known.reschedule(delay=3000)
    assert lease_of("report:2024") > 6000
    assert site.report(2024).id == second.id != first.id
    work(scheduled=True)
    assert (second.get(), len(runs()), held()) == (2024, 2, [])


def test_a_task_that_fails_gives_its_lock_back(site: Any, consumer: Any) -> None:
    result = site.slow()
    site.sync(fails=True)
    assert held() == ["slow", "sync"]
    consumer("-w", "2", "-k", "process")
    until(lambda: held() == [], within=60)
    with pytest.raises(Exception, match=r"timeout \(3s\)"):
        result.get(blocking=True, timeout=60)


def test_what_cannot_be_sent_leaves_no_lock(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.huey.storage, "enqueue", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        site.report(2024)
    assert held() == []
    with Lock("report:2024") as lock:
        with pytest.raises(ZeroDivisionError):
            site.patient(2024)
        lock.check()
    with pytest.raises(TypeError, match="missing a required argument: 'year'"):
        site.report()


def test_pipelines_and_chords_go_on_past_a_task_that_is_skipped(site: Any, work: Work) -> None:
    with Lock("report:1"):
        results = site.huey.enqueue(site.report.s(1).then(site.report, 2).then(site.add, 5))
        together = site.huey.enqueue(site.chord([site.report.s(1), site.report.s(3)], site.add.s()))
        last = site.huey.enqueue(site.page.s(8).then(site.report_one))
        work()
    came = [result.get() for result in results], together.get(), [result.get() for result in last]
    assert (came, len(runs()), state(site), held()) == (([None, 2, 7], 3, ["rendered", None]), 5, (0, 0), [])


def test_a_periodic_task_is_queued_once(site: Any, work: Work) -> None:
    for _ in range(3):
        for task in site.huey.read_periodic(None):
            site.huey.enqueue(task)
    assert state(site) == (1, 0)
    work()
    assert (runs(), held()) == (["minutely"], [])


@pytest.mark.complete
def test_the_lock_of_a_task_whose_process_is_killed_ends(site: Any, consumer: Any) -> None:
    site.killed()
    consumer("-w", "1", "-k", "process")
    until(lambda: runs() == ["killed"], within=60)
    until(lambda: held() == [])
    assert state(site) == (0, 0)  # Huey has forgotten it


def test_a_task_may_lock_when_it_starts(site: Any, work: Work, other: Callable[[], Other]) -> None:
    someone, lock = other(), Lock("page:7")
    assert someone(lock.acquire)
    skipped, failed, again = site.page(7), site.impatient(7), site.later(7)
    work()
    assert skipped.get() is None
    with pytest.raises(Exception, match="LockNotAcquired"):
        failed.get()
    someone(lock.release)
    work(scheduled=True)
    assert (again.get(), runs(), held()) == ("later", ["later 7"], [])
    assert site.page(7).id != skipped.id
    work()
    assert runs() == ["later 7", "page 7"]


def test_a_task_that_is_called_like_a_function_has_the_lock(site: Any, work: Work) -> None:
    assert site.report.call_local(2024) == 2024
    with Lock("report:2024"), pytest.raises(LockNotAcquired):
        site.report.call_local(2024)
    inside = site.caller(2024)  # inside another task
    work()
    assert (inside.get(), held()) == (2024, [])


def test_immediate_tasks_have_the_lock_and_their_retries_too(site: Any) -> None:
    site.huey.immediate = True
    assert site.report(2024).get() == 2024
    with pytest.raises(Exception, match="ZeroDivisionError"):
        site.mail(7, "fails", retries=2).get()
    site.mail(8, "fails", retries=2, retry_delay=600)  # nothing runs later here
    site.report.schedule((2024,), delay=100)
    with Lock("report:2024"):
        assert site.report(2024).get() is None
        with pytest.raises(Exception, match="LockNotAcquired"):
            site.patient(2024).get()
    assert (runs()[2:], held()) == (["mail fails"] * 4, [])


@pytest.mark.django_db(transaction=True)
def test_djangos_huey_has_tasks_under_locks(site: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.HUEY = {"huey_class": "django_redislock.jobs.huey.LockedRedisHuey", "name": "site", "url": url(1)}
    monkeypatch.delitem(sys.modules, "huey.contrib.djhuey", raising=False)
    from huey.contrib import djhuey

    def build(year: int) -> int:
        return year

    locked = site.locked_job("build:{year}", lock_from="enqueue")(build)
    task, on_commit = djhuey.db_task()(locked), djhuey.on_commit_task(name="later")(locked)
    first = task(2024)
    assert task(2024).id == first.id
    with transaction.atomic():
        on_commit(2025)
        assert held() == ["build:2024"]
    assert held() == ["build:2024", "build:2025"]
    djhuey.HUEY.execute(djhuey.HUEY.dequeue())
    assert (first.get(), held()) == (2024, ["build:2025"])


def test_a_task_of_huey_is_refused_below_the_decorator(site: Any) -> None:
    with pytest.raises(TypeError, match="Put @locked_job below the task's decorator"):
        site.locked_job("a")(site.add)
