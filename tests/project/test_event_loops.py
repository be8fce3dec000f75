"""Locks in many event loops: one after the other, in several threads at once, one for each test of a site."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient
from django.urls import path

from django_redislock import Lock, locked_view
from tests.helpers.state import leftovers
from tests.project.programs import environment

pytestmark = pytest.mark.complete

visits: list[int | None] = []


async def visit(request: HttpRequest) -> HttpResponse:
    async with Lock("visit", blocking_timeout=60) as lock:
        visits.append(lock.fence)
        await asyncio.sleep(0)
    return HttpResponse("welcome")


@locked_view("visit:{pk}")
async def visit_one(request: HttpRequest, pk: int) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("welcome")


urlpatterns = [path("visit", visit), path("visit/<int:pk>", visit_one)]


@pytest.mark.urls(__name__)
def test_20_event_loops_in_a_row_use_the_locks_of_views_and_leave_no_connection(
    client: Any, eventually: Callable[..., Any]
) -> None:
    async def use() -> list[int]:
        browser = AsyncClient()
        asked = [browser.get("/visit") for _ in range(5)] + [browser.get(f"/visit/{pk}") for pk in range(5)]
        return [response.status_code for response in await asyncio.gather(*asked)]

    visits.clear()
    assert asyncio.run(use()) == [200] * 10
    gc.collect()
    already = client.info("clients")["connected_clients"]
    for _ in range(20):
        assert asyncio.run(use()) == [200] * 10
        gc.collect()
    # on a busy machine, the process has begun to listen and to renew meanwhile
    eventually(lambda: client.info("clients")["connected_clients"] <= already + 2)
    assert len(set(visits)) == 21 * 5
    assert leftovers(client) == []


def test_event_loops_in_several_threads_at_once_share_a_lock(client: Any) -> None:
    lock = Lock("shared", blocking_timeout=60)
    fences: list[int | None] = []
    inside = threading.Lock()

    async def section() -> None:
        async with lock:
            assert inside.acquire(blocking=False), "two holders at once"
            await asyncio.sleep(0.001)
            fences.append(lock.fence)
            inside.release()

    async def several() -> None:
        await asyncio.gather(*[section() for _ in range(10)])

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(asyncio.run, several()) for _ in range(6)]:
            future.result(60)
    assert len(fences) == 60
    assert fences == sorted(set(fences))  # type: ignore[type-var]
    assert leftovers(client) == []


ASYNC_TESTS = """
import asyncio
import pytest
from django_redislock import Lock, LockNotOwned

lock = Lock("shared", blocking_timeout=10)
loops = []

@pytest.fixture(autouse=True)
async def a_loop_of_its_own():
    assert asyncio.get_running_loop() not in loops
    loops.append(asyncio.get_running_loop())

@pytest.mark.parametrize("time", range(5))
async def test_a_lock_is_held_within_async_with(time):
    async with lock:
        assert await lock.aowned()
    assert not await lock.alocked()

async def test_tasks_wait_for_one_another():
    order = []
    async def section(number):
        async with Lock("shared", blocking_timeout=10):
            order.append(number)
            await asyncio.sleep(0.001)
            order.append(number)
    await asyncio.gather(*[section(number) for number in range(10)])
    assert order[::2] == order[1::2]

async def test_a_lock_can_be_left_to_the_end_of_the_loop():
    assert await Lock("left").aacquire()

async def test_what_another_test_held_is_not_ours():
    with pytest.raises(LockNotOwned):
        await Lock("left").arelease()

async def test_a_waiting_task_can_be_cancelled():
    async with lock:
        waiter = asyncio.create_task(Lock("shared", blocking_timeout=10).aacquire())
        while not (await lock.ainfo()).waiters:
            await asyncio.sleep(0.001)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

def test_a_sync_test_among_them():
    with lock:
        assert lock.owned()
"""


def test_asynchronous_tests_of_a_site_each_use_the_locks_in_a_loop_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    (tmp_path / "test_site.py").write_text(ASYNC_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout
    assert "warning" not in done.stdout
