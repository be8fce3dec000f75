"""Checks of the server, for ``check --deploy``."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis
from django.core.checks import INFO

from django_redislock import Lock, LockUnavailable, list_locks
from django_redislock.checks import server as server_checks
from redisserver import RedisServer, redis_server
from tests.checks import BACKEND, check, ids
from tests.helpers.docs import redis_user


@pytest.fixture
def own(settings: Any) -> Iterator[RedisServer]:
    """A server of this test alone, behind the alias of the locks."""
    with redis_server() as running:
        use(settings, running.url)
        yield running


def use(settings: Any, url: str) -> None:
    settings.CACHES = {**settings.CACHES, "locks": {"BACKEND": BACKEND, "LOCATION": url}}


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


def test_without_deploy_nobody_asks_the_server(settings: Any) -> None:
    use(settings, "redis://127.0.0.1:1/0")
    assert ids() == []


def test_a_server_out_of_reach_is_no_more_than_a_warning(settings: Any) -> None:
    use(settings, "redis://127.0.0.1:1/0")
    ((message),) = check(deploy=True)
    assert message.id == "django_redislock.W004"
    assert "refused" in message.msg


def test_credentials_that_cannot_be_had_are_no_more_than_a_warning(own: RedisServer, settings: Any) -> None:
    class Provider(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            raise RuntimeError("the vault is sealed")

    options = {"CONNECTION_POOL_KWARGS": {"credential_provider": Provider()}}
    locks = {"BACKEND": BACKEND, "LOCATION": f"{own.url}?client_name=sealed", "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "locks": locks}
    ((message),) = check(deploy=True)
    assert message.id == "django_redislock.W004"
    assert "the vault is sealed" in message.msg


def test_a_server_that_does_not_answer_is_given_up_soon(
    pretender: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_checks.PATIENCE <= 2
    monkeypatch.setattr(server_checks, "PATIENCE", 0.2)
    pretender(None)
    begin = monotonic()
    assert ids(deploy=True) == ["W004"]
    assert monotonic() - begin < 10


def test_checks_start_no_threads_and_leave_no_connection(
    own: RedisServer, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    with own.client() as client:
        eventually(lambda: len(client.client_list()) == 1)  # whoever started the server has left
        threads = threading.active_count()
        assert ids(deploy=True) == []
        assert threading.active_count() == threads
        eventually(lambda: len(client.client_list()) == 1)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_found(policy: str, own: RedisServer) -> None:
    with own.client() as client:
        client.config_set("maxmemory-policy", policy)
        ((message),) = check(deploy=True)
        assert message.id == "django_redislock.W005"
        assert f"as soon as it has a memory limit (maxmemory-policy {policy})" in message.msg
        client.config_set("maxmemory", "100mb")
        assert "when its memory is full" in check(deploy=True)[0].msg
        client.config_set("maxmemory-policy", "noeviction")
    assert ids(deploy=True) == []


def test_the_server_of_each_alias_that_has_locks_is_looked_at(own: RedisServer, settings: Any) -> None:
    pages = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "pages": pages}
    with own.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    found = {message.id: message.msg for message in check(deploy=True) if message.level > INFO}
    assert found.keys() == {"django_redislock.W004", "django_redislock.W005"}
    assert "(cache alias 'pages')" in found["django_redislock.W004"]
    assert "(cache alias 'locks')" in found["django_redislock.W005"]


@pytest.mark.parametrize(("version", "expected"), [("6.0.16", ["E006"]), ("5.0.14", ["E006"]), ("6.2.0", []), ("", [])])
def test_a_server_that_is_too_old_is_found(version: str, expected: list[str], pretender: Callable[..., None]) -> None:
    pretender(f"# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n".encode())
    assert ids(deploy=True) == expected


def test_a_server_that_hangs_up_on_locks_is_a_warning(pretender: Callable[..., None]) -> None:
    pretender(b"redis_version:7.0.15\r\n", lock=b"")
    assert ids(deploy=True) == ["W004"]


def acl(client: redis.Redis, *rights: str) -> None:
    client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "~*", *rights)


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        (["+@all", "resetchannels"], ["W006"]),
        (["+@all", "resetchannels", "&redislock*"], []),
        (["+@all", "&*", "-subscribe"], ["W006"]),
        (["+@all", "&*", "-info"], ["W004"]),
        (["+@all", "&*", "-eval"], ["E008"]),
        (["+@all", "&*", "-evalsha"], []),  # locks do without
        (["+@all", "&*", "-zadd"], ["E008"]),
        (["+@all", "&*", "-pexpire"], ["E008"]),
        (["+@all", "&*", "-publish"], ["W006"]),
        (["+@all", "&*", "resetkeys", "~other*"], ["E008"]),
    ],
)
def test_missing_rights_are_found(rights: list[str], expected: list[str], own: RedisServer, settings: Any) -> None:
    with own.client() as client:
        acl(client, *rights)
    use(settings, f"redis://narrow:secret@127.0.0.1:{own.port}/0")
    assert ids(deploy=True) == expected


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
        messages = check(deploy=True)
    assert [message.id for message in messages] == ["django_redislock.E008"] * (not works)


def test_the_lock_that_the_check_uses_is_gone_afterwards(own: RedisServer) -> None:
    assert ids(deploy=True) == []
    assert list_locks() == []
    with own.client() as client:
        assert {key.rpartition(b":")[0] for key in client.keys("*")} <= {b"redislock{0}", b"redislock{0}:gone"}


def test_where_all_locks_poll_nobody_needs_rights_to_channels(own: RedisServer, settings: Any) -> None:
    with own.client() as client:
        acl(client, "+@all", "resetchannels", "-subscribe")
    use(settings, f"redis://narrow:secret@127.0.0.1:{own.port}/0")
    assert ids(deploy=True) == ["W006"]
    settings.REDISLOCK = {**settings.REDISLOCK, "POLL": True}
    assert ids(deploy=True) == []
    with own.client() as client:
        acl(client, "+@all", "-eval")
    assert ids(deploy=True) == ["E008"]


def test_a_replica_is_found(own: RedisServer, server: RedisServer) -> None:
    with own.client() as client:
        client.replicaof("127.0.0.1", str(server.port))
    ((message),) = check(deploy=True)
    assert message.id == "django_redislock.E008"
    assert "(cache alias 'locks') refuses all locks: it is a read-only replica." in message.msg


def test_the_hint_to_missing_rights_helps(own: RedisServer, settings: Any) -> None:
    with own.client() as client:
        rights = ["+info", *(rule for rule in redis_user()[0] if rule[0] == "+" and "sub" not in rule)]
        acl(client, *rights, "-publish", "resetchannels")
        use(settings, f"redis://narrow:secret@127.0.0.1:{own.port}/5")
        ((message),) = check(deploy=True)
        acl(client, *rights, "-publish", "resetchannels", *(message.hint or "").rpartition("... ")[2].split())
    assert ids(deploy=True) == []
