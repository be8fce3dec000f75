"""A lock that was just handed over has a short lease, and whoever looks is told why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from django_redislock import Lock, LockPool, get_lock, list_locks
from tests.helpers.actors import GENEROUS, Crowd, Ghost

TTL = 30  # seconds


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    call_command("redislocks", *arguments)
    return capsys.readouterr().out


@pytest.fixture(params=["order:42", "pool:accounts:alice"])
def handed(request: pytest.FixtureRequest, ghost: Callable[..., Ghost]) -> str:
    """The name of a lock that was handed over to a process which does not confirm it."""
    name: str = request.param
    there, pool = ghost(), LockPool("accounts")
    pool.assign(["alice"])
    with pool.acquire() if name.startswith("pool:") else Lock(name):
        there.queue("a" * 22, name="pool:accounts:" if name.startswith("pool:") else name, ttl=TTL)
    return name


@pytest.mark.django_db
def test_all_who_show_it_say_so(handed: str, capsys: pytest.CaptureFixture[str], admin_client: Client) -> None:
    for info in (get_lock(handed), *list_locks()):
        assert info is not None
        assert (info.owner, info.handed_over) == ("ghost", True)
        assert info.lease_left <= TTL / 3
    assert [lock.handed_over for lock in LockPool("accounts").info().locks] == [True] * handed.startswith("pool:")
    assert " s (being handed over)  " in printed(capsys, "list")
    assert " s (being handed over)\n" in printed(capsys, "show", handed)
    assert json.loads(printed(capsys, "show", handed, "--format=json"))["handed_over"] is True
    for page in ("", f"{handed}/change/"):
        path = f"/admin/django_redislock/heldlock/{page}".replace(":", "_3A")
        assert " s (being handed over)" in admin_client.get(path).content.decode()


def test_once_the_new_holder_has_confirmed_it_that_is_over(
    crowd: Crowd, eventually: Callable[[Callable[[], object]], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    me, you, lock = crowd(), crowd(), Lock("a", ttl=TTL)
    me(lock, "acquire")
    assert me(lock, "info").handed_over is False
    waiting = you.start(Lock("a", ttl=TTL), "acquire")
    eventually(lambda: me(lock, "info").waiters)
    me(lock, "release")
    assert waiting.result(GENEROUS)
    info = eventually(lambda: not (found := me(lock, "info")).handed_over and found)
    assert info.lease_left > TTL / 3
    assert "handed over" not in printed(capsys, "list")
