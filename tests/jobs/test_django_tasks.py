"""Django's tasks under locks: with real workers on a database, and with the immediate backend."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django import VERSION
from django.contrib import admin
from django.db import DatabaseError, connections, transaction
from django.utils import timezone

from django_redislock import Lock, LockNotAcquired
from tests.helpers.actors import until
from tests.helpers.databases import one_database, sqlite_file
from tests.helpers.jobs import held, lease_of, let_pass, require_package, runs
from tests.helpers.processes import Worker
from tests.helpers.proxy import Proxy
from tests.helpers.state import known

LONG = 60


@pytest.fixture
def site(settings: Any) -> Any:
    """Its tasks run at once."""
    if VERSION < (6,):
        require_package("django_tasks")
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_tasks"]
    import tests.jobs.django_tasks_site as site

    settings.TASKS = {"default": {"BACKEND": site.IMMEDIATE}}
    return site


@pytest.fixture
def rows(site: Any, settings: Any, tmp_path: Path, django_db_blocker: Any) -> Iterator[Any]:
    """The table of tasks, which wait there for a worker."""
    require_package("django_tasks_db")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_tasks_db"]
    from django_tasks_db.models import DBTaskResult

    settings.TASKS = {"default": {"BACKEND": site.DATABASE}}
    with django_db_blocker.unblock(), one_database("default", sqlite_file(tmp_path)):
        with connections["default"].schema_editor() as editor:
            editor.create_model(DBTaskResult)
        yield DBTaskResult.objects
    if admin.site.is_registered(DBTaskResult):  # other tests have no such app
        admin.site.unregister(DBTaskResult)


@pytest.fixture
def worker(site: Any, rows: Any, start: Callable[..., Worker]) -> Callable[[], Worker]:
    first = f"""
import tests.settings as s
s.INSTALLED_APPS += ["django_tasks_db"]
s.TASKS = {{"default": {{"BACKEND": {site.DATABASE!r}}}}}
s.DATABASES["default"] = {connections.settings["default"]!r}
"""
    code = """
from django.core.management import call_command
call_command("db_worker", "--no-startup-delay", "--interval=0.02")
"""
    return lambda: start(code, first=first)


def work(most: int | None = None) -> None:
    """Run all that is ready, in this process, or so many."""
    from django_tasks_db.management.commands.db_worker import Worker

    options: Any = {"batch": True, "queue_names": ["default"], "excluded_queue_names": [], "backend_name": "default"}
    Worker(**options, interval=0.0, startup_delay=False, max_tasks=most, worker_id="here").run()


def again(rows: Any, id: str) -> None:
    """Let this task be delivered again."""
    rows.filter(pk=id).update(status="READY")


def ends(rows: Any, id: str) -> Any:
    return until(lambda: rows.finished().filter(pk=id).first(), within=LONG)


def test_of_equal_tasks_one_is_queued_and_the_others_get_its_result(site: Any, rows: Any, worker: Any) -> None:
    first = site.report.enqueue(7, wait="here")
    assert [site.report.enqueue(7).id for _ in range(3)] == [first.id] * 3
    other = site.report.enqueue(8)
    assert sorted(held()) == ["report:7", "report:8"]
    worker()
    until(lambda: runs() == ["report 7"], within=LONG)
    assert site.report.enqueue(7).id == first.id  # it runs
    assert f"tests.jobs.django_tasks_site.report[{first.id}]" in known("report:7").owner
    let_pass("here")
    assert ends(rows, first.id).return_value == "report 7"
    assert ends(rows, other.id).return_value == "report 8"
    assert held() == []
    second = site.report.enqueue(7)
    assert second.id != first.id
    assert ends(rows, second.id).return_value == "report 7"
    assert runs() == ["report 7", "report 8", "report 7"]


def test_a_task_that_is_made_ready_again_after_a_kill_enters_at_once(site: Any, rows: Any, worker: Any) -> None:
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


def test_a_copy_does_not_run_beside_its_task(site: Any, rows: Any, worker: Any) -> None:
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


@pytest.mark.complete
def test_busy_may_come_again_later(site: Any, rows: Any, worker: Any) -> None:
    site.report.enqueue(7, wait="here")
    second = site.patient.enqueue(7)
    worker()
    until(runs, within=LONG)
    work(1)
    assert rows.get(pk=second.id).status == "SUCCESSFUL"
    assert rows.count() == 3  # the last one is the second one, put off
    let_pass("here")
    until(lambda: rows.successful().count() == rows.count(), within=LONG)
    assert (runs(), held()) == (["report 7", "patient 7"], [])


@pytest.mark.complete
@pytest.mark.parametrize("fails", [False, True])
def test_busy_may_be_merged_so_that_no_change_is_lost(fails: bool, site: Any, rows: Any, worker: Any) -> None:
    first = site.sync.enqueue(7, wait="here", fails=fails)
    assert site.sync.enqueue(7).id == first.id  # the first one has not begun: it will see whatever changed
    worker()
    until(runs, within=LONG)
    for _ in range(3):
        assert site.sync.enqueue(7).id == first.id
    let_pass("here")
    until(lambda: rows.finished().count() == 2, within=LONG)
    assert (runs(), rows.count(), held()) == (["sync 7"] * 2, 2, [])


def test_a_lock_that_no_task_has_is_told_as_none(site: Any, rows: Any) -> None:
    with Lock("report:7"):
        assert site.report.enqueue(7) is None
    first = site.report.enqueue(7)
    rows.filter(pk=first.id).delete()
    assert site.report.enqueue(7) is None


def test_a_task_may_be_late_by_queued_ttl_after_its_time(site: Any, rows: Any) -> None:
    site.report.using(run_after=timezone.now() + timedelta(hours=2)).enqueue(7)
    assert 10_000 < lease_of("report:7") <= 7200 + 3600


def test_a_transaction_that_may_be_rolled_back_is_warned_of(site: Any, rows: Any) -> None:
    with transaction.atomic():
        with pytest.warns(RuntimeWarning, match="The task 'report' was .* stay held for 3600 s.*on_commit"):
            first = site.report.enqueue(7)
        assert site.report.enqueue(7).id == first.id
        transaction.on_commit(lambda: site.report.enqueue(8))
    assert sorted(held()) == ["report:7", "report:8"]


def test_what_cannot_be_queued_leaves_no_lock(site: Any, rows: Any) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        site.report.enqueue(7, wait={1})
    with pytest.raises(TypeError, match="missing a required argument: 'year'"):
        site.report.enqueue()
    with connections["default"].cursor() as cursor:
        cursor.execute(f"DROP TABLE {rows.model._meta.db_table}")
    for task in (site.report, site.patient):
        with pytest.raises(DatabaseError):
            task.enqueue(7)
        assert held() == []
    with Lock("report:7"):
        with pytest.raises(DatabaseError):
            site.patient.enqueue(7)  # which comes again in the worker, and does not have the lock
        assert held() == ["report:7"]


def test_an_id_that_is_no_uuid_is_an_error(site: Any, rows: Any, settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": site.DATABASE, "OPTIONS": {"id_function": lambda: "x"}}}
    with pytest.raises(ValueError, match="badly formed hexadecimal UUID"):
        site.report.enqueue(7)
    assert held() == []


def test_the_name_is_made_of_what_the_worker_will_find(site: Any, rows: Any) -> None:
    first = site.of_kind.enqueue(site.Kind.A)
    assert held() == ["kind:a"]
    work()
    assert rows.get(pk=first.id).return_value == ["kind:a"]
    assert held() == []


def test_a_database_that_reorders_the_keys_of_a_dict_makes_no_other_name(site: Any, rows: Any) -> None:
    """As PostgreSQL does: the shorter first."""
    first = site.report.enqueue({"year": 7, "of": 8})
    rows.filter(pk=first.id).update(args_kwargs={"args": [{"of": 8, "year": 7}], "kwargs": {}})
    assert site.report.enqueue({"of": 8, "year": 7}).id == first.id
    work()
    assert rows.get(pk=first.id).return_value == "report {'of': 8, 'year': 7}"
    assert held() == []


def test_a_dict_may_have_keys_of_several_types(site: Any) -> None:
    assert site.report.enqueue({1: 2, "a": 3}).return_value == "report {1: 2, 'a': 3}"


def test_coroutines_queue_too_and_coroutine_functions_are_tasks_too(site: Any, rows: Any) -> None:
    first = async_to_sync(site.awaited.aenqueue)(7)
    assert async_to_sync(site.awaited.aenqueue)(7).id == first.id
    assert held() == ["awaited:7"]
    work()
    assert rows.get(pk=first.id).return_value == 7
    assert held() == []
    assert async_to_sync(site.awaited.acall)(7) == 7


def test_while_redis_is_away_a_task_is_put_off(site: Any, rows: Any, own: Any, retry_for: Any) -> None:
    retry_for(0.1)
    site.at_start.enqueue(6)  # so it is known how short such tasks are
    work(1)
    site.at_start.enqueue(7)
    own.stop()
    before = timezone.now()
    work(1)
    own.start()
    _, first, second = rows.order_by("enqueued_at")
    assert (first.status, first.return_value, second.status) == ("SUCCESSFUL", None, "READY")
    assert second.run_after >= before + timedelta(seconds=1)


def test_while_redis_is_away_a_task_that_has_its_lock_fails_and_may_be_made_ready_again(
    site: Any, rows: Any, network: Proxy, retry_for: Any
) -> None:
    """Put off, it would be another task, which would find the lock of this one busy, and be skipped."""
    retry_for(0.1)
    id = site.report.enqueue(7).id
    network.cut()
    work(1)
    network.mend()
    (row,) = rows.all()
    assert (row.status, row.exception_class_path.rpartition(".")[2]) == ("FAILED", "LockUnavailable")
    again(rows, id)
    work(1)
    assert (rows.get(pk=id).return_value, runs(), held()) == ("report 7", ["report 7"], [])


def test_at_once_the_lock_is_acquired_at_the_start(site: Any) -> None:
    assert site.report.enqueue(7).return_value == "report 7"
    assert site.of_kind.enqueue("a").return_value == ["kind:a"]
    assert site.awaited.enqueue(7).return_value == 7
    assert site.plain.enqueue().return_value == []
    assert site.report.enqueue(7, fails=True).status == "FAILED"
    assert held() == []
    with Lock("report:7"):
        assert site.report.enqueue(7).return_value is None
        for task in (site.strict, site.patient):  # it cannot defer
            result = task.enqueue(7)
            assert result.status == "FAILED"
            assert result.errors[0].exception_class is LockNotAcquired
    assert runs() == ["report 7"] * 2


def test_at_once_a_change_that_was_asked_for_meanwhile_is_made_at_the_end(site: Any, other: Any) -> None:
    running = other().start(lambda: site.sync.enqueue(7, wait="here"))
    until(runs)
    assert site.sync.enqueue(7).return_value is None
    let_pass("here")
    assert running.result(LONG).return_value == "sync 7"
    assert runs() == ["sync 7"] * 2


def test_a_call_acquires_the_lock_too_inside_of_the_same_task_even(site: Any) -> None:
    assert site.report.call(7) == "report 7"
    with Lock("report:7"), pytest.raises(LockNotAcquired):
        site.report.func(7)
    result = site.outer.enqueue(1)
    assert (result.status, result.errors) == ("SUCCESSFUL", [])
    assert result.return_value == ["outer:1"]


def test_it_stands_below_the_task_decorator_and_has_parentheses(site: Any) -> None:
    def run() -> None: ...

    with pytest.raises(TypeError, match="Put @locked_job below the task's decorator"):
        site.locked_job("x")(site.plain)
    with pytest.raises(TypeError, match=r'locked_job was given .*: write @locked_job\("order:{pk}"\)'):
        site.locked_job(run)
