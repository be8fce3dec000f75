from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_redislock import FairLock, Lock, LockLost, LockUnavailable, force_release, get_lock, list_locks
from django_redislock.connection import MAX_CONNECTIONS, Backend, get_backend
from django_redislock.listener import get_listener
from django_redislock.watchdog import watchdog
from redisserver import RedisServer, redis_server

from .processes import Worker
from .ways import BOTH, DJANGO, DJANGO_REDIS, NAME, PASSWORD, Sentinels, alias, caches, connections, kill, stopped

Eventually = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("own_pools")


def exercise(eventually: Eventually) -> None:
    """Everything that a lock does with its connections: take, queue, hand over, renew, look, extend, force."""
    got = threading.Event()

    def wait() -> None:
        with FairLock("a", blocking_timeout=60):
            got.set()

    waiter = threading.Thread(target=wait)
    with Lock("a", ttl=4.5) as lock:  # not less: a busy machine may stand still for a second
        waiter.start()
        eventually(lambda: (info := lock.info()) and info.waiters == 1)
        soon = eventually(lock.info).expires + timedelta(seconds=0.2)
        eventually(lambda: eventually(lock.info).expires > soon)  # the watchdog
        assert [info.name for info in list_locks()] == ["a"]
        assert lock.extend(60)
        assert lock.owned()
    assert got.wait(30)
    waiter.join()
    forced = Lock("b", ttl=60)
    forced.acquire()
    assert force_release("b")
    eventually(lambda: forced.lost)  # the listener
    with pytest.raises(LockLost):
        forced.release()
    assert list_locks() == []


# -- what an alias can be given -------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"decode_responses": True},
        {"protocol": 3},
        {"protocol": 3, "decode_responses": True},
        {"pool_class": "redis.connection.BlockingConnectionPool", "max_connections": 3, "timeout": 1},
        {"socket_timeout": 0.2, "socket_connect_timeout": 5},
        {"socket_keepalive": True, "retry_on_timeout": True, "health_check_interval": 1, "encoding": "latin-1"},
    ],
    ids=lambda options: repr(sorted(options)),
)
def test_locks_work_whatever_the_alias_is_given(
    backend: str, keywords: dict[str, Any], eventually: Eventually, server: RedisServer
) -> None:
    with caches(alias(backend, server.url, **keywords)):
        exercise(eventually)


@BOTH
def test_the_key_prefix_of_the_alias_leads_every_key_and_channel(
    backend: str, server: RedisServer, client: redis.Redis
) -> None:
    site = {**alias(backend, server.url), "KEY_PREFIX": "site"}
    with caches(site, other=alias(backend, server.url)), Lock("a"), Lock("b", using="other"):
        assert get_backend().channel.startswith("site:redislock{0}:wake:")
        with override_settings(REDISLOCK={"KEY_PREFIX": "mine"}), Lock("c"):
            keys = sorted(key.decode() for key in client.scan_iter())
    assert [key for key in keys if ":lock:" in key] == [
        "redislock{0}:lock:b",
        "site:mine{0}:lock:c",
        "site:redislock{0}:lock:a",
    ]
    assert all(key.startswith(("redislock{0}:", "site:mine{0}:", "site:redislock{0}:")) for key in keys)


@BOTH
def test_the_database_of_the_alias_is_used(backend: str, server: RedisServer) -> None:
    with caches(alias(backend, server.url.removesuffix("/0") + "/3")), Lock("a"), server.client(db=3) as third:
        assert third.exists("redislock{0}:lock:a")


@BOTH
def test_a_short_socket_timeout_does_not_end_a_long_wait(backend: str, server: RedisServer) -> None:
    with caches(alias(backend, server.url, socket_timeout=0.2)):
        got = threading.Event()

        def wait() -> None:
            with FairLock("a", blocking_timeout=60):
                got.set()

        with Lock("a", ttl=60):
            waiter = threading.Thread(target=wait)
            waiter.start()
            assert Lock("a").acquire(blocking_timeout=2.5) is False
            assert not got.is_set()
        assert got.wait(4)  # woken, not by a look of its own
        waiter.join()


@BOTH
def test_a_holder_can_release_while_many_wait_on_a_pool_of_one(
    backend: str, server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    with caches(alias(backend, server.url, max_connections=1, client_name=NAME)):
        lock = FairLock("a", ttl=60)
        lock.acquire()
        through = []

        def wait() -> None:
            with FairLock("a", blocking_timeout=60):
                through.append(threading.get_ident())

        threads = [threading.Thread(target=wait) for _ in range(60)]
        for thread in threads:
            thread.start()
        eventually(lambda: (info := lock.info()) and info.waiters == 60)
        assert len(connections(client)) <= 3  # one for commands, the listener's, the watchdog's
        lock.release()
        for thread in threads:
            thread.join(60)
        assert len(set(through)) == 60


@BOTH
def test_the_number_of_connections_is_bounded(backend: str, server: RedisServer, client: redis.Redis) -> None:
    with caches(alias(backend, server.url, client_name=NAME)):
        seen: list[int] = []
        gate = threading.Barrier(100)

        def work(number: int) -> None:
            gate.wait(60)
            for _ in range(5):
                with Lock(f"a:{number % 10}", blocking_timeout=60):
                    pass
            seen.append(len(connections(client)))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(seen) == 100
        assert 1 <= max(seen) <= MAX_CONNECTIONS + 2


def test_who_finds_no_connection_free_is_told_so_in_the_end(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redislock.connection.WAIT_FOR_CONNECTION", 0.01)
    with caches(alias(DJANGO_REDIS, server.url, max_connections=1)):
        backend = get_backend()
        connection = backend._connections.borrow()
        with pytest.raises(LockUnavailable, match="no connection became free"):
            Lock("a").acquire()
        backend._connections.give_back(connection)
        with Lock("a"):
            pass


def test_a_late_answer_is_given_to_nobody_else(server: RedisServer, client: redis.Redis) -> None:
    with caches(alias(DJANGO_REDIS, server.url, socket_timeout=0.1, max_connections=1)):
        backend = get_backend()
        assert backend.execute(("ECHO", "first")) == b"first"
        with stopped(server), pytest.raises(redis.TimeoutError):
            backend.execute(("ECHO", "late"))
        _retry(lambda: backend.execute(("ECHO", "between")), b"between")
        with stopped(server), pytest.raises(redis.TimeoutError):
            backend.execute_many([("ECHO", "late"), ("ECHO", "later")])
        _retry(lambda: backend.execute(("ECHO", "next")), b"next")
        _retry(lambda: backend.execute_many([("ECHO", "1"), ("NO-SUCH",), ("ECHO", "2")])[::2], [b"1", b"2"])


def _retry(ask: Callable[[], Any], expected: Any) -> None:
    """Ask again as long as a slow machine makes the short timeout strike; any answer must be the right one."""
    for _ in range(50):
        try:
            assert ask() == expected
        except redis.TimeoutError:
            continue
        return
    pytest.fail("the server never answered in time")


# -- SCRIPT FLUSH ---------------------------------------------------------------------------------------------------


def test_scripts_may_be_flushed_before_every_call(client: redis.Redis, eventually: Eventually) -> None:
    client.script_flush()
    lock = FairLock("a", ttl=60)
    assert lock.acquire()
    client.script_flush()
    assert lock.info()
    client.script_flush()
    assert lock.extend(1)
    client.script_flush()
    assert not FairLock("a", blocking=False).acquire()
    client.script_flush()
    assert not FairLock("a").acquire(blocking_timeout=0.1)  # and withdraws
    client.script_flush()
    lock.release()
    with Lock("a"):
        client.script_flush()
        assert get_lock("a")
        client.script_flush()
        assert list_locks()
    lock.acquire()
    client.script_flush()
    assert force_release("a")
    assert not lock.locked()


def test_scripts_may_be_flushed_before_a_renewal(client: redis.Redis, eventually: Eventually) -> None:
    with Lock("a", ttl=3), Lock("b", ttl=3), Lock("c", ttl=3):
        client.script_flush()

        def renewed() -> bool:
            left = [client.pttl(f"redislock{{0}}:lock:{name}") for name in "abc"]
            fell.update(name for name, ms in zip("abc", left, strict=True) if ms < 2500)
            return fell == set("abc") and all(ms > 2600 for ms in left)

        fell: set[str] = set()
        eventually(renewed)


def test_scripts_may_be_flushed_before_a_handover(client: redis.Redis, eventually: Eventually) -> None:
    got = threading.Event()

    def wait() -> None:
        with FairLock("a", blocking_timeout=60):
            client.script_flush()
            got.set()

    threads = [threading.Thread(target=wait) for _ in range(5)]
    with FairLock("a", ttl=60) as lock:
        for thread in threads:
            thread.start()
        eventually(lambda: (info := lock.info()) and info.waiters == 5)
        client.script_flush()
    for thread in threads:
        thread.join(60)
    assert got.is_set()
    assert list_locks() == []


# -- ways to the server ---------------------------------------------------------------------------------------------


@BOTH
def test_a_unix_socket(backend: str, server: RedisServer, eventually: Eventually, client: redis.Redis) -> None:
    with caches(alias(backend, f"unix://{server.socket}?db=2", client_name=NAME)):
        exercise(eventually)
        ours = connections(client)
    assert len(ours) >= 3
    assert {(connection["addr"].split(":")[0], connection["db"]) for connection in ours} == {(str(server.socket), "2")}


@BOTH
def test_a_password_in_the_url(backend: str, guarded: RedisServer, eventually: Eventually) -> None:
    with caches(alias(backend, f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/0")):
        exercise(eventually)


@BOTH
def test_a_password_among_the_options(backend: str, guarded: RedisServer, eventually: Eventually) -> None:
    given = alias(backend, guarded.url)
    given["OPTIONS"] |= {"PASSWORD" if backend == DJANGO_REDIS else "password": PASSWORD}
    with caches(given):
        exercise(eventually)


@BOTH
def test_a_user_with_rights_to_the_locks_alone(backend: str, guarded: RedisServer, eventually: Eventually) -> None:
    url = f"redis://site:{quote(PASSWORD, safe='')}@127.0.0.1:{guarded.port}/0"
    with caches({**alias(backend, url), "KEY_PREFIX": "site"}):
        exercise(eventually)
        assert not get_listener(get_backend()).polled


def test_a_wrong_password_is_a_clear_error(guarded: RedisServer) -> None:
    wrong = alias(DJANGO_REDIS, f"redis://:wrong@127.0.0.1:{guarded.port}/0")
    with caches(wrong), pytest.raises(LockUnavailable, match=r"alias 'default'.*password"):
        Lock("a").acquire()


@BOTH
def test_tls_with_certificates_on_both_sides(
    backend: str, tls_port: int, certificate: Path, eventually: Eventually
) -> None:
    files = {"ssl_ca_certs": str(certificate), "ssl_certfile": str(certificate), "ssl_keyfile": str(certificate)}
    with caches(alias(backend, f"rediss://127.0.0.1:{tls_port}/0", ssl_cert_reqs="required", **files)):
        exercise(eventually)
        assert get_listener(get_backend()).connection.__class__ is redis.SSLConnection


def test_a_certificate_that_cannot_be_verified_is_a_clear_error(tls_port: int) -> None:
    unknown = alias(DJANGO_REDIS, f"rediss://127.0.0.1:{tls_port}/0")
    with caches(unknown), pytest.raises(LockUnavailable, match=r"(?i)certificate.verify.failed"):
        Lock("a").acquire()


# -- several servers ------------------------------------------------------------------------------------------------


@BOTH
def test_of_several_locations_the_first_has_the_locks(backend: str, eventually: Eventually) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(redis_server(repl_diskless_sync_delay=0)) for _ in range(2))
        master, replica = (stack.enter_context(server.client()) for server in (first, second))
        replica.replicaof("127.0.0.1", str(first.port))
        eventually(lambda: replica.info("replication")["master_link_status"] == "up")
        stack.enter_context(caches(alias(backend, [first.url, second.url], client_name=NAME)))
        exercise(eventually)
        assert connections(master)
        assert not connections(replica)
        with Lock("a"):
            assert master.exists("redislock{0}:lock:a")


def test_a_sharded_alias_is_a_clear_error(server: RedisServer) -> None:
    given = alias(DJANGO_REDIS, [server.url, server.url.removesuffix("/0") + "/1"])
    given["OPTIONS"]["CLIENT_CLASS"] = "django_redis.client.ShardClient"
    with caches(given), pytest.raises(ImproperlyConfigured, match=r"'default' spreads .* over several servers"):
        Lock("a").acquire()


def test_a_held_lock_survives_a_failover_by_sentinel(sentinels: Sentinels, eventually: Eventually) -> None:
    with caches(sentinels.alias()):
        exercise(eventually)
        old, new = sentinels.clients
        assert connections(old)
        assert not connections(new)
        got: list[int | None] = []

        def wait() -> None:
            with FairLock("a", ttl=60, blocking_timeout=60) as lock:
                got.append(lock.fence)

        with FairLock("a", ttl=60) as lock:
            fence = lock.fence or 0
            waiter = threading.Thread(target=wait)
            waiter.start()
            eventually(lambda: (info := lock.info()) and info.waiters == 1)
            sentinels.replicate()
            sentinels.fail_over()
            eventually(lambda: old.info("replication")["role"] == "slave")
            assert lock.owned()
            assert not lock.lost
        waiter.join(60)
        assert (got[0] or 0) > fence
        assert connections(new)
        exercise(eventually)


def test_locks_work_again_after_the_master_died(sentinels: Sentinels, eventually: Eventually) -> None:
    with caches(sentinels.alias()):
        with Lock("a") as lock:
            fence = lock.fence or 0
        sentinels.replicate()
        sentinels.wait_for_it(300)  # else the replica may be the master before we have asked
        sentinels.servers[0].stop()
        with pytest.raises(LockUnavailable, match="alias 'default'"):
            Lock("a").acquire()
        sentinels.wait_for_it(0.5)
        eventually(lambda: sentinels.master() == sentinels.servers[1].port)

        def works() -> bool:
            try:
                with Lock("a", blocking_timeout=1) as lock:
                    return (lock.fence or 0) > fence
            except LockUnavailable:
                return False

        eventually(works)
        exercise(eventually)


def test_a_late_answer_of_a_master_behind_sentinel_is_given_to_nobody_else(sentinels: Sentinels) -> None:
    given = sentinels.alias()
    given["OPTIONS"] |= {"SOCKET_TIMEOUT": 0.1}
    with caches(given):
        backend = get_backend()
        _retry(lambda: backend.execute(("ECHO", "first")), b"first")
        with stopped(sentinels.servers[0]), pytest.raises(redis.TimeoutError):
            backend.execute(("ECHO", "late"))
        _retry(lambda: backend.execute(("ECHO", "next")), b"next")


# -- aliases that cannot hold locks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"CACHE": "locks"}])
def test_an_alias_that_is_missing_names_those_that_there_are(settings: dict[str, str]) -> None:
    problem = r"no cache alias 'locks' in CACHES.*There are: default, memory\."
    with override_settings(REDISLOCK=settings), pytest.raises(ImproperlyConfigured, match=problem):
        Lock("a", using=None if settings else "locks").acquire()


@pytest.mark.parametrize(
    ("backend", "location"), [("filebased.FileBasedCache", "/nonexistent"), ("db.DatabaseCache", "table")]
)
def test_an_alias_without_redis_is_a_clear_error(backend: str, location: str) -> None:
    given = {"BACKEND": f"django.core.cache.backends.{backend}", "LOCATION": location}
    problem = rf"'default' \(.*{backend}\) has no Redis connection.*memory"
    with caches(given), pytest.raises(ImproperlyConfigured, match=problem):
        Lock("a").acquire()


@BOTH
def test_a_location_that_is_no_url_of_redis_is_a_clear_error(backend: str) -> None:
    problem = r"'default' cannot be used for locks: Redis URL must specify"
    with caches(alias(backend, "localhost:6379")), pytest.raises(ImproperlyConfigured, match=problem):
        Lock("a").acquire()


@pytest.mark.parametrize("prefix", ["{site}", "a{", "}"])
def test_a_key_prefix_with_braces_is_a_clear_error(prefix: str, server: RedisServer) -> None:
    problem = r"KEY_PREFIX of the cache alias 'default' contains braces"
    given = {**alias(DJANGO_REDIS, server.url), "KEY_PREFIX": prefix}
    with caches(given), pytest.raises(ImproperlyConfigured, match=problem) as caught:
        Lock("a").acquire()
    assert repr(prefix) in str(caught.value)


@pytest.mark.parametrize("backend", ["locmem.LocMemCache", "dummy.DummyCache"])
def test_a_cache_in_memory_gets_a_server_in_memory(
    backend: str, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    with caches({"BACKEND": f"django.core.cache.backends.{backend}"}):
        assert get_backend().memory
        exercise(eventually)


def test_a_server_in_memory_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    memory = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    problem = r'pip install "django-redislock\[memory\]"'
    with caches(memory), pytest.raises(ImproperlyConfigured, match=problem):
        Lock("a").acquire()


def test_two_aliases_in_memory_have_locks_of_their_own() -> None:
    memory = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    with caches(memory, other=memory), Lock("a"), Lock("a", using="other"):
        assert not Lock("a").acquire(blocking=False)


def test_two_key_prefixes_in_memory_are_on_one_server() -> None:
    memory = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    with caches(memory), Lock("a"):
        with override_settings(REDISLOCK={"KEY_PREFIX": "other"}), Lock("a"):
            assert get_backend().execute(("EXISTS", "redislock{0}:lock:a", "other{0}:lock:a")) == 2
        assert Lock("a").locked()


# -- connections that break -----------------------------------------------------------------------------------------


def all_at_once(work: Callable[[int], object], count: int) -> None:
    """Run ``work`` in many threads, which all begin together."""
    gate = threading.Barrier(count)
    troubles: list[BaseException] = []

    def run(number: int) -> None:
        gate.wait(60)
        try:
            work(number)
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert troubles == []


def use(number: int) -> None:
    for _ in range(5):
        with Lock(f"a:{number}"):
            pass


@BOTH
def test_a_restarted_server_surfaces_in_no_call(backend: str) -> None:
    with redis_server() as own, caches(alias(backend, own.url)):
        calls: list[Callable[[], bool]] = [
            lambda: Lock("a").acquire(blocking=False),
            lambda: FairLock("a").acquire(blocking_timeout=1),
            lambda: Lock("a").locked() or True,
            lambda: Lock("a").info() is None,
            lambda: list_locks() == [],
            lambda: force_release("a") is None,
        ]
        for call in calls:
            all_at_once(use, 8)  # so that many connections go stale at once
            own.stop()
            own.start()
            assert call()
        own.stop()
        own.start()
        all_at_once(use, 8)


@BOTH
def test_killed_connections_surface_in_no_call(
    backend: str, server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    with caches(alias(backend, server.url, client_name=NAME)):
        all_at_once(use, 8)
        got = threading.Event()

        def wait() -> None:
            with FairLock("a", blocking_timeout=60):
                got.set()

        waiter = threading.Thread(target=wait)
        with FairLock("a", ttl=60) as lock:
            waiter.start()
            eventually(lambda: (info := lock.info()) and info.waiters == 1)
            for call in (lambda: lock.extend(1), lock.owned, lock.info, list_locks, lambda: Lock("b").acquire()):
                kill(client)
                assert call()
            eventually(lambda: (info := lock.info()) and info.waiters == 1)
            kill(client)
        assert not lock.lost
        assert got.wait(30)
        waiter.join()
        kill(client)
        all_at_once(use, 8)


def test_a_server_that_is_gone_is_lock_unavailable_and_comes_back() -> None:
    with redis_server() as own, caches(alias(DJANGO_REDIS, own.url)):
        all_at_once(use, 8)
        own.stop()
        with pytest.raises(LockUnavailable, match=r"cannot be reached for the lock 'a' .*alias 'default'"):
            Lock("a").acquire()
        own.start()
        all_at_once(use, 8)


# -- forks ----------------------------------------------------------------------------------------------------------

FORK = """
from django_redislock.connection import get_backend
from django_redislock.listener import get_listener

held = Lock("held", ttl=600)
held.acquire()
while not get_listener(get_backend()).ready:
    time.sleep(0.01)
say("parent", get_backend().channel)
child = os.fork()
if child == 0:
    hear()
    for _ in range(200):
        with Lock("b"):
            pass
    other = Lock("other", ttl=600)
    other.acquire()
    while not get_listener(get_backend()).ready:
        time.sleep(0.01)
    say("child", get_backend().channel, held.token, len(list_locks()))
    hear()
    with Lock("c"):
        say("still", "alive")
    hear()
else:
    say("forked", child)
    for _ in range(200):
        with Lock("d"):
            pass
    say("done", held.owned())
    time.sleep(600)
"""


def test_a_forked_child_has_connections_of_its_own_and_keeps_none_of_its_parent(
    start: Callable[..., Worker], client: redis.Redis, eventually: Eventually
) -> None:
    parent = start(FORK)
    (channel,) = parent.expect("parent")
    (child,) = map(int, parent.expect("forked"))
    try:
        assert dict(client.pubsub_numsub(channel)) == {channel.encode(): 1}
        before = {connection["id"] for connection in client.client_list()}
        parent.tell()
        assert parent.expect("done") == ["True"]
        own_channel, token, locks = parent.expect("child")
        assert own_channel != channel
        assert (token, locks) == ("None", "2")
        assert {connection["id"] for connection in client.client_list()} - before
        parent.signal(signal.SIGKILL)
        parent.process.wait()
        # were the child to keep the parent's socket open, Redis would count the parent as alive
        eventually(lambda: dict(client.pubsub_numsub(channel)) == {channel.encode(): 0})
        assert dict(client.pubsub_numsub(own_channel)) == {own_channel.encode(): 1}
        parent.tell()
        assert parent.expect("still") == ["alive"]
    finally:
        os.kill(child, signal.SIGKILL)


# -- changed settings -----------------------------------------------------------------------------------------------


def test_changed_caches_reset_the_backends(server: RedisServer, client: redis.Redis, eventually: Eventually) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        first = get_backend()
        assert get_backend("default") is first
        exercise(eventually)
        listener = get_listener(first)
        assert connections(client)
        with redis_server() as other, caches(alias(DJANGO_REDIS, other.url)), Lock("a"):
            assert get_backend() is not first
            with other.client() as there:
                assert there.exists("redislock{0}:lock:a")
            assert not client.exists("redislock{0}:lock:a")
            eventually(lambda: not connections(client))
            assert listener._thread is not None
            listener._thread.join(30)
            assert not listener._thread.is_alive()
        exercise(eventually)
        assert get_listener(get_backend()) is not listener


def test_a_backend_that_was_closed_is_given_to_nobody_any_more(
    fresh: None, client: redis.Redis, eventually: Eventually
) -> None:
    closed = get_backend()
    closed.close()
    assert get_backend() is not closed
    with Lock(NAME, ttl=600):  # it is held for long, so its process listens
        eventually(lambda: client.pubsub_numsub(get_backend().channel)[0][1])
    again = get_backend()
    closed.close()
    assert get_backend() is again


def test_what_is_sent_after_a_change_leaves_no_connection_behind(
    server: RedisServer, client: redis.Redis, eventually: Eventually
) -> None:
    with caches(alias(DJANGO_REDIS, server.url, client_name=NAME)):
        backend = get_backend()
        lock = Lock("a", ttl=60)
        lock.acquire()
        token = lock.detach()
    # a waiter that left as the settings changed, say
    watchdog.send_farewell(backend, "a", token, unknown=False)
    eventually(lambda: not client.exists("redislock{0}:lock:a"))
    eventually(lambda: not connections(client))


def test_changed_settings_choose_another_alias_at_once(server: RedisServer) -> None:
    third = alias(DJANGO_REDIS, server.url.removesuffix("/0") + "/3")
    with caches(alias(DJANGO_REDIS, server.url), third=third), Lock("a"):
        with override_settings(REDISLOCK={"CACHE": "third"}):
            assert get_backend().alias == "third"
            assert not Lock("a").locked()
        assert Lock("a").locked()


def test_threads_that_come_first_together_share_one_backend(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Backend] = []
    make = Backend.__init__

    def slowly(self: Backend, *args: Any) -> None:
        made.append(self)
        make(self, *args)

    monkeypatch.setattr(Backend, "__init__", slowly)
    with caches(alias(DJANGO, server.url)):
        all_at_once(lambda _: get_backend(), 20)
    assert len(made) == 1
