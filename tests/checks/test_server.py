"""Checks of the server, for ``check --deploy``."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.checks import INFO

from django_redislock import Lock, LockUnavailable, list_locks
from redisserver import RedisServer, redis_server
from tests.checks import BACKEND, OURS, check, ids, only
from tests.helpers.docs import redis_user
from tests.inside import limit

NOWHERE = "redis://127.0.0.1:1/0"


def use(settings: Any, url: str, **more: Any) -> None:
    settings.CACHES = {**settings.CACHES, "locks": {"BACKEND": BACKEND, "LOCATION": url, **more}}


@pytest.fixture
def own(settings: Any) -> Iterator[RedisServer]:
    """A server of this test alone, behind the alias of the locks."""
    with redis_server() as running:
        use(settings, running.url)
        yield running


@pytest.fixture
def acl(own: RedisServer, settings: Any) -> Callable[..., None]:
    """Use that server as a user with these rights."""

    def acl(*rights: str) -> None:
        with own.client() as client:
            client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "~*", *rights)
        use(settings, f"redis://narrow:secret@127.0.0.1:{own.port}/5")

    return acl


@pytest.fixture
def pretender(settings: Any) -> Iterator[Callable[..., None]]:
    """A server that answers INFO with this (None: never answers), and otherwise like Redis as far as the check goes.

    ``lock``: what it answers to EVALSHA, by default that all went well; empty: it hangs up.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pretend(info: bytes | None, lock: bytes = b"*5\r\n:1\r\n" + 4 * b":0\r\n") -> None:
            use(settings, f"redis://127.0.0.1:{listening.getsockname()[1]}/0")

            def serve(connection: socket.socket) -> None:
                with connection:
                    while data := connection.recv(65536):
                        if info is None:
                            continue
                        for command in re.findall(rb"(?:\A|(?<=\n))\*\d+\r\n\$\d+\r\n(\w+)", data):
                            if command == b"EVALSHA" and not lock:
                                return
                            text = {b"INFO": b"$%d\r\n%s\r\n" % (len(info), info), b"EVAL": b":0\r\n"}
                            connection.sendall({**text, b"EVALSHA": lock}.get(command, b"+OK\r\n"))

            def listen() -> None:
                with suppress(OSError):  # closed
                    while True:
                        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

            threading.Thread(target=listen, daemon=True).start()

        yield pretend
        listening.shutdown(socket.SHUT_RDWR)  # wakes the thread


def test_a_server_out_of_reach_is_no_more_than_a_warning_and_only_with_deploy(settings: Any) -> None:
    use(settings, NOWHERE)
    assert "refused" in only("W004", deploy=True).msg
    assert ids() == []


def test_credentials_that_cannot_be_had_are_no_more_than_a_warning(own: RedisServer, settings: Any) -> None:
    class Provider(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            raise RuntimeError("the vault is sealed")

    options = {"CONNECTION_POOL_KWARGS": {"credential_provider": Provider()}}
    use(settings, f"{own.url}?client_name=sealed", OPTIONS=options)
    assert "the vault is sealed" in only("W004", deploy=True).msg


def test_checks_start_no_threads_and_leave_neither_connection_nor_lock(
    own: RedisServer, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    with own.client() as client:
        eventually(lambda: len(client.client_list()) == 1)  # whoever started the server has left
        threads = threading.active_count()
        assert ids(deploy=True) == []
        assert threading.active_count() == threads
        eventually(lambda: len(client.client_list()) == 1)
        assert {key.rpartition(b":")[0] for key in client.keys("*")} <= {b"redislock{0}", b"redislock{0}:gone"}
    assert list_locks() == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_found(policy: str, own: RedisServer) -> None:
    with own.client() as client:
        client.config_set("maxmemory-policy", policy)
        limitless = f"as soon as it has a memory limit (maxmemory-policy {policy})"
        assert limitless in only("W005", deploy=True).msg
        client.config_set("maxmemory", "100mb")
        assert "when its memory is full" in only("W005", deploy=True).msg
        client.config_set("maxmemory-policy", "noeviction")
    assert ids(deploy=True) == []


def test_the_server_of_each_alias_that_has_locks_is_looked_at(own: RedisServer, settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "pages": {"BACKEND": OURS, "LOCATION": NOWHERE}}
    with own.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    found = {message.id: message.msg for message in check(deploy=True) if message.level > INFO}
    assert found.keys() == {"django_redislock.W004", "django_redislock.W005"}
    assert "(cache alias 'pages')" in found["django_redislock.W004"]
    assert "(cache alias 'locks')" in found["django_redislock.W005"]


@pytest.mark.parametrize(
    ("info", "options", "expected"),
    [
        *[(f"redis_version:{version}", {}, ["E006"]) for version in ("6.0.16", "5.0.14")],
        *[(f"redis_version:{version}", {}, []) for version in ("6.2.0", "")],
        ("redis_version:7.0.15", {"lock": b""}, ["W004"]),  # it hangs up on locks
        (None, {}, ["W004"]),  # it does not answer, and is given up soon
    ],
)
def test_a_server_that_is_too_old_or_fails_is_found(
    info: str | None,
    options: dict[str, Any],
    expected: list[str],
    pretender: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if info is None:
        limit(monkeypatch, check_patience=0.2)
    pretender(None if info is None else f"# Server\r\n{info}\r\nredis_mode:standalone\r\n".encode(), **options)
    assert ids(deploy=True) == expected


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        (["resetchannels"], ["W006"]),
        (["resetchannels", "&redislock*"], []),
        (["&*", "-subscribe"], ["W006"]),
        (["&*", "-info"], ["W004"]),
        (["&*", "-eval"], ["E008"]),
        (["&*", "-evalsha"], []),  # locks do without
        (["&*", "-zadd"], ["E008"]),
        (["&*", "-pexpire"], ["E008"]),
        (["&*", "-publish"], ["W006"]),
        (["&*", "resetkeys", "~other*"], ["E008"]),
    ],
)
def test_missing_rights_are_found(
    rights: list[str], expected: list[str], acl: Callable[..., None], settings: Any
) -> None:
    acl("+@all", *rights)
    assert ids(deploy=True) == expected
    settings.REDISLOCK = {**settings.REDISLOCK, "POLL": True}  # then nobody needs rights to channels
    assert ids(deploy=True) == [id for id in expected if id != "W006"]


def test_the_hint_to_missing_rights_helps(acl: Callable[..., None]) -> None:
    rights = ["+info", *(rule for rule in redis_user()[0] if rule[0] == "+" and "sub" not in rule), "-publish"]
    acl(*rights, "resetchannels")
    hint = only("W006", deploy=True).hint or ""
    acl(*rights, "resetchannels", *hint.rpartition("... ")[2].split())
    assert ids(deploy=True) == []


@pytest.mark.parametrize(
    ("renamed", "works"), [(["EVALSHA"], True), (["EVAL", "EVALSHA"], False), (["ZADD"], False)], ids=str
)
def test_commands_that_were_renamed_away_are_found_where_locks_need_them(
    renamed: list[str], works: bool, settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "renamed.conf").write_text("".join(f'rename-command {command} ""\n' for command in renamed))
    with redis_server(include=tmp_path / "renamed.conf") as running:
        use(settings, running.url)
        try:
            with Lock("a"):
                assert works
        except LockUnavailable:
            assert not works
        assert ids(deploy=True) == ["E008"] * (not works)


def test_a_replica_is_found(own: RedisServer, server: RedisServer) -> None:
    with own.client() as client:
        client.replicaof("127.0.0.1", str(server.port))
    message = only("E008", deploy=True)
    assert "(cache alias 'locks') refuses all locks: it is a read-only replica." in message.msg
