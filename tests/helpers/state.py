"""Reads the state of locks in Redis."""

import re
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import redis

from django_redislock import Lock, LockInfo, LockNotOwned, get_lock, list_locks
from redisserver import RedisServer
from tests.inside import PREFIX, keys_of, note_round_trips

from .actors import GENEROUS, server_time

NAME = "order:42"
LOCK, QUEUE, WAITERS, INDEX, FENCE = keys_of(NAME).all
TOKEN = "a-token-that-the-tests-know"


def fence_of(lock: Lock) -> int | None:
    """The fence of a lock; None if this thread or task does not hold it."""
    try:
        return lock.fence
    except LockNotOwned:
        return None


def put(client: Any, name: str, owner: str = "host:1:Main", *, since: int = 0, ttl: int = 60, waiters: int = 0) -> None:
    """A held lock, as the scripts write it; ``since``: seconds ago, which orders the fences too."""
    now = server_time(client)
    began = now - since * 1_000_000
    client.set(f"{PREFIX}lock:{name}", f"{'t' * 22} channel c {began} {began} - {owner}", px=ttl * 1000)
    client.zadd(f"{PREFIX}index", {name: now + ttl * 1_000_000})
    for number in range(waiters):
        client.zadd(f"{PREFIX}queue:{name}", {f"id-{number}": now + number})


def hold(*names: str, **options: Any) -> str:
    """Acquire the locks and detach them, so that they stay held; return the token of the last."""
    for name in names:
        lock = Lock(name, **options)
        assert lock.acquire(blocking=False)
        token = lock.detach()
    return token


def known(name: str = NAME, using: str | None = None) -> LockInfo:
    """What everybody is told of a lock that is held."""
    info = get_lock(name, using=using)
    assert info is not None
    return info


def waiters(name: str = NAME, using: str | None = None) -> int:
    """How many wait, as everybody is told; 0 where it is free."""
    info = get_lock(name, using=using)
    return 0 if info is None else info.waiters


def held() -> list[str]:
    """The names of all held locks."""
    return [lock.name for lock in list_locks()]


def value(client: redis.Redis, name: str = NAME) -> list[str]:
    """The value of a lock, split into words; empty when nobody holds it."""
    found = client.get(keys_of(name).lock)
    return found.decode().split(" ") if isinstance(found, bytes) else []


def holder(client: redis.Redis, name: str = NAME) -> str:
    """The id of the attempt that holds the lock in Redis; empty if nobody holds it."""
    return "".join(value(client, name)[:1])


def flag(client: redis.Redis, name: str = NAME) -> str:
    """c: acquired or confirmed, h: handed over, d: detached; empty if nobody holds the lock."""
    return "".join(value(client, name)[2:3])


def queued(client: redis.Redis, name: str = NAME) -> int:
    """How many wait, according to whichever key has more entries."""
    keys = keys_of(name)
    marks = sum(bool(client.hexists(keys.all[2], field)) for field in "!?")
    return max(int(client.zcard(keys.queue)), int(client.hlen(keys.all[2])) - marks)


def leftovers(client: redis.Redis) -> list[str]:
    """The keys of locks, except those that are meant to stay or that expire by themselves."""
    keys = sorted(key.decode().removeprefix(PREFIX) for key in client.scan_iter())
    return [key for key in keys if key != "fence" and not key.startswith(("gone:", "sequence:"))]


def count(client: redis.Redis, command: str) -> int:
    stats: Any = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


def outlives(ttl: float, name: str) -> bool:
    """Whether a lock is held for longer than its TTL by now, so that it must have been renewed."""
    info = get_lock(name)
    assert info is not None, f"{name} is free"
    return info.held_for > 1.2 * ttl


_LINE = re.compile(r"\S+ \[\d+ (.*?)\] (\".*)")
# Valkey does not escape the quotes within a word
_WORD = re.compile(r'"((?:[^"\\]|\\.|"(?! "|\s*$))*)"')


class Seen(NamedTuple):
    """One command; ``words`` as MONITOR writes them, unusual characters escaped."""

    source: str  # "lua" for those of scripts, else an address
    words: list[str]

    @property
    def name(self) -> str:
        return self.words[0].lower()


class Monitor:
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=GENEROUS)
        self._lines = self._socket.makefile("rb")
        self._socket.sendall(b"MONITOR\r\n")
        assert self._lines.readline() == b"+OK\r\n"

    def seen(self) -> Iterator[Seen]:
        """What has happened since the last call, in order; the commands of a script follow the call of the script."""
        with self._server.client() as client:
            client.echo("the end")
        for line in iter(self._lines.readline, b""):
            found = _LINE.match(line.decode("latin-1"))
            assert found, line
            seen = Seen(found[1], _WORD.findall(found[2]))
            if seen.words == ["ECHO", "the end"]:
                return
            yield seen

    def scripts(self) -> Iterator[tuple[Seen, list[Seen]]]:
        """Each script call since the last call, with the commands that the script ran."""
        calls: list[tuple[Seen, list[Seen]]] = []
        for seen in self.seen():
            if seen.source == "lua":
                calls[-1][1].append(seen)
            else:
                calls.append((seen, []))
        return (call for call in calls if call[0].name in ("evalsha", "eval"))

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Touched:
    """Which keys (and channels of shards) commands touch, according to the server."""

    def __init__(self, server: RedisServer) -> None:
        self._client = server.client()
        self.close = self._client.close
        self._places: dict[str, tuple[int, int, int]] = {}

    def by(self, seen: Seen) -> set[str]:
        words, name = seen.words, seen.name
        if name not in self._places:
            about = self._client.execute_command("COMMAND", "INFO", name)[name]
            assert "movablekeys" not in about["flags"]
            self._places[name] = about["first_key_pos"], about["last_key_pos"], about["step_count"]
        first, last, step = self._places[name]
        return set(words[first : len(words) + last + 1 if last < 0 else last + 1 : step]) if first else set()


@pytest.fixture
def endless(client: redis.Redis) -> None:
    """Two locks that never expire (the first was once ours, the second never was), and an intact one."""
    put(client, "persisted", owner="web-1")
    client.persist(f"{PREFIX}lock:persisted")
    client.zadd(INDEX, {"persisted": server_time(client) - 1})  # when its lease would have ended
    client.set(f"{PREFIX}lock:foreign", "<b>of somebody else</b>")
    assert not Lock("foreign").acquire(blocking=False)  # one of our attempts queues for it
    put(client, "sound")


@pytest.fixture
def two_aliases(settings: Any, server: RedisServer) -> None:
    """Locks are on ``locks``, and those of ``cache.lock()`` on ``default``; ``again`` leads to the same Redis as
    ``default``."""
    mine = {"BACKEND": "django_redislock.cache.RedisCache", "LOCATION": server.url}
    locks = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://127.0.0.1:{server.port}/1"}
    settings.CACHES = {"default": mine, "again": {**mine, "VERSION": 2}, "locks": locks}
    settings.REDISLOCK = {"CACHE": "locks"}


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    note_round_trips(monkeypatch, after=lambda port, commands: made.append(len(commands)))
    return made


def put_member(client: redis.Redis, pool: str, member: str, *, ttl: int | None = 60) -> None:
    """A held member of a pool, as the scripts write it; with ``ttl`` None, it never expires."""
    now = server_time(client)
    value = f"{'t' * 22} channel c {now} {now} - host:1:Main"
    client.hset(f"{PREFIX}held:pool:{pool}:", member, value)
    client.zadd(f"{PREFIX}index", {f"pool:{pool}:{member}": now + (ttl or 0) * 1_000_000})
    if ttl is not None:
        client.zadd(f"{PREFIX}busy:pool:{pool}:", {member: now + ttl * 1_000_000})
