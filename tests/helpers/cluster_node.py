"""A node of a Redis Cluster on the loopback interface. It needs Redis 7 or Valkey."""

from __future__ import annotations

import signal
from typing import Any

import rediscluster
from rediscluster import ClusterNode
from redisserver import NoServerError

from .proxy import Proxy
from .requirements import MissingError


def find_cluster_server() -> str:
    """The executable that the tests use, or one that is new enough."""
    try:
        return rediscluster.find_cluster_server()
    except NoServerError as error:
        raise MissingError("Redis 7 or newer", "apt-get install redis-server, or name one in REDIS_SERVER") from error


class Node(ClusterNode):
    """One node. With ``number``, its bus is behind a proxy, and its connections come from an address of its own."""

    def __init__(self, executable: str, number: int | None, **options: Any) -> None:
        self.address = "" if number is None else f"127.0.0.{number + 2}"
        self.paused = False
        self.proxy: Proxy | None = None
        super().__init__(executable, **options)
        if self.address:
            # which does not count as one of this machine
            self.options |= {"bind-source-addr": self.address, "protected-mode": "no"}

    def take_ports(self) -> None:
        super().take_ports()
        if self.address:
            if self.proxy:
                self.proxy.close()
            self.proxy = Proxy(self.bus_port)
            self.bus_port = self.proxy.port
            self.options["cluster-announce-bus-port"] = str(self.bus_port)

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.paused = False

    def stop(self) -> None:
        super().stop()
        self.paused = False

    def close(self) -> None:
        super().close()
        if self.proxy:
            self.proxy.close()

    def ask_all(self, commands: list[tuple[str | int, ...]]) -> None:
        """Send several commands at once, so that the node writes nodes.conf only once."""
        with self._asking.pipeline(transaction=False) as pipeline:
            for words in commands:
                pipeline.execute_command(*words)
            pipeline.execute()

    def replication(self) -> dict[str, Any]:
        return self._asking.info("replication")

    def is_linked(self) -> bool:
        return bool(self.replication()["master_link_status"] == "up")
