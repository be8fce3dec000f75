"""What is asked once for all who need it. (How long callers wait for a cluster: tests/cluster/test_asking.py.)"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured

from tests.helpers.actors import GENEROUS
from tests.inside import AskedOnce, end_of_the_interpreter


class Gate:
    """What is asked: answers when it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> None:
        assert self.open.wait(GENEROUS)
        if self.error is not None:
            raise self.error


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.mark.parametrize("within", [None, GENEROUS])
async def test_cancelling_one_caller_does_not_end_the_question_for_the_others(
    within: float | None, gate: Gate, aeventually: Callable[..., Any]
) -> None:
    question = AskedOnce(gate)
    tasks = [asyncio.create_task(question.aanswer(within)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    assert question.pending()
    gate.open.set()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [True, False, False]
    question.answer(0)  # it is there already
    await question.aanswer(0)
    assert not question.pending()


async def test_no_caller_waits_longer_than_its_own_timeout(gate: Gate) -> None:
    question = AskedOnce(gate)
    with pytest.raises(redis.TimeoutError, match="did not say in time"):
        question.answer(0.01)
    with pytest.raises(redis.TimeoutError, match="did not say in time"):
        await question.aanswer(0.01)
    assert question.pending()


@pytest.mark.parametrize("error", [redis.ConnectionError("away"), ImproperlyConfigured("too old")])
async def test_a_failure_goes_to_all_who_wait(error: Exception, gate: Gate) -> None:
    gate.error, question = error, AskedOnce(gate)
    tasks = [asyncio.create_task(question.aanswer(None)) for _ in range(2)]
    await asyncio.sleep(0)
    gate.open.set()
    for failed in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(failed, type(error))
        assert str(failed) == str(error)
    with pytest.raises(type(error), match=str(error)):
        question.answer(None)


def test_a_loop_that_was_closed_with_waiting_tasks_disturbs_nobody(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    question, loop = AskedOnce(gate), asyncio.new_event_loop()
    task = loop.create_task(question.aanswer(GENEROUS))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gate.open.set()
    question.answer(None)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    assert caplog.text == ""


@pytest.mark.parametrize("why", ["too many", "the interpreter ends"])
def test_without_another_thread_it_is_asked_at_once(why: str, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        assert why == "too many", "Python 3.10 and 3.11 would wait for ever for the thread to begin"
        raise RuntimeError("can't start new thread")

    if why == "the interpreter ends":
        end_of_the_interpreter(monkeypatch)
    monkeypatch.setattr(threading.Thread, "start", start)
    gate.open.set()
    AskedOnce(gate).answer(0.0)
