"""Why the lock must be held until COMMIT: a lock that is released earlier loses updates, and ``locked_view`` does
not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.cache import caches
from django.test import override_settings

from django_redislock import get_lock
from redisserver import RedisServer
from tests.helpers import site
from tests.helpers.actors import GENEROUS, Other
from tests.helpers.databases import Account, Commits
from tests.helpers.servers import Web, asgi_server, wsgi_server

Eventually = Callable[..., Any]
REQUESTS = 500


@pytest.fixture
def atomic(account: Account, server: RedisServer, own_pools: None) -> Iterator[Account]:
    """ATOMIC_REQUESTS is on, and there is an alias for django-redis's own lock with connections for everybody."""
    account.options["ATOMIC_REQUESTS"] = True
    own = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": server.url.replace("/0", "/1"),
        "OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 2 * REQUESTS}},
    }
    site_settings = {"ROOT_URLCONF": site.__name__, "CACHES": {**django_settings.CACHES, "cache-lock": own}}
    with override_settings(**site_settings):
        yield account
        caches["cache-lock"].client.get_client().connection_pool.disconnect()  # type: ignore[attr-defined]


@pytest.fixture
def web(atomic: Account) -> Iterator[Web]:
    with wsgi_server() as web:
        yield web


def test_with_a_lock_released_before_commit_the_next_holder_reads_stale_rows(
    web: Web, commits: Commits, other: Callable[[], Other]
) -> None:
    commits.go_on.clear()
    first = other().start(lambda: web.get("/cache-lock/1/"))
    assert commits.reached.wait(GENEROUS)  # the lock is free again, but its holder has not committed yet
    assert web.get("/cache-lock-read/1/").body == b"0"
    commits.go_on.set()
    assert first.result(GENEROUS).body == b"1"


@pytest.mark.parametrize("name", ["twice", "twice-late"])
def test_with_locked_view_the_next_holder_waits_for_the_commit(
    name: str, web: Web, atomic: Account, commits: Commits, other: Callable[[], Other], eventually: Eventually
) -> None:
    commits.go_on.clear()
    first = other().start(lambda: web.get(f"/{name}/1/"))
    assert commits.reached.wait(GENEROUS)
    second = other().start(lambda: web.get(f"/{name}/1/"))
    eventually(lambda: (lock := get_lock("account:1")) and lock.waiters)
    commits.go_on.set()
    assert (first.result(GENEROUS).body, second.result(GENEROUS).body) == (b"1", b"2")
    assert atomic.balance == 2


async def ask_all(port: int, path: str, requests: int = REQUESTS) -> Counter[int]:
    """Send all requests at once; return how many got which status."""

    async def ask() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        response = await reader.read()
        writer.close()
        return int(response.split()[1])

    return Counter(await asyncio.gather(*(ask() for _ in range(requests))))


@pytest.mark.complete
@pytest.mark.parametrize("account", ["postgres"], indirect=True)
def test_500_requests_at_once_lose_no_update_with_our_lock_and_some_with_another(web: Web, atomic: Account) -> None:
    lost = {}
    for name in ("cache-lock", "twice", "twice-late"):
        atomic.balance = 0
        assert asyncio.run(ask_all(web.port, f"/{name}/1/")) == {200: REQUESTS}
        lost[name] = REQUESTS - atomic.balance
    assert lost.pop("cache-lock") > 0
    assert lost == {"twice": 0, "twice-late": 0}


@pytest.mark.parametrize(
    ("account", "serve", "requests"),
    [
        ("sqlite", wsgi_server, 50),
        pytest.param("sqlite", wsgi_server, REQUESTS, marks=pytest.mark.complete),
        pytest.param("postgres", asgi_server, REQUESTS, marks=pytest.mark.complete),
    ],
    indirect=["account"],
)
def test_many_requests_at_once_lose_no_update(serve: Any, requests: int, atomic: Account) -> None:
    with serve() as web:
        assert asyncio.run(ask_all(web.port, "/twice/1/", requests)) == {200: requests}
    assert atomic.balance == requests
