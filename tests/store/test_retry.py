"""Calls that meet stale connections, a restart, a server that is gone, or one that may not write for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import django_redislock
from django_redislock import Lock, LockUnavailable
from redisserver import RedisServer, redis_server
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import count, queued
from tests.helpers.ways import BOTH, DJANGO_REDIS, NAME, alias, caches, kill
from tests.inside import limit, wait_for_replicas

from .conftest import Eventually, all_at_once, use

pytestmark = pytest.mark.usefixtures("own_pools")

# -- connections that break -----------------------------------------------------------------------------------------


@BOTH
def test_a_restart_of_the_server_makes_no_call_fail(backend: str, crowd: Crowd) -> None:
    me = crowd()
    with redis_server() as own, caches(alias(backend, own.url)):
        asking: list[Callable[[], bool]] = [
            lambda: me(Lock("a"), "acquire", blocking=False),
            lambda: me(Lock("a"), "acquire", blocking_timeout=5),
            lambda: me(Lock("a"), "locked") is False,
            lambda: me(Lock("a"), "info") is None,
            lambda: me(django_redislock, "list_locks") == [],
            lambda: me(django_redislock, "force_release", "a") is None,
        ]
        for ask in asking:
            people = [crowd() for _ in range(4)]  # so that many connections go stale at once
            for asked in [person.start(Lock("b"), "locked") for person in people]:
                asked.result(GENEROUS)
            own.stop()
            own.start()
            assert ask()


@BOTH
def test_killed_connections_make_no_call_fail(
    backend: str, crowd: Crowd, server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    me, you, lock, following = crowd(), crowd(), Lock("a", ttl=60), Lock("a", ttl=60)
    with caches(alias(backend, server.url, client_name=NAME)):
        all_at_once(use, 8)
        me(lock, "acquire")
        waiting = you.start(following, "acquire", blocking_timeout=60)
        eventually(lambda: queued(client, "a") == 1)
        asking: list[Callable[[], Any]] = [
            lambda: me(lock, "extend", 1),
            lambda: me(lock, "owned"),
            lambda: me(lock, "info"),
            lambda: me(django_redislock, "list_locks"),
            lambda: me(Lock("b"), "acquire"),
        ]
        for ask in asking:
            kill(client)
            assert ask()
        eventually(lambda: queued(client, "a") == 1)
        assert not waiting.done()
        kill(client)
        me(lock, "release")
        assert waiting.result(GENEROUS)
        kill(client)
        you(following, "release")
        kill(client)
        all_at_once(use, 8)


def test_a_server_that_is_gone_is_lock_unavailable_and_comes_back(
    me: Any, own: RedisServer, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    all_at_once(use, 8)
    me(Lock("b"), "locked")
    own.stop()
    with pytest.raises(LockUnavailable, match=r"cannot be reached for the lock 'a' .*alias 'default'"):
        me(Lock("a"), "acquire")
    own.start()
    all_at_once(use, 8)
    assert me(Lock("a"), "acquire")


# -- scripts that are not known, or not allowed to write ------------------------------------------------------------


def test_an_unknown_script_is_sent_in_full_once(me: Any, client: redis.Redis) -> None:
    client.script_flush()
    client.config_resetstat()
    for _ in range(3):
        me(Lock("a"), "info")
    assert (count(client, "eval"), count(client, "evalsha")) == (1, 3)


@pytest.fixture
def replica(server: RedisServer, settings: Any, eventually: Eventually) -> Iterator[redis.Redis]:
    """A replica of the server, and the alias ``replica`` for it."""
    with redis_server() as second, server.client() as master, second.client() as client:
        master.config_set("repl-diskless-sync-delay", 0)
        client.replicaof("127.0.0.1", str(server.port))
        eventually(lambda: client.info("replication")["master_link_status"] == "up")
        settings.CACHES = {**settings.CACHES, "replica": {"BACKEND": DJANGO_REDIS, "LOCATION": second.url}}
        yield client


def test_a_server_that_requires_a_password_is_a_clear_error(me: Any, own: RedisServer) -> None:
    with caches(alias(DJANGO_REDIS, own.url)), own.client() as inside:
        inside.config_set("requirepass", "secret")
        with pytest.raises(LockUnavailable, match=r"The server wants a password|Authentication required"):
            me(Lock(NAME), "acquire", blocking=False)
        inside.config_set("requirepass", "")


def test_the_error_about_missing_replicas_is_the_same_if_the_script_was_unknown(
    me: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_replicas(monkeypatch, 3.0)
    limit(monkeypatch, answer_grace=5.0)  # for one WAIT, not for two
    client.script_flush()
    with pytest.raises(LockUnavailable, match="0 of 1 replicas acknowledged it"):
        me(Lock(NAME, replicas=1), "acquire", blocking=False)


def test_a_server_that_stays_read_only_is_lock_unavailable(
    me: Any, replica: redis.Redis, retry_for: Callable[[float], None]
) -> None:
    retry_for(0.1)
    refused = r"^Redis refuses to serve the lock 'a' .*: You can't write against a read only replica\.$"
    with pytest.raises(LockUnavailable, match=refused):
        me(Lock("a", using="replica"), "acquire")


def test_a_server_that_is_read_only_for_a_moment_is_asked_again(
    me: Any, replica: redis.Redis, eventually: Eventually, retry_for: Callable[[float], None]
) -> None:
    retry_for(30.0)

    acquired = me.start(Lock("a", using="replica"), "acquire")
    # the refusals are counted by some servers only, and some replicas know the scripts of their master
    eventually(lambda: acquired.done() or count(replica, "evalsha") + count(replica, "eval") > 2)
    assert not acquired.done()
    replica.replicaof("NO", "ONE")
    assert acquired.result(GENEROUS) is True


# -- what is refused for good ---------------------------------------------------------------------------------------


def test_a_command_that_redis_refuses_is_not_retried(me: Any, client: redis.Redis) -> None:
    me(django_redislock, "force_release", "a")  # the scripts are known
    client.set("redislock{0}:index", "foreign")
    client.config_resetstat()
    with pytest.raises(LockUnavailable, match="Redis refuses to serve the lock 'a'"):
        me(django_redislock, "force_release", "a")
    assert count(client, "evalsha") + count(client, "eval") <= 2
