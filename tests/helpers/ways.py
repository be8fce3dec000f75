"""Ways to Redis: what an alias in CACHES can be given, and the servers that such aliases lead to."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import redis
import trustme
from django.test import override_settings
from django_redis.pool import ConnectionFactory
from redis.backoff import NoBackoff
from redis.retry import Retry

from redisserver import RedisServer, _free_port, redis_server

from . import tls

Eventually = Callable[..., Any]
Alias = dict[str, Any]

DJANGO_REDIS = "django_redis.cache.RedisCache"
DJANGO = "django.core.cache.backends.redis.RedisCache"
BOTH = pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGO], ids=["django-redis", "django"])
NAME = "the-locks"  # of our connections, as CLIENT LIST shows them


def alias(backend: str, location: Any, **keywords: Any) -> Alias:
    """An alias whose connections and pool get ``keywords``, in the way that each backend wants them."""
    if backend == DJANGO_REDIS:
        pool_class = keywords.pop("pool_class", None)
        options: dict[str, Any] = {"CONNECTION_POOL_KWARGS": keywords}
        if pool_class:
            options["CONNECTION_POOL_CLASS"] = pool_class
    else:
        options = keywords
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}


@contextmanager
def caches(default: Alias, **others: Alias) -> Iterator[None]:
    with override_settings(CACHES={"default": default, **others}):
        yield


def connections(client: redis.Redis) -> list[dict[str, str]]:
    """Ours, as the server sees them."""
    return [connection for connection in client.client_list() if connection["name"] == NAME]


def kill(client: redis.Redis) -> None:
    """Cut every connection but this one."""
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
    """django-redis keeps one pool per URL for ever, whatever the OPTIONS."""
    monkeypatch.setattr(ConnectionFactory, "_pools", {})


PASSWORD = "s3cret @/:#?%"


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A server with a password, and with a user who may touch nothing but the locks."""
    with redis_server(requirepass=PASSWORD) as running, running.client() as client:
        client.acl_setuser(
            "site",
            enabled=True,
            reset_channels=True,
            passwords=[f"+{PASSWORD}"],
            keys=["site:redislock*"],
            channels=["site:redislock*"],
            categories=["+@all", "-@admin"],
        )
        yield running


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 with its key, and that of its authority, in one file."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    for part in [issued.private_key_pem, *issued.cert_chain_pems, authority.cert_pem]:
        part.write_to_path(path, append=True)
    return path


@pytest.fixture(scope="module")
def tls_port(certificate: Path, server: RedisServer) -> Iterator[int]:
    """A port that speaks TLS, wants a certificate of its clients too, and leads to the session's server.

    Not every redis-server is built with TLS; this end is the same for all of them.
    """
    command = [sys.executable, tls.__file__, str(certificate), str(server.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


class Sentinels:
    """A master, a replica and the sentinel that watches them."""

    def __init__(self, stack: ExitStack, eventually: Eventually) -> None:
        self.servers = [stack.enter_context(redis_server(repl_diskless_sync_delay=0)) for _ in range(2)]
        # a master that is demoted closes its connections
        patient: dict[str, Any] = {"retry": Retry(NoBackoff(), 3), "retry_on_error": [redis.ConnectionError]}
        self.clients = [stack.enter_context(server.client(**patient)) for server in self.servers]
        self.clients[1].replicaof("127.0.0.1", str(self.servers[0].port))
        eventually(lambda: self.clients[1].info("replication")["master_link_status"] == "up")
        self.port = _free_port()
        conf = self.servers[0].folder / "sentinel.conf"
        conf.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.servers[0].folder}\n"
            f"sentinel monitor tickets 127.0.0.1 {self.servers[0].port} 1\n"
            "sentinel down-after-milliseconds tickets 500\nsentinel failover-timeout tickets 5000\n"
        )
        log = stack.enter_context((self.servers[0].folder / "sentinel.log").open("wb"))
        command = [self.servers[0].executable, str(conf), "--sentinel"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.kill)
        self.client = stack.enter_context(redis.Redis(port=self.port, socket_timeout=5))
        eventually(self.knows_the_replica)
        try:
            # demotes the old master within a second instead of ten, from Redis 7 on
            self.client.execute_command("SENTINEL", "DEBUG", "INFO-PERIOD", "100", "PUBLISH-PERIOD", "100")
        except redis.ResponseError:
            pass

    def knows_the_replica(self) -> bool:
        try:
            (slave,) = self.client.sentinel_slaves("tickets")
        except (redis.RedisError, ValueError):
            return False
        return slave["master-link-status"] == "ok" and not slave["is_sdown"]

    def replicate(self) -> None:
        """Wait until the replica has all that was written so far. WAIT waits for what its own connection wrote, and
        right after a full sync nothing may be streamed for a second, though the link is "up"."""
        self.clients[0].set("mark", 1)
        assert self.clients[0].wait(1, 10_000) == 1

    def fail_over(self) -> None:
        """Make the replica the master; the old one lives on as a replica. A sentinel that finds its servers slow, on a
        busy machine, gives up on what it was asked to do: it is asked again."""
        asked, deadline = -math.inf, monotonic() + 60
        while self.master() != self.servers[1].port:
            assert monotonic() < deadline
            if monotonic() > asked + 10:
                asked = monotonic()
                try:
                    self.client.sentinel_failover("tickets")
                except redis.ResponseError:
                    pass  # it still tries, or sees no good replica at this moment
            sleep(0.01)

    def wait_for_it(self, seconds: float) -> None:
        """The sentinel believes that a server is dead when it has not answered for so long."""
        self.client.sentinel_set("tickets", "down-after-milliseconds", round(seconds * 1000))

    def master(self) -> int:
        return int(self.client.sentinel_get_master_addr_by_name("tickets")[1])

    def alias(self) -> Alias:
        return {
            "BACKEND": DJANGO_REDIS,
            "LOCATION": "redis://tickets/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": [("127.0.0.1", self.port)],
                "SOCKET_TIMEOUT": 2,
                "CONNECTION_POOL_KWARGS": {"client_name": NAME},
            },
        }


@pytest.fixture
def sentinels(eventually: Eventually) -> Iterator[Sentinels]:
    with ExitStack() as stack:
        yield Sentinels(stack, eventually)
