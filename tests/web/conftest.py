"""The test site, run by two servers and by Django's two test clients."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.test import override_settings

from tests.helpers import site
from tests.helpers.actors import Crowd
from tests.helpers.databases import Account
from tests.helpers.servers import AsyncTestClient, Pages, SyncTestClient, Web, asgi_server, wsgi_server


@pytest.fixture(scope="module")
def webs() -> Iterator[dict[str, Web]]:
    """All ways in which a request can reach the site."""
    with ExitStack() as stack:
        stack.enter_context(override_settings(ROOT_URLCONF=site.__name__, MIDDLEWARE=[f"{site.__name__}.middleware"]))
        yield {
            "wsgi": stack.enter_context(wsgi_server()),
            "asgi": stack.enter_context(asgi_server()),
            "client": SyncTestClient(),
            "async-client": AsyncTestClient(),
        }
    gc.collect()


@pytest.fixture(params=["wsgi", "asgi", "client", "async-client"])
def web(request: pytest.FixtureRequest, webs: dict[str, Web]) -> Web:
    """One of these ways; the test runs with each."""
    return webs[request.param]


@pytest.fixture
def gate() -> Iterator[site.Gate]:
    site.gates["here"] = made = site.Gate()
    yield made
    made.go_on.set()


@pytest.fixture
def atomic(account: Account) -> Account:
    account.options["ATOMIC_REQUESTS"] = True
    return account


@pytest.fixture(autouse=True)
def _no_ends() -> None:
    site.ends.clear()


@pytest.fixture
def pages(crowd: Crowd, settings: Any) -> Pages:
    """A site for this test alone, with views that fit the crowd: sync for threads, async for tasks."""
    settings.ROOT_URLCONF = pages = Pages(awaits=crowd.awaits)
    return pages
