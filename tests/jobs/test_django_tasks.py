"""Django's tasks under locks: with real workers on a database, and with the immediate backend."""

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from tests.helpers.actors import until
from tests.helpers.jobs import held, let_pass, runs
from tests.helpers.proxy import Proxy
from tests.jobs.queues import LONG, DjangoTasksQueue, Start, Work


@pytest.fixture
def adapter(django_tasks_queue: DjangoTasksQueue) -> DjangoTasksQueue:
    return django_tasks_queue


@pytest.fixture
def site(django_tasks_site: Any) -> Any:
    """Its tasks run at once."""
    return django_tasks_site


@pytest.fixture
def rows(adapter: DjangoTasksQueue) -> Any:
    """The table of tasks, which wait there for a worker."""
    return adapter.rows


def again(rows: Any, id: str) -> None:
    """Let this task be delivered again."""
    rows.filter(pk=id).update(status="READY")


def test_a_task_that_is_made_ready_after_a_kill_enters_at_once(site: Any, rows: Any, worker: Start, work: Work) -> None:
    first = site.report.enqueue(7, wait="here")
    killed = worker()
    until(runs, within=LONG)
    killed.kill()
    assert site.report.enqueue(7).id == first.id
    let_pass("here")
    again(rows, first.id)
    work()
    assert rows.get(pk=first.id).return_value == "report 7"
    assert (runs(), held()) == (["report 7"] * 2, [])


def test_a_copy_does_not_run_beside_its_task(site: Any, rows: Any, worker: Start, work: Work) -> None:
    first = site.report.enqueue(7, wait="here")
    worker()
    until(runs, within=LONG)
    again(rows, first.id)
    work()
    assert rows.get(pk=first.id).exception_class_path.endswith("LockNotAcquired")
    let_pass("here")
    until(lambda: rows.get(pk=first.id).return_value == "report 7")
    until(lambda: held() == [])
    assert runs() == ["report 7"]
    again(rows, first.id)  # on purpose
    work()  # unless the worker is faster
    until(lambda: runs() == ["report 7"] * 2)


def test_a_task_whose_row_is_not_there_is_told_as_none(site: Any, rows: Any) -> None:
    first = site.report.enqueue(7)
    rows.filter(pk=first.id).delete()
    assert site.report.enqueue(7) is None


def test_a_transaction_that_may_be_rolled_back_is_warned_of(site: Any, rows: Any) -> None:
    with transaction.atomic():
        with pytest.warns(RuntimeWarning, match="The task 'report' was .* stay held for 3600 s.*on_commit"):
            first = site.report.enqueue(7)
        assert site.report.enqueue(7).id == first.id
        transaction.on_commit(lambda: site.report.enqueue(8))
    assert sorted(held()) == ["report:7", "report:8"]


def test_an_id_that_is_no_uuid_is_an_error(site: Any, rows: Any, settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": site.DATABASE, "OPTIONS": {"id_function": lambda: "x"}}}
    with pytest.raises(ValueError, match="badly formed hexadecimal UUID"):
        site.report.enqueue(7)
    assert held() == []


def test_the_name_is_made_of_what_the_worker_will_find(site: Any, rows: Any, work: Work) -> None:
    first = site.of_kind.enqueue(site.Kind.A)
    assert held() == ["kind:a"]
    work()
    assert rows.get(pk=first.id).return_value == ["kind:a"]
    assert held() == []


def test_a_database_that_reorders_the_keys_of_a_dict_makes_no_other_name(site: Any, rows: Any, work: Work) -> None:
    """As PostgreSQL does: the shorter first."""
    first = site.report.enqueue({"year": 7, "of": 8})
    rows.filter(pk=first.id).update(args_kwargs={"args": [{"of": 8, "year": 7}], "kwargs": {}})
    assert site.report.enqueue({"of": 8, "year": 7}).id == first.id
    work()
    assert rows.get(pk=first.id).return_value == "report {'of': 8, 'year': 7}"
    assert held() == []


def test_a_dict_may_have_keys_of_several_types(site: Any) -> None:
    assert site.report.enqueue({1: 2, "a": 3}).return_value == "report {1: 2, 'a': 3}"


def test_coroutines_queue_too_and_coroutine_functions_are_tasks_too(site: Any, rows: Any, work: Work) -> None:
    first = async_to_sync(site.awaited.aenqueue)(7)
    assert async_to_sync(site.awaited.aenqueue)(7).id == first.id
    assert held() == ["awaited:7"]
    work()
    assert rows.get(pk=first.id).return_value == 7
    assert held() == []
    assert async_to_sync(site.awaited.acall)(7) == 7


def test_while_redis_is_away_a_task_is_put_off(site: Any, rows: Any, own: Any, retry_for: Any, work: Work) -> None:
    retry_for(0.1)
    site.page.enqueue(6)  # so it is known how short such tasks are
    work(most=1)
    site.page.enqueue(7)
    own.stop()
    before = timezone.now()
    work(most=1)
    own.start()
    _, first, second = rows.order_by("enqueued_at")
    assert (first.status, first.return_value, second.status) == ("SUCCESSFUL", None, "READY")
    assert second.run_after >= before + timedelta(seconds=1)


def test_while_redis_is_away_a_task_that_has_its_lock_fails_and_may_be_made_ready_again(
    site: Any, rows: Any, network: Proxy, retry_for: Any, work: Work
) -> None:
    """Put off, it would be another task, which would find the lock of this one busy, and be skipped."""
    retry_for(0.1)
    id = site.report.enqueue(7).id
    network.cut()
    work(most=1)
    network.mend()
    (row,) = rows.all()
    assert (row.status, row.exception_class_path.rpartition(".")[2]) == ("FAILED", "LockUnavailable")
    again(rows, id)
    work(most=1)
    assert (rows.get(pk=id).return_value, runs(), held()) == ("report 7", ["report 7"], [])


def test_at_once_the_lock_is_acquired_at_the_start(site: Any) -> None:
    assert site.of_kind.enqueue("a").return_value == ["kind:a"]
    assert site.awaited.enqueue(7).return_value == 7
    assert site.plain.enqueue().return_value == []
    assert held() == []


def test_at_once_a_change_that_was_asked_for_meanwhile_is_made_at_the_end(site: Any, other: Any) -> None:
    running = other().start(lambda: site.sync.enqueue(7, wait="here"))
    until(runs)
    assert site.sync.enqueue(7).return_value is None
    let_pass("here")
    assert running.result(LONG).return_value == "sync 7"
    assert runs() == ["sync 7"] * 2


def test_it_stands_below_the_task_decorator_and_has_parentheses(site: Any) -> None:
    def run() -> None: ...

    with pytest.raises(TypeError, match="Put @locked_job below the task's decorator"):
        site.locked_job("x")(site.plain)
    with pytest.raises(TypeError, match=r'locked_job was given .*: write @locked_job\("order:{pk}"\)'):
        site.locked_job(run)
