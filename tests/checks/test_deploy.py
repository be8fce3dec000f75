"""Checks of the server, for ``check --deploy``."""
# mypy: disable-error-code="misc, untyped-decorator"

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from django.core.checks import INFO

from django_redislock import Lock, LockUnavailable, list_locks
from redisserver import RedisServer, redis_server
from tests.checks.conftest import OURS, Set, check, ids, only
from tests.helpers.actors import until
from tests.helpers.docs import redis_user
from tests.helpers.proxy import proxy
from tests.inside import limit


@pytest.fixture
def own(caching: Set) -> Iterator[RedisServer]:
    with redis_server() as running:
        caching(locks={"LOCATION": running.url})
        yield running


def become(own: RedisServer, caching: Set, *rights: str) -> None:
    """Use that server as a user with these rights."""
    with own.client() as client:
        client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "~*", *rights)
    caching(locks={"LOCATION": f"redis://narrow:secret@127.0.0.1:{own.port}/5"})


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
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def note(thread: threading.Thread) -> None:
        if threading.current_thread() is threading.main_thread():  # else it sends what an earlier test has left
            started.append(thread)
        start(thread)

    with own.client() as client:
        until(lambda: len(client.client_list()) == 1)  # whoever started the server has left
        threads = {*threading.enumerate()}
        monkeypatch.setattr(threading.Thread, "start", note)
        assert ids(deploy=True) == []
        assert started == []
        until(lambda: {*threading.enumerate()} <= threads)
        until(lambda: len(client.client_list()) == 1)
    assert list_locks() == []


@pytest.mark.parametrize("options", [{}, {"CLIENT_CLASS": "tests.helpers.ways.ClusterClient"}], ids=str)
def test_a_server_that_evicts_is_found_for_each_alias_with_locks(
    options: dict[str, str], own: RedisServer, caching: Set, settings: Any
) -> None:
    caching(pages={"BACKEND": OURS, "LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": options})
    with own.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        found = {message.id: message.msg for message in check(deploy=True) if message.level > INFO}
        assert "(cache alias 'pages')" in found["django_redislock.W004"]
        assert "(cache alias 'locks')" in found["django_redislock.W005"]
        assert "as soon as it has a memory limit (maxmemory-policy allkeys-lru)" in found["django_redislock.W005"]
        del settings.CACHES["pages"]
        client.config_set("maxmemory", "100mb")
        assert "when its memory is full" in only("W005", deploy=True).msg


@pytest.mark.parametrize(("version", "expected"), [(b"6.0.16", ["E006"]), (b"6.2.0", []), (b"", []), (None, ["W004"])])
def test_a_server_too_old_or_silent_is_found(version: Any, expected: Any, caching: Set, monkeypatch: Any) -> None:
    if version is None:
        limit(monkeypatch, check_patience=0.2)
    Pretender.info = None if version is None else b"# Server\r\nredis_version:%s\r\n" % version
    with ThreadingTCPServer(("127.0.0.1", 0), Pretender) as running:
        running.daemon_threads = True
        threading.Thread(target=running.serve_forever, args=(0.01,)).start()
        caching(locks={"LOCATION": f"redis://127.0.0.1:{running.server_address[1]}/0"})
        assert ids(deploy=True) == expected
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
        (["&*", "-unlink"], ["E008"]),
        (["&*", "-publish"], ["W006"]),
    ],
)
@pytest.mark.parametrize("poll", [False, True], ids=["woken", "polling"])
def test_missing_rights_are_found(
    poll: bool, rights: Any, expected: Any, own: RedisServer, caching: Set, settings: Any
) -> None:
    become(own, caching, "+@all", *rights)
    settings.REDISLOCK = {**settings.REDISLOCK, "POLL": poll}  # then nobody needs rights to channels
    assert ids(deploy=True) == [id for id in expected if not poll or id != "W006"]


def test_a_database_that_the_server_does_not_have_is_found(own: RedisServer, caching: Set) -> None:
    caching(locks={"LOCATION": f"redis://127.0.0.1:{own.port}/99"})
    assert "refuses all locks: " in (told := only("E008", deploy=True).msg)
    assert "DB index is out of range" in told


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("user", ["", ":wrong@", "nobody:right@"])
def test_a_server_that_lets_nobody_in_with_that_password_is_found(
    user: str, clustered: bool, own: RedisServer, caching: Set, settings: Any
) -> None:
    settings.REDISLOCK = {"CACHE": "locks", "CLUSTER": clustered, "RETRY_FOR": 0}
    with own.client() as client:
        client.config_set("requirepass", "right")
        caching(locks={"LOCATION": f"redis://{user}127.0.0.1:{own.port}/0"})
        assert "lets nobody in" in only("E010", deploy=True).msg
        client.config_set("requirepass", "")


def test_a_proxy_that_hangs_up_on_who_subscribes_is_inspected_where_waiters_poll(
    own: RedisServer, caching: Set, settings: Any
) -> None:
    settings.REDISLOCK = {**settings.REDISLOCK, "POLL": True}
    with proxy(own.port) as network:
        network.lose_answer("SUBSCRIBE")
        caching(locks={"LOCATION": network.url})
        assert ids(deploy=True) == []


def test_the_hint_to_missing_rights_helps(own: RedisServer, caching: Set) -> None:
    rights = ["+info", *(rule for rule in redis_user()[0] if rule[0] == "+" and "sub" not in rule), "-publish"]
    become(own, caching, *rights, "resetchannels")
    hint = only("W006", deploy=True).hint or ""
    become(own, caching, *rights, "resetchannels", *hint.rpartition("... ")[2].split())
    assert ids(deploy=True) == []


@pytest.mark.parametrize(("renamed", "works"), [(["EVALSHA"], True), (["EVAL", "EVALSHA"], False)], ids=str)
def test_where_commands_were_renamed_away_the_check_fails_if_locks_do(
    renamed: list[str], works: bool, caching: Set, tmp_path: Path
) -> None:
    (tmp_path / "renamed.conf").write_text("".join(f'rename-command {command} ""\n' for command in renamed))
    with redis_server(include=tmp_path / "renamed.conf") as running:
        caching(locks={"LOCATION": running.url})
        with nullcontext() if works else pytest.raises(LockUnavailable):
            Lock("a").acquire()
        assert ids(deploy=True) == ["E008"] * (not works)


def test_a_server_with_cluster_mode_is_no_error_while_it_is_alone(caching: Set) -> None:
    with redis_server(cluster_enabled="yes") as own, own.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True))
        caching(locks={"LOCATION": own.url})
        assert ids(deploy=True) == []


def test_a_server_that_is_no_cluster_is_found_where_the_setting_says_it_is_one(own: RedisServer, settings: Any) -> None:
    settings.REDISLOCK = {"CACHE": "locks", "CLUSTER": True, "RETRY_FOR": 0}
    assert "(cache alias 'locks') is no node of a Redis Cluster" in only("E009", deploy=True).msg
    with pytest.raises(LockUnavailable, match=r"enabled on this node\. REDISLOCK\['CLUSTER'\] says that this is"):
        Lock("a").acquire()
    with own.client() as client:
        until(lambda: len(client.client_list()) == 1)  # what has asked it has left


def test_a_replica_is_found(own: RedisServer, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with own.client() as client:
        client.replicaof("127.0.0.1", str(server.port))
    limit(monkeypatch, check_patience=5.0)  # it is asked for so long, in vain
    assert "(cache alias 'locks') refuses all locks: " in (told := only("E008", deploy=True).msg)
    assert "read only replica" in told
