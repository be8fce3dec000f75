"""How those who ask for a lock are described to people."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from django_redislock import Lock
from django_redislock.engine.owners.description import MAX_BYTES, describe_owner
from tests.helpers.actors import Crowd
from tests.helpers.processes import Worker
from tests.helpers.state import NAME, queued

PROCESS = f"{socket.gethostname()}:{os.getpid()}:"
HERE = f"{PROCESS}{threading.current_thread().name}"


def test_an_owner_is_host_process_thread_and_purpose() -> None:
    assert describe_owner("/orders/42") == f"{HERE} /orders/42"


def test_an_owner_without_a_purpose_ends_with_its_thread() -> None:
    assert describe_owner("") == HERE


async def test_a_task_is_named_behind_its_thread() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.set_name("worker-7")
    assert describe_owner("/orders/42") == f"{HERE}/worker-7 /orders/42"


def test_letters_of_any_language_stay_in_a_purpose() -> None:
    assert describe_owner("/straße/注文") == f"{HERE} /straße/注文"


@pytest.mark.parametrize("hostile", ["\n", "\r", "\x1b", "\0", "\u202e", "\u2028", "\ud800"], ids=ascii)
def test_what_could_deceive_a_terminal_is_replaced(hostile: str) -> None:
    assert describe_owner(f"/a{hostile}b") == f"{HERE} /a?b"


@pytest.mark.parametrize("long", ["a" * 500, "ß" * 500, "x" + "注" * 500, "😀" * 500], ids=lambda long: long[:2])
def test_a_long_owner_is_cut_at_a_whole_character(long: str) -> None:
    owner = describe_owner(long)
    assert f"{HERE} {long}".startswith(owner)
    assert MAX_BYTES - 3 <= len(owner.encode()) <= MAX_BYTES


def test_holder_and_waiters_are_shown_with_process_and_purpose(
    crowd: Crowd, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME, purpose="rebuild the report")
    me(lock, "acquire")
    waiting: Future[bool] = you.start(Lock(NAME, purpose="/orders/42"), "acquire", blocking_timeout=30)
    eventually(lambda: queued(client))
    info = lock.info()
    assert info is not None
    assert info.owner.startswith(PROCESS)
    assert info.owner.endswith(" rebuild the report")
    (owner,) = [waiter.owner for waiter in info.queue]
    assert owner.startswith(PROCESS)
    assert owner.endswith(" /orders/42")
    me(lock, "release")
    assert waiting.result(30)


def test_a_hostile_purpose_is_harmless_in_redis() -> None:
    lock = Lock(NAME, purpose="/a b\n\ud800" + "ß" * 300)
    lock.acquire()
    info = lock.info()
    assert info is not None
    assert info.owner.startswith(f"{HERE} /a b??ß")
    assert info.note == ""
    assert lock.extend(1)
    lock.release()


def test_a_management_command_is_a_purpose(start: Callable[..., Worker]) -> None:
    worker = start(
        """
sys.argv = ["manage.py", "rebuild", "--all"]
for purpose in "", "/orders/42":
    with Lock("a", purpose=purpose) as lock:
        say("owner", lock.info().owner)
"""
    )
    assert worker.expect("owner") == [f"{socket.gethostname()}:{worker.pid}:MainThread", "rebuild"]
    assert worker.expect("owner") == [f"{socket.gethostname()}:{worker.pid}:MainThread", "/orders/42"]
