"""Checks of the server, for ``check --deploy``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from time import monotonic
from typing import Any

import pytest
from django.core.checks import INFO

from django_redislock import Lock, LockUnavailable, list_locks
from redisserver import RedisServer, redis_server
from tests.checks import BACKEND, OURS, check, ids, only
from tests.helpers.docs import redis_user

NOWHERE = "redis://127.0.0.1:1/0"


def use(settings: Any, url: str, **more: Any) -> None:
    settings.CACHES = {**settings.CACHES, "locks": {"BACKEND": BACKEND, "LOCATION": url, **more}}


@pytest.fixture
def own(settings: Any) -> Iterator[RedisServer]:
    """A server of this test alone, behind the alias of the locks."""
    with redis_server() as running:
        use(settings, running.url)
        yield running


def become(own: RedisServer, settings: Any, *rights: str) -> None:
    """Use that server as a user with these rights."""
    with own.client() as client:
        client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "~*", *rights)
    use(settings, f"redis://narrow:secret@127.0.0.1:{own.port}/5")


class Pretender(StreamRequestHandler):
    """Answers INFO with this (None: never answers anything), and otherwise like Redis as far as the check goes."""

    info: bytes | None

    def handle(self) -> None:
        while line := self.rfile.readline():
            command, *_ = [self.rfile.read(int(self.rfile.readline()[1:]) + 2) for _ in range(int(line[1:]))]
            if self.info is not None:
                text = b"$%d\r\n%s\r\n" % (len(self.info), self.info)
                lock = b"*5\r\n:1\r\n" + 4 * b":0\r\n"
                answers = {b"INFO\r\n": text, b"EVAL\r\n": b":0\r\n", b"EVALSHA\r\n": lock}
                self.wfile.write(answers.get(command, b"+OK\r\n"))


def test_checks_start_no_threads_and_leave_neither_connection_nor_lock(
    own: RedisServer, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    with own.client() as client:
        eventually(lambda: len(client.client_list()) == 1)  # whoever started the server has left
        threads = threading.active_count()
        assert ids(deploy=True) == []
        assert threading.active_count() == threads
        eventually(lambda: len(client.client_list()) == 1)
    assert list_locks() == []


def test_a_server_that_evicts_is_found_for_each_alias_that_has_locks(own: RedisServer, settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "pages": {"BACKEND": OURS, "LOCATION": NOWHERE}}
    with own.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        found = {message.id: message.msg for message in check(deploy=True) if message.level > INFO}
        assert "(cache alias 'pages')" in found["django_redislock.W004"]
        assert "(cache alias 'locks')" in found["django_redislock.W005"]
        assert "as soon as it has a memory limit (maxmemory-policy allkeys-lru)" in found["django_redislock.W005"]
        del settings.CACHES["pages"]
        client.config_set("maxmemory", "100mb")
        assert "when its memory is full" in only("W005", deploy=True).msg


@pytest.mark.parametrize(
    ("version", "expected"), [(b"6.0.16", ["E006"]), (b"6.2.0", []), (b"", []), (None, ["W004"])], ids=str
)
def test_a_server_that_is_too_old_or_does_not_answer_is_found(
    version: bytes | None, expected: list[str], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version is None:
        monkeypatch.undo()  # it waits for two seconds, as documented
    Pretender.info = None if version is None else b"# Server\r\nredis_version:%s\r\n" % version
    with ThreadingTCPServer(("127.0.0.1", 0), Pretender) as running:
        running.daemon_threads = True
        threading.Thread(target=running.serve_forever, args=(0.01,)).start()
        use(settings, f"redis://127.0.0.1:{running.server_address[1]}/0")
        began = monotonic()
        assert ids(deploy=True) == expected
        assert version is not None or 1.9 < monotonic() - began < 4.5
        running.shutdown()


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
        (["&*", "-publish"], ["W006"]),
    ],
)
def test_missing_rights_are_found(rights: list[str], expected: list[str], own: RedisServer, settings: Any) -> None:
    become(own, settings, "+@all", *rights)
    assert ids(deploy=True) == expected
    settings.REDISLOCK = {**settings.REDISLOCK, "POLL": True}  # then nobody needs rights to channels
    assert ids(deploy=True) == [id for id in expected if id != "W006"]


def test_the_hint_to_missing_rights_helps(own: RedisServer, settings: Any) -> None:
    rights = ["+info", *(rule for rule in redis_user()[0] if rule[0] == "+" and "sub" not in rule), "-publish"]
    become(own, settings, *rights, "resetchannels")
    hint = only("W006", deploy=True).hint or ""
    become(own, settings, *rights, "resetchannels", *hint.rpartition("... ")[2].split())
    assert ids(deploy=True) == []


@pytest.mark.parametrize(("renamed", "works"), [(["EVALSHA"], True), (["EVAL", "EVALSHA"], False)], ids=str)
def test_where_commands_were_renamed_away_the_check_fails_if_locks_do(
    renamed: list[str], works: bool, settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "renamed.conf").write_text("".join(f'rename-command {command} ""\n' for command in renamed))
    with redis_server(include=tmp_path / "renamed.conf") as running:
        use(settings, running.url)
        with nullcontext() if works else pytest.raises(LockUnavailable):
            Lock("a").acquire()
        assert ids(deploy=True) == ["E008"] * (not works)


def test_a_replica_is_found(own: RedisServer, server: RedisServer) -> None:
    with own.client() as client:
        client.replicaof("127.0.0.1", str(server.port))
    assert "(cache alias 'locks') refuses all locks: it is a read-only replica." in only("E008", deploy=True).msg
