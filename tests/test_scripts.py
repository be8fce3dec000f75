from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis

import django_redislock
from django_redislock import ConditionalValue, Counter, Lock, LockUnavailable, force_release, scripts
from django_redislock.connection import get_backend
from django_redislock.names import make_keys
from django_redislock.scripts import Script
from django_redislock.steps import run
from redisserver import RedisServer, redis_server

FOLDER = Path(django_redislock.__file__).parent / "scripts"
SOURCES = {path.stem: path.read_text() for path in FOLDER.glob("*.lua")}
PIECES = {name: text for name, text in SOURCES.items() if text.startswith("-- (shared piece)")}
SCRIPTS = {name: text for name, text in SOURCES.items() if name not in PIECES}

# fakeredis has these, and no cmsgpack, bit or struct
PROVIDED = "KEYS ARGV redis string table math cjson tonumber tostring unpack pairs ipairs"
KEYWORDS = "and break do else elseif end false for function if in local nil not or repeat return then true until while"


def code_of(source: str) -> str:
    """The script without comments and texts."""
    return re.sub(r"'[^'\n]*'", "''", re.sub(r"--.*", "", source))


def test_there_are_scripts_and_shared_pieces() -> None:
    assert set(SCRIPTS) == {
        *("acquire", "checkout", "release", "renew", "force", "info", "members", "look"),
        *("compare", "counter"),
    }
    assert set(PIECES) == {
        *("grant", "enqueue", "pass_on", "hand_on", "once"),
        *("grant_member", "give_back", "member", "pool"),
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_opens_with_its_keys_arguments_and_answer(name: str) -> None:
    head = re.match(r"(--.*\n)+", SCRIPTS[name])
    assert head is not None
    lines = head.group().splitlines()
    assert lines[0].startswith(f"-- {name}: ")
    opening = [line.split()[1] for line in lines[1:] if not line.startswith("--  ")]
    assert opening == ["KEYS", "ARGV", "answer"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_uses_the_keys_that_it_names(name: str) -> None:
    named = re.search(r"^-- KEYS +(.*)$", SCRIPTS[name], re.M)
    assert named is not None
    pool = ", ".join(f"pool {number}" for number in range(7))
    names = re.sub(r" \((?!7 keys).*", "", re.sub(r"pool \(7 keys.*?\)", pool, re.sub(r" \(stems.*?\)", "", named[1])))
    source = Script(name).source
    used = {int(number) for number in re.findall(r"KEYS\[(\d+)\]", source)}
    assert max(used) == (5 if "KEYS[#KEYS]" in source else len(names.split(", ")))


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_key_is_declared(name: str) -> None:
    source = re.sub(r"--.*", "", Script(name).source)
    calls = re.findall(r"\bp?call(?:\('|, ')([A-Z]+)'(?:, ([^,)]+))?", source)
    assert len(calls) >= 5
    locals_ = re.findall(r"^local (.+) = (KEYS.+)$", source, re.M)
    declared = {
        name
        for names, values in locals_
        for name, value in zip(names.split(", "), values.split(", "), strict=True)
        if value.startswith("KEYS[")
    }
    # of a pool's members there may be thousands; their keys are made of declared ones, in the same slot
    declared.add("lock_stem")
    for command, first in calls:
        key = first.partition(" .. ")[0]
        assert key.startswith("KEYS[") or key in declared or command in {"TIME", "PUBLISH", "PUBSUB"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_shared_pieces_are_resolved(name: str) -> None:
    source = Script(name).source
    assert "#include" not in source
    for piece in re.findall(r"--#include (\w+)", SCRIPTS[name]):
        assert Script(piece).source.rstrip() in source


@pytest.mark.parametrize("piece", PIECES)
def test_every_shared_piece_is_shared(piece: str) -> None:
    assert sum(f"--#include {piece}\n" in source for source in SOURCES.values()) > 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_includes_what_it_calls(name: str) -> None:
    code = code_of(Script(name).source)
    functions = {piece: re.findall(r"^local function (\w+)", text, re.M) for piece, text in PIECES.items()}
    for piece, defined in functions.items():
        if defined:  # else it is made of statements
            called = any(re.search(rf"(?<!function )\b{function}\(", code) for function in defined)
            assert called == (Script(piece).source.rstrip() in Script(name).source)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_knows_no_globals_but_those_that_every_server_provides(name: str) -> None:
    code = code_of(Script(name).source)
    known = {*KEYWORDS.split(), *PROVIDED.split()}
    for pattern in (r"local function (\w+)", r"local ((?!function)\w+(?:, *\w+)*)", r"for (\w+(?:, *\w+)*)"):
        for names in re.findall(pattern, code):
            known.update(re.split(r", *", names))
    for names in re.findall(r"function \w+\(([^)]*)\)", code):
        known.update(re.split(r", *", names))
    used = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code))
    assert used <= known


def servers(client: redis.Redis) -> dict[str, Any]:
    return {"default": client, "memory": fakeredis.FakeRedis(server=fakeredis.FakeServer())}


@pytest.mark.parametrize("using", ["default", "memory"])
def test_a_server_refuses_a_script_that_sets_a_global(using: str, client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match=r"global|readonly"):
        servers(client)[using].eval("leaked = 1", 0)


@pytest.mark.parametrize("using", ["default", "memory"])
def test_no_script_sets_a_global(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend(using)
    monkeypatch.setattr(backend, "channel", "nobody-listens")
    keys = make_keys(backend.prefix, "a")

    def acquire(token: str, mode: str, wait: str = "1") -> scripts.Taken:
        options: dict[str, Any] = {"ttl": 30_000, "mode": mode, "wait": wait, "ticket": None, "owner": "somebody"}
        return run(scripts.acquire(backend, keys, "a", token * 22, **options))

    assert acquire("a", "L").state == scripts.GRANTED
    assert acquire("a", "L").state == scripts.ALREADY
    assert acquire("b", "F", "p").state == scripts.BUSY
    assert acquire("c", "L").state == scripts.BUSY
    assert run(scripts.info(backend, keys, "a", 100))[3] == 2
    for how in ("keep", "confirm", "add", "set"):
        assert run(scripts.renew(backend, keys, "a", "a" * 22, 30_000, how, 30_000)).state == scripts.HELD
    # the first waits by itself, the second's process is dead
    assert run(scripts.release(backend, keys, "a", "a" * 22)) == (True, False)
    assert acquire("b", "F").state == scripts.GRANTED
    assert run(scripts.force(backend, keys, "a"))
    assert run(scripts.renew(backend, keys, "a", "b" * 22, 30_000, "keep", 30_000)).state == scripts.LOST
    assert run(scripts.release(backend, keys, "a", "d" * 22, unknown=True)) == (False, False)
    assert acquire("d", "L").state == scripts.GONE
    assert run(scripts.info(backend, keys, "a", 100))[3] == 0

    value, counter = ConditionalValue("a", using=using), Counter("a", using=using)
    assert [value.setgt(1), value.setgt(1), value.setne("b"), value.deleq("b")] == [True, False, True, True]
    assert [counter.incr(), counter.reset(), counter.reset()] == [1, 1, 0]


def test_an_unknown_script_is_sent_in_full_once(client: redis.Redis) -> None:
    backend = get_backend()
    keys = make_keys(backend.prefix, "a")
    client.script_flush()
    client.config_resetstat()
    for _ in range(3):
        run(scripts.info(backend, keys, "a", 0))
    stats = client.info("commandstats")
    assert stats["cmdstat_eval"]["calls"] == 1
    assert stats["cmdstat_evalsha"]["calls"] == 3
    assert client.script_exists(Script("info").sha) == [True]


def test_every_script_has_an_identity_of_its_own() -> None:
    loaded = [Script(name) for name in SCRIPTS]
    assert len({script.sha for script in loaded}) == len(SCRIPTS)
    for script in loaded:
        command = script.by_sha(("k1", "k2"), (1, "b"))
        assert command == ("EVALSHA", script.sha, 2, "k1", "k2", 1, "b")
        assert script.by_source(command) == ("EVAL", script.source, 2, "k1", "k2", 1, "b")


def test_a_handover_that_finds_nobody_is_heard_nowhere_else(
    client: redis.Redis, server: RedisServer, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # PUBLISH counts the subscribers of this node alone, yet replicas (and a cluster's other nodes) pass messages on. A
    # process that still listens at a demoted master would believe a grant that was taken back: two holders.
    backend = get_backend()
    keys = make_keys(backend.prefix, "a")
    options: dict[str, Any] = {"ttl": 30_000, "mode": "F", "wait": "1", "ticket": None, "owner": "somebody"}
    with redis_server() as second, second.client() as replica, replica.pubsub() as elsewhere:
        client.config_set("repl-diskless-sync-delay", 0)
        replica.replicaof("127.0.0.1", str(server.port))
        eventually(lambda: replica.info("replication")["master_link_status"] == "up")
        elsewhere.subscribe("elsewhere")
        assert (elsewhere.get_message(timeout=20) or {})["type"] == "subscribe"

        assert run(scripts.acquire(backend, keys, "a", "a" * 22, **options)).state == scripts.GRANTED
        with monkeypatch.context() as patch:
            patch.setattr(backend, "channel", "elsewhere")
            assert run(scripts.acquire(backend, keys, "a", "b" * 22, **options)).state == scripts.BUSY
        assert run(scripts.release(backend, keys, "a", "a" * 22)) == (True, False)
        assert not client.exists(keys.lock)
        client.publish("elsewhere", "end")
        heard: list[bytes] = []
        while b"end" not in heard:
            heard.append((elsewhere.get_message(timeout=20) or {})["data"])
    assert [message for message in heard if message.startswith(b"g ")] == []


# -- how they are called --------------------------------------------------------------------------------------------


@pytest.fixture
def crowd(client: redis.Redis) -> Callable[[], None]:
    """Put more dead waiters into the queue of the lock ``a`` than one call drops."""

    def crowd() -> None:
        client.zadd(make_keys("redislock{0}:", "a").queue, {f"dead-{number}": number + 1 for number in range(6000)})

    return crowd


def test_an_acquire_that_meets_more_dead_waiters_than_one_call_drops_calls_again(
    client: redis.Redis, crowd: Callable[[], None]
) -> None:
    crowd()
    assert Lock("a").acquire(blocking=False)
    assert not client.exists(make_keys("redislock{0}:", "a").queue)


def test_a_release_that_meets_more_dead_waiters_than_one_call_drops_calls_again(
    client: redis.Redis, crowd: Callable[[], None]
) -> None:
    lock = Lock("a")
    lock.acquire()
    crowd()
    lock.release()
    keys = make_keys("redislock{0}:", "a")
    assert not client.exists(keys.queue, keys.lock)


def test_a_release_by_force_that_meets_more_dead_waiters_than_one_call_drops_calls_again(
    client: redis.Redis, crowd: Callable[[], None]
) -> None:
    Lock("a").acquire()
    crowd()
    assert force_release("a")
    keys = make_keys("redislock{0}:", "a")
    assert not client.exists(keys.queue, keys.lock)


@pytest.fixture
def replica(server: RedisServer, settings: Any, eventually: Callable[..., Any]) -> Iterator[redis.Redis]:
    """A replica of the server, and the alias ``replica`` for it."""
    with redis_server() as second, second.client() as client:
        client.replicaof("127.0.0.1", str(server.port))
        eventually(lambda: client.info("replication")["master_link_status"] == "up")
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": second.url}
        settings.CACHES = {**settings.CACHES, "replica": cache}
        yield client


def test_a_server_that_stays_read_only_is_lock_unavailable(replica: redis.Redis) -> None:
    with pytest.raises(LockUnavailable, match=r"Redis cannot be reached for the lock 'a'.*read only replica"):
        Lock("a", using="replica").acquire()


def test_a_server_that_is_read_only_for_a_moment_is_asked_again(
    replica: redis.Redis, eventually: Callable[..., Any], retry_for: Callable[[float], None]
) -> None:
    retry_for(30.0)
    lock = Lock("a", using="replica")

    def tries() -> int:
        # the refusals are counted by some servers only, and some replicas know the scripts of their master
        stats = replica.info("commandstats")
        return sum(int(stats.get(name, {}).get("calls", 0)) for name in ("cmdstat_evalsha", "cmdstat_eval"))

    with ThreadPoolExecutor(1) as pool:
        acquired = pool.submit(lock.acquire)
        eventually(lambda: acquired.done() or tries() > 2)
        replica.replicaof("NO", "ONE")
        assert acquired.result(30) is True
