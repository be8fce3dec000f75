"""How those who ask for a lock are described to people."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.dispatch import Signal

from django_redislock import Lock
from tests.helpers.processes import Worker
from tests.inside import command_of_a_new_process

HERE = f"{socket.gethostname()}:{os.getpid()}:{threading.current_thread().name}"


def owner(purpose: str = "") -> str:
    """Of a lock that is held here."""
    with Lock("a", purpose=purpose) as lock:
        return lock.info().owner  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("purpose", "shown"),
    [("/straße/注文", " /straße/注文"), ("", ""), *((f"/a{hostile}b", " /a?b") for hostile in "\n\x1b\0\u202e\ud800")],
    ids=ascii,
)
def test_an_owner_is_host_process_thread_and_purpose_without_what_could_deceive_a_terminal(
    purpose: str, shown: str
) -> None:
    assert owner(purpose) == f"{HERE}{shown}"


def test_a_long_owner_is_cut_at_a_whole_character() -> None:
    long = "x" + "注" * 500
    found = owner(long)
    assert f"{HERE} {long}".startswith(found)
    assert 197 <= len(found.encode()) <= 200


async def test_a_task_is_named_behind_its_thread() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.set_name("worker-7")
    async with Lock("a", purpose="/orders/42") as lock:
        info = await lock.ainfo()
        assert info is not None
        assert info.owner == f"{HERE}/worker-7 /orders/42"


def test_a_management_command_is_a_purpose_and_no_task_queue_is_imported(start: Callable[..., Worker]) -> None:
    worker = start(
        """
sys.argv = ["manage.py", "rebuild", "--all"]
for purpose in "", "/orders/42":
    with Lock("a", purpose=purpose) as lock:
        say("owner", lock.info().owner.rpartition(":")[2])
say("imported", *{"celery", "rq", "dramatiq", "django_tasks"} & set(sys.modules))
""",
        fresh=True,
    )
    assert worker.expect("owner") == ["MainThread", "rebuild"]
    assert worker.expect("owner") == ["MainThread", "/orders/42"]
    assert worker.expect("imported") == []


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("manage.py rebuild --all", "rebuild"),
        ("manage.py --version", ""),
        ("/site/manage.py", ""),
        ("/bin/django-admin shell", "shell"),
        ("/bin/gunicorn shop.wsgi", ""),
    ],
)
def test_only_a_management_command_is_a_purpose(words: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", words.split())
    assert command_of_a_new_process() == command


def queue_in(job: object) -> SimpleNamespace:
    def ask() -> object:
        return job

    message = SimpleNamespace(get_current_message=ask)
    return SimpleNamespace(get_current_worker_task=ask, get_current_job=ask, CurrentMessage=message)


@pytest.mark.parametrize("module", ["celery._state", "rq", "dramatiq.middleware"])
def test_a_job_is_shown_by_its_quoted_name_and_id(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names, ids = ("name", "func_name", "actor_name"), ("id", "message_id")
    job = SimpleNamespace(**dict.fromkeys(names, "a.b"), **dict.fromkeys(ids, "7 x:y"))
    job.request = job
    monkeypatch.setitem(sys.modules, module, queue_in(job))
    assert owner().endswith(":a.b[7%20x%3Ay]")
    for without_job in (queue_in(None), SimpleNamespace()):  # another version of the queue does no harm, either
        monkeypatch.setitem(sys.modules, module, without_job)
        assert owner() == HERE


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
        seen.append(owner().split(":", 2)[2])
    assert seen == ["shop.o[o]", "shop.i[i]", "shop.i[i]", "shop.o[o]", "shop.i[i]", "MainThread"]
