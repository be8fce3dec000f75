"""Ways to connect to Redis: entries for CACHES, and the servers that they lead to."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme
from django.test import override_settings
from django_redis.pool import ConnectionFactory

from redisserver import RedisServer, redis_server

from . import tls
from .sentinels import NAME as MASTER
from .sentinels import SentinelGroup

Alias = dict[str, Any]

DJANGO_REDIS = "django_redis.cache.RedisCache"
DJANGO = "django.core.cache.backends.redis.RedisCache"
BOTH = pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGO], ids=["django-redis", "django"])
NAME = "the-locks"  # the name of our connections in CLIENT LIST
PASSWORD = "s3cret @/:#?%"


def alias(backend: str, location: Any, **keywords: Any) -> Alias:
    """An entry for CACHES that passes ``keywords`` to connections and pool, in each backend's own way."""
    options = keywords
    if backend == DJANGO_REDIS:
        pool_class = {"CONNECTION_POOL_CLASS": keywords.pop("pool_class")} if "pool_class" in keywords else {}
        options = {"CONNECTION_POOL_KWARGS": keywords, **pool_class}
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}


def caches(default: Alias, **others: Alias) -> override_settings:
    return override_settings(CACHES={"default": default, **others})


def connections(client: redis.Redis) -> list[dict[str, str]]:
    return [connection for connection in client.client_list() if connection["name"] == NAME]


def kill(client: redis.Redis) -> None:
    """Close every connection except this one."""
    for kind in ("normal", "pubsub"):
        client.client_kill_filter(_type=kind, skipme=True)


@contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@pytest.fixture
def own_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of this test's own: django-redis keeps one pool per URL for ever, whatever the OPTIONS."""
    monkeypatch.setattr(ConnectionFactory, "_pools", {})


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A server with a password, and with a user who may touch only the locks."""
    user = f"on resetchannels ~site:redislock* &site:redislock* +@all -@admin >{PASSWORD}"
    with redis_server(requirepass=PASSWORD) as running, running.client() as client:
        client.execute_command("ACL", "SETUSER", "site", *user.split(" ", 6))
        yield running


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1, its key, and the certificate of its authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    for part in [issued.private_key_pem, *issued.cert_chain_pems, authority.cert_pem]:
        part.write_to_path(path, append=True)
    return path


@pytest.fixture(scope="module")
def tls_port(certificate: Path, server: RedisServer) -> Iterator[int]:
    """One before the session's server, since not every redis-server is built with TLS."""
    command = [sys.executable, tls.__file__, str(certificate), str(server.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


class Sentinels(SentinelGroup):
    """A master, a replica and one or several sentinels that watch them."""

    def __init__(self, number: int = 1) -> None:
        super().__init__(replicas=1, sentinels=number)
        self.port = self.sentinels[0].port
        self.client = self.sentinel_clients[0]
        self.fail_over = self.promote  # the old master learns of it later, and goes on as a replica

    def replicate(self) -> None:
        """Wait until the replica has everything written so far. WAIT covers only what its own connection wrote, and
        right after a full sync nothing may be streamed for a second, though the link is "up"."""
        self.clients[0].set("mark", 1)
        assert self.clients[0].wait(1, 10_000) == 1

    def alias(self) -> Alias:
        return {
            "BACKEND": DJANGO_REDIS,
            "LOCATION": f"redis://{MASTER}/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": self.sentinel_addresses,
                "SOCKET_TIMEOUT": 2,
                "CONNECTION_POOL_KWARGS": {"client_name": NAME},
            },
        }


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    with closing(Sentinels()) as running:
        yield running
