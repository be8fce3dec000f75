"""What is asked once for all who need it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from time import monotonic
from types import SimpleNamespace

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured

from django_redislock.store.question import Question
from django_redislock.store.wire import NotAsked
from tests.helpers.actors import GENEROUS


class Gate:
    """What is asked: answers when it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.error: Exception | None = None

    def __call__(self, question: Question) -> None:
        assert self.open.wait(GENEROUS)
        if self.error is not None:
            raise self.error


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def question(gate: Gate) -> Question:
    question = Question(gate)
    question.begin()
    return question


async def test_cancelling_one_caller_does_not_end_the_question_for_the_others(gate: Gate, question: Question) -> None:
    tasks = [asyncio.create_task(question.aanswer(None)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    assert question.pending
    gate.open.set()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [True, False, False]
    question.answer(None)
    assert not question.pending


async def test_no_caller_waits_longer_than_its_own_timeout(question: Question) -> None:
    with pytest.raises(NotAsked, match="did not say in time"):
        question.answer(monotonic() + 0.01)
    with pytest.raises(NotAsked, match="did not say in time"):
        await question.aanswer(monotonic() + 0.01)
    assert question.pending


async def test_an_answer_in_time_is_returned(gate: Gate, question: Question) -> None:
    waiting = asyncio.create_task(question.aanswer(monotonic() + GENEROUS))
    await asyncio.sleep(0)
    gate.open.set()
    await waiting
    await question.aanswer(monotonic() - 1)  # there already
    question.answer(monotonic() - 1)


@pytest.mark.parametrize("error", [redis.ConnectionError("away"), ImproperlyConfigured("too old")])
async def test_a_failure_goes_to_all_who_wait(error: Exception, gate: Gate, question: Question) -> None:
    gate.error = error
    tasks = [asyncio.create_task(question.aanswer(None)) for _ in range(2)]
    await asyncio.sleep(0)
    gate.open.set()
    for failed in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(failed, type(error))
        assert str(failed) == str(error)
    with pytest.raises(type(error), match=str(error)):
        question.answer(None)


def test_a_loop_that_was_closed_with_waiting_tasks_disturbs_nobody(
    gate: Gate, question: Question, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(question.aanswer(monotonic() + GENEROUS))
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
        monkeypatch.setattr("django_redislock.base.threads.sys", SimpleNamespace(is_finalizing=lambda: True))
    monkeypatch.setattr(threading.Thread, "start", start)
    gate.open.set()
    question = Question(gate)
    question.begin()
    question.answer(0.0)


def test_a_question_that_was_never_started_is_not_pending(gate: Gate) -> None:
    """Whoever was to begin it was interrupted; the next one asks anew."""
    assert not Question(gate).pending
