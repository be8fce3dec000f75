"""Locks in many event loops: one after the other, and in several threads at once."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient
from django.urls import path

from django_redislock import Lock, locked_view
from tests.helpers.actors import until
from tests.helpers.state import leftovers

pytestmark = pytest.mark.complete


@locked_view("visit", blocking_timeout=60)
async def visit(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("welcome")


urlpatterns = [path("visit", visit)]


@pytest.mark.urls(__name__)
def test_10_event_loops_in_a_row_use_the_locks_of_views_and_leave_no_connection(client: Any) -> None:
    async def use() -> list[int]:
        browser = AsyncClient()
        return [response.status_code for response in await asyncio.gather(*[browser.get("/visit") for _ in range(5)])]

    assert asyncio.run(use()) == [200] * 5
    gc.collect()
    already = client.info("clients")["connected_clients"]
    for _ in range(10):
        assert asyncio.run(use()) == [200] * 5
        gc.collect()
    # on a busy machine, the process has begun to listen and to renew meanwhile
    until(lambda: client.info("clients")["connected_clients"] <= already + 2)
    assert leftovers(client) == []


def test_event_loops_in_several_threads_at_once_share_a_lock(client: Any) -> None:
    lock, inside = Lock("shared", blocking_timeout=60), threading.Lock()
    fences: list[int] = []

    async def section() -> None:
        async with lock:
            assert inside.acquire(blocking=False), "two holders at once"
            await asyncio.sleep(0.001)
            fences.append(lock.fence or 0)
            inside.release()

    async def several() -> None:
        await asyncio.gather(*[section() for _ in range(10)])

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(asyncio.run, several()) for _ in range(6)]:
            future.result(60)
    assert len(fences) == 60
    assert fences == sorted(set(fences))
    assert leftovers(client) == []
