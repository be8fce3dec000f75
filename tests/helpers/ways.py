"""Ways to connect to Redis: entries for CACHES, and the servers that they lead to."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme
from django.test import override_settings
from django_redis.client import DefaultClient
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from redisserver import RedisServer, redis_server

from .actors import asked_for, until

Alias = dict[str, Any]

DJANGO_REDIS = "django_redis.cache.RedisCache"
DJANGO = "django.core.cache.backends.redis.RedisCache"
BOTH = pytest.mark.parametrize("backend", [DJANGO_REDIS, DJANGO], ids=["django-redis", "django"])
NAME = "the-locks"  # the name of our connections in CLIENT LIST
PASSWORD = "s3cret @/:#?%"
HOST = "127.0.0.1"
MASTER = "tickets"  # as the sentinels know it
# ms. They find each other and the replicas, and demote an old master, within seconds instead of ten. But not too soon:
# after four PUBLISH-PERIODs sentinels undo a promotion of which its leader has not told them; and they promote only
# what has sent its INFO, which comes once a second then, in the last five PING-PERIODs
PERIODS = ("INFO-PERIOD", "100", "PING-PERIOD", "300", "PUBLISH-PERIOD", "500")
# ms after which the first sentinel considers a server dead, and those between two sentinels; if it were the same
# moment, each would elect itself
DOWN_AFTER, APART = 500, 200


def alias(backend: str, location: Any, **keywords: Any) -> Alias:
    """An entry for CACHES that passes ``keywords`` to connections and pool, in each backend's own way."""
    options = keywords
    if backend == DJANGO_REDIS:
        pool_class = {"CONNECTION_POOL_CLASS": keywords.pop("pool_class")} if "pool_class" in keywords else {}
        options = {"CONNECTION_POOL_KWARGS": keywords, **pool_class}
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}


class ClusterClient(DefaultClient):  # type: ignore[misc]
    """For ``CLIENT_CLASS``: the client of a cluster, which connects as soon as it is made."""

    def get_client(self, write: bool = True, **options: Any) -> RedisCluster:
        return RedisCluster.from_url(self._server[0])


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


# A port that speaks TLS, requires client certificates, and forwards to a plain port; it prints the port it listens at,
# and ends with its stdin. A process because asyncio leaves unfinished handshakes open, and tests of what *we* leave
# open must not see those
TLS = """
import asyncio, os, ssl, sys
from contextlib import closing, suppress

async def copy(reader, writer):
    with closing(writer), suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

async def forward(reader, writer):
    up_reader, up_writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(copy(reader, up_writer), copy(up_reader, writer))

async def main():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=sys.argv[1])
    context.load_cert_chain(sys.argv[1])
    context.verify_mode = ssl.CERT_REQUIRED
    listening = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def tls_port(certificate: Path, server: RedisServer) -> Iterator[int]:
    """One before the session's server, since not every redis-server is built with TLS."""
    command = [sys.executable, "-c", TLS, str(certificate), str(server.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


class SentinelServer(RedisServer):
    def __init__(self, watch: str) -> None:
        super().__init__()
        lines = f"bind {HOST}\ndir {self.folder}\nunixsocket {self.socket}\nsentinel {watch}\n"
        (self.folder / "sentinel.conf").write_text(lines)

    def command(self) -> list[str]:
        return [self.executable, str(self.folder / "sentinel.conf"), "--port", str(self.port), "--sentinel"]

    def start(self) -> RedisServer:
        super().start()
        with self.client() as client, suppress(redis.ResponseError):  # before Redis 7
            client.execute_command("SENTINEL", "DEBUG", *PERIODS)
        return self


class Sentinels:
    """They watch ``servers``, the first master and its replicas. Every method that changes something waits until all
    that run agree on it."""

    def __init__(self, sentinels: int = 1, replicas: int = 1) -> None:
        self.servers = [RedisServer() for _ in range(1 + replicas)]
        self.sentinels: list[SentinelServer] = []
        self.clients: list[redis.Redis] = []
        self.sentinel_clients: list[redis.Redis] = []
        # a master that is demoted closes its connections
        patient: dict[str, Any] = {"retry": Retry(NoBackoff(), 3), "retry_on_error": [redis.ConnectionError]}
        try:
            for server in self.servers:
                server.start()  # first: it takes another port where this one was taken meanwhile
                self.clients.append(server.client(socket_timeout=20, **patient))
            port = self.servers[0].port
            watch = f"monitor {MASTER} {HOST} {port} {sentinels // 2 + 1}\nsentinel failover-timeout {MASTER} 2000"
            for client in self.clients[1:]:
                client.replicaof(HOST, str(port))
            # a sentinel that starts earlier takes a while to see that the links are up
            until(lambda: all(client.info("replication")["master_link_status"] == "up" for client in self.clients[1:]))
            for _ in range(sentinels):
                sentinel = SentinelServer(watch)
                self.sentinels.append(sentinel)
                sentinel.start()
                self.sentinel_clients.append(sentinel.client(socket_timeout=5, **patient))
            self.wait_for_it(DOWN_AFTER / 1000)
            self.wait_until_ok()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for client in (*self.clients, *self.sentinel_clients):
            client.close()
        for server in (*self.sentinels, *self.servers):
            server.close()

    def master(self) -> int:
        """The master's port, according to the first sentinel that runs."""
        # not with the methods for one name: redis-py 6's fail on a plain client
        address: Any = self._asked()[0].execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return int(address[1])

    def master_server(self) -> RedisServer:
        port = self.master()  # asked once: it may change
        return next(server for server in self.servers if server.port == port)

    def is_ok(self) -> bool:
        """Whether the sentinels agree on the master, it knows that it is one, and they find all servers that run well,
        and each other."""
        try:
            answers: list[Any] = [client.sentinel_masters() for client in self._asked()]
            seen = [masters[MASTER] for masters in answers]
            port = seen[0]["port"]
            clients = {server.port: client for server, client in zip(self.servers, self.clients, strict=True)}
            running = {server.port for server in self.servers if server.process}
            return (
                all(one["port"] == port and one["flags"] == "master" for one in seen)
                and all(one["num-other-sentinels"] == len(self.sentinels) - 1 for one in seen)
                and clients[port].info("replication")["role"] == "master"
                and all(_good_replicas(client) >= running - {port} for client in self._asked())
            )
        except (redis.RedisError, KeyError):  # a server has just gone, or a sentinel does not know all of them yet
            return False

    def wait_until_ok(self) -> None:
        until(self.is_ok)

    def wait_for_failover(self, old: RedisServer) -> None:
        """Until another server is the master, and all others that run follow it."""
        until(lambda: self.master_server() is not old and self.is_ok())

    def fail_over(self) -> None:
        """Make a replica the master; only the first sentinel has to agree, and the old master learns of it later. On a
        busy machine, a sentinel that finds its servers slow gives up; then it is asked again."""
        old, first = self.master(), self._asked()[0]
        until(asked_for(lambda: self.master() != old, lambda: first.sentinel_failover(MASTER), every=3))

    @contextmanager
    def another_master(self) -> Iterator[None]:
        """The first master hangs, and has been replaced."""
        self.replicate()
        with stopped(self.servers[0]):
            self.fail_over()
            yield

    def wait_for_it(self, seconds: float) -> None:
        """Set after how long the first sentinel considers a silent server dead; the next ones do so later."""
        for number, client in enumerate(self._asked()):
            client.sentinel_set(MASTER, "down-after-milliseconds", round(seconds * 1000) + APART * number)

    def replicate(self) -> None:
        """Wait until the replica has everything written so far. WAIT covers only what its own connection wrote, and
        right after a full sync nothing may be streamed for a second, though the link is "up"."""
        self.clients[0].set("mark", 1)
        assert self.clients[0].wait(1, 10_000) == 1

    def alias(self, *ports: int, timeout: float = 2) -> Alias:
        """By the sentinels at these ports, or by all that run."""
        return {
            "BACKEND": DJANGO_REDIS,
            "LOCATION": f"redis://{MASTER}/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": [(HOST, port) for port in ports or [one.port for one in self.sentinels if one.process]],
                "SOCKET_TIMEOUT": timeout,
                "CONNECTION_POOL_KWARGS": {"client_name": NAME},
            },
        }

    def _asked(self) -> list[redis.Redis]:
        pairs = zip(self.sentinels, self.sentinel_clients, strict=True)
        return [client for sentinel, client in pairs if sentinel.process]


def _good_replicas(client: redis.Redis) -> set[int]:
    replicas = client.sentinel_slaves(MASTER)
    return {one["port"] for one in replicas if one["flags"] == "slave" and one["master-link-status"] == "ok"}


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    with closing(Sentinels()) as running:
        yield running
