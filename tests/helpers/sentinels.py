"""Real sentinels on the loopback interface, with the master and the replicas that they watch.

Every method that changes something waits until all sentinels that run agree on it, unless it says otherwise.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redisserver import RedisServer

from .waiting import GENEROUS, asked_for, until

HOST = "127.0.0.1"
NAME = "tickets"  # of the master, as the sentinels know it
# ms. They find each other and the replicas, and demote an old master, within seconds instead of ten. But not too soon:
# after four PUBLISH-PERIODs sentinels undo a promotion of which its leader has not told them; and they promote only
# what has sent its INFO, which comes once a second then, in the last five PING-PERIODs
PERIODS = ("INFO-PERIOD", "100", "PING-PERIOD", "300", "PUBLISH-PERIOD", "500")
# ms after which the first sentinel considers a server dead, and those between two sentinels; if it were the same
# moment, each would elect itself
DOWN_AFTER, APART = 500, 200


class SentinelServer(RedisServer):
    """One sentinel. It writes what it learns into its sentinel.conf."""

    def __init__(self, watch: str) -> None:
        super().__init__()
        lines = f"bind {HOST}\ndir {self.folder}\nunixsocket {self.socket}\nsentinel {watch}\n"
        (self.folder / "sentinel.conf").write_text(lines)

    def command(self) -> list[str]:
        return [self.executable, str(self.folder / "sentinel.conf"), "--port", str(self.port), "--sentinel"]

    def start(self) -> RedisServer:
        super().start()
        with self.client() as client:
            try:
                client.execute_command("SENTINEL", "DEBUG", *PERIODS)
            except redis.ResponseError:
                pass  # before Redis 7
        return self


class SentinelGroup:
    """``servers`` are the first master and its replicas."""

    def __init__(self, replicas: int = 2, sentinels: int = 3) -> None:
        self.servers = [RedisServer(repl_diskless_sync_delay=0) for _ in range(1 + replicas)]
        # a master that is demoted closes its connections
        patient: dict[str, Any] = {"retry": Retry(NoBackoff(), 3), "retry_on_error": [redis.ConnectionError]}
        self.clients = [server.client(socket_timeout=20, **patient) for server in self.servers]
        port = self.servers[0].port
        watch = f"monitor {NAME} {HOST} {port} {sentinels // 2 + 1}\nsentinel failover-timeout {NAME} 2000"
        self.sentinels = [SentinelServer(watch) for _ in range(sentinels)]
        self.sentinel_clients = [sentinel.client(socket_timeout=5, **patient) for sentinel in self.sentinels]
        try:
            for server in self.servers:
                server.start()
            for client in self.clients[1:]:
                client.replicaof(HOST, str(port))
            # a sentinel that starts earlier takes a while to see that the links are up
            until(lambda: all(client.info("replication")["master_link_status"] == "up" for client in self.clients[1:]))
            for sentinel in self.sentinels:
                sentinel.start()
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

    @property
    def sentinel_addresses(self) -> list[tuple[str, int]]:
        return [(HOST, sentinel.port) for sentinel in self.sentinels if sentinel.process]

    def master(self) -> int:
        """The master's port, according to the first sentinel that runs."""
        # not with the methods for one name: redis-py 6's fail on a plain client
        address: Any = self._asked()[0].execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(address[1])

    def master_server(self) -> RedisServer:
        """The same, whether it runs or not."""
        return next(server for server in self.servers if server.port == self.master())

    def is_ok(self) -> bool:
        """Whether the sentinels agree on the master, it knows that it is one, and they find all servers that run well,
        and each other."""
        try:
            answers: list[Any] = [client.sentinel_masters() for client in self._asked()]
            seen = [masters[NAME] for masters in answers]
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

    def kill_master(self) -> RedisServer:
        """Kill the master, as a crash would, without waiting. Its ``start()`` brings it back, in the end as a
        replica."""
        server = self.master_server()
        server.stop()
        return server

    def wait_for_failover(self, old: RedisServer) -> None:
        """Until another server is the master, and all others that run follow it."""
        until(lambda: self.master_server() is not old and self.is_ok())

    def promote(self, within: float = GENEROUS) -> None:
        """Make a replica the master; only the first sentinel has to agree. On a busy machine, a sentinel that finds its
        servers slow gives up the failover; then it is asked again."""
        old, first = self.master(), self._asked()[0]
        until(asked_for(lambda: self.master() != old, lambda: first.sentinel_failover(NAME), every=3), within)

    def wait_for_it(self, seconds: float) -> None:
        """Set after how long the first sentinel considers a silent server dead; the next ones do so later."""
        for number, client in enumerate(self._asked()):
            client.sentinel_set(NAME, "down-after-milliseconds", round(seconds * 1000) + APART * number)

    def _asked(self) -> list[redis.Redis]:
        return [
            client for sentinel, client in zip(self.sentinels, self.sentinel_clients, strict=True) if sentinel.process
        ]


def _good_replicas(client: redis.Redis) -> set[int]:
    """Their ports, as this sentinel sees them."""
    replicas = client.sentinel_slaves(NAME)
    return {one["port"] for one in replicas if one["flags"] == "slave" and one["master-link-status"] == "ok"}
