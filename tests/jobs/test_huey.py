"""Huey tasks under locks, with real consumers: from the call to the end of the task."""

import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from django_redislock import Lock, LockUnavailable
from tests.helpers.actors import until
from tests.helpers.jobs import held, lease_of, note, runs, url
from tests.helpers.proxy import Proxy
from tests.jobs.queues import HueyQueue, Start, Work


@pytest.fixture
def adapter(huey_queue: HueyQueue) -> HueyQueue:
    return huey_queue


def state(site: Any) -> tuple[int, int]:
    """How many tasks wait, and how many for their time."""
    return site.huey.pending_count(), site.huey.scheduled_count()


def test_without_results_nobody_gets_that_of_another_call(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site.report(2024)
    monkeypatch.setattr(site.huey, "results", False)
    assert site.report(2024) is None


def test_one_more_run_has_what_the_one_that_ran_had(site: Any, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    site.huey.signal("executing")(collect := lambda signal, task: seen.append(task))
    # asked for in the middle of the run
    monkeypatch.setattr("tests.jobs.examples.gate", lambda wait: site.sync(7) if len(runs()) == 1 else None)
    site.huey.enqueue(site.sync.s(7, "here", priority=3, timeout=100))
    work()
    site.huey.disconnect_signal(collect)
    assert runs() == ["sync 7"] * 2
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
    expires = datetime.now() - timedelta(seconds=9) if how == "expired" else None
    first = site.sync.schedule((7,), delay=0, expires=expires)
    assert site.sync(7).id == first.id  # asks for a run that begins after this
    if how == "revoked":
        first.revoke()
    work()
    assert (runs(), held()) == (["sync 7"], [])


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
    site.huey.enqueue(site.collect.s(1, 2).then(site.report))
    network.cut()
    work()
    network.mend()
    work(scheduled=True)
    assert (runs(), held(), state(site)) == (["report [1, 2]"], [], (0, 0))


@pytest.mark.parametrize("by_whom", ["whoever queued it", "an equal call"])
def test_a_task_may_be_scheduled_for_another_time(by_whom: str, site: Any, work: Work) -> None:
    first = site.report.schedule((2024,), delay=100)
    known = first if by_whom == "whoever queued it" else site.report(2024)
    second = known.reschedule(delay=3000)
    assert lease_of("report:2024") > 6000
    assert site.report(2024).id == second.id != first.id
    work(scheduled=True)
    assert (second.get(), runs(), held()) == ("report 2024", ["report 2024"], [])


def test_a_task_that_fails_gives_its_lock_back(site: Any, worker: Start) -> None:
    result = site.slow()
    site.sync(7, fails=1)
    assert held() == ["report:7", "slow"]
    worker("-w", "2", "-k", "process")
    until(lambda: held() == [], within=60)
    with pytest.raises(Exception, match=r"timeout \(3s\)"):
        result.get(blocking=True, timeout=60)


def test_pipelines_and_chords_go_on_past_a_task_that_is_skipped(site: Any, work: Work) -> None:
    with Lock("report:1"):
        results = site.huey.enqueue(site.report.s(1).then(site.report, 2).then(site.collect, 5))
        together = site.huey.enqueue(site.chord([site.report.s(1), site.report.s(3)], site.collect.s()))
        last = site.huey.enqueue(site.page.s(8).then(site.report_one))
        work()
    assert [result.get() for result in results] == [None, "report 2", [5, "report 2"]]
    assert (together.get(), [result.get() for result in last]) == (["report 3"], ["page 8", None])
    assert (len(runs()), state(site), held()) == (3, (0, 0), [])


def test_a_periodic_task_is_queued_once(site: Any, work: Work) -> None:
    for _ in range(3):
        for task in site.huey.read_periodic(None):
            site.huey.enqueue(task)
    assert state(site) == (1, 0)
    work()
    assert (runs(), held()) == (["minutely"], [])


@pytest.mark.complete
def test_the_lock_of_a_task_whose_process_is_killed_ends(site: Any, worker: Start) -> None:
    site.killed()
    worker("-w", "1", "-k", "process")
    until(lambda: runs() == ["killed"], within=60)
    until(lambda: held() == [])
    assert state(site) == (0, 0)  # Huey has forgotten it


def test_the_retries_of_an_immediate_task_have_the_lock_too(site: Any, adapter: HueyQueue) -> None:
    adapter.immediate()
    with pytest.raises(Exception, match="ZeroDivisionError"):
        site.mail(7, "fails", retries=2).get()
    site.mail(8, "fails", retries=2, retry_delay=600)  # nothing runs later here
    site.report.schedule((2024,), delay=100)
    assert (runs(), held()) == (["mail fails"] * 4, [])


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
        site.locked_job("a")(site.collect)
