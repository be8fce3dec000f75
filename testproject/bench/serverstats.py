"""Statistics of the servers, read over separate connections."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

import redis

from .contenders import Contender


class Command(NamedTuple):
    calls: int
    us: int


class Statistics(NamedTuple):
    """Since the last reset."""

    requests: int  # read events: each request of a client arrives in one, so they count round trips
    commands: Mapping[str, Command]
    received: int = 0  # bytes
    cpu: float = 0.0  # CPU seconds of the process, including reading and writing, which the time of commands leaves out
    nodes: tuple[Statistics, ...] = ()  # the statistics of each node, if there are several

    def server_us(self, contender: type[Contender]) -> float:
        """Microseconds that the server spent on this contender's commands.

        Redis counts a command inside a script once for itself and once more within its script, so only what the
        client sent counts; of a command that does both, the share of its calls.
        """
        none = Command(0, 0)
        scripts = self.commands.get("evalsha", none).calls
        total = 0.0
        for name in contender.commands:
            calls, us = self.commands.get(name, none)
            outside = calls - scripts if name in contender.in_script else calls
            total += us * max(outside, 0) / calls if calls else 0
        return total

    def busiest(self, contender: type[Contender]) -> float:
        """The busiest node's part of that."""
        return max((node.server_us(contender) for node in self.nodes), default=self.server_us(contender))


class Observer:
    """Reads and resets the statistics of a server, or of the nodes of a cluster, without counting its own commands."""

    def __init__(self, *clients: redis.Redis) -> None:
        self.clients = clients
        self._cpu = [0.0] * len(clients)  # at the last reset

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.close()

    def reset(self) -> None:
        self._cpu = [_cpu(_info(client, "cpu")) for client in self.clients]
        for client in self.clients:
            client.config_resetstat()

    def read(self) -> Statistics:
        nodes = [self._read(number) for number in range(len(self.clients))]
        if len(nodes) == 1:
            return nodes[0]
        names = {name for node in nodes for name in node.commands}
        none = Command(0, 0)
        commands = {
            name: Command(*map(sum, zip(*(node.commands.get(name, none) for node in nodes), strict=True)))
            for name in names
        }
        requests, received, cpu = (
            sum(node.requests for node in nodes),
            sum(node.received for node in nodes),
            sum(node.cpu for node in nodes),
        )
        return Statistics(requests, commands, received, cpu, tuple(nodes))

    def _read(self, number: int) -> Statistics:
        # one INFO, which the server has read before it answers; RESETSTAT resets the count of its own read
        info = _info(self.clients[number], "all")
        commands = {
            key.removeprefix("cmdstat_"): Command(int(value["calls"]), int(value["usec"]))
            for key, value in info.items()
            if key.startswith("cmdstat_")
        }
        requests, received = int(info["total_reads_processed"]) - 1, int(info["total_net_input_bytes"])
        return Statistics(requests, commands, received, _cpu(info) - self._cpu[number])

    def connections(self) -> int:
        return sum(int(_info(client, "clients")["connected_clients"]) - 1 for client in self.clients)

    def memory(self) -> int:
        """Bytes in use, without the buffers of clients."""
        found = [_info(client, "memory") for client in self.clients]
        return sum(int(info["used_memory"]) - int(info["mem_clients_normal"]) for info in found)

    def version(self) -> str:
        info = _info(self.clients[0], "server")
        if "valkey_version" in info:
            return f"Valkey {info['valkey_version']}"
        return f"Redis {info['redis_version']}"

    def flush(self) -> None:
        for client in self.clients:
            client.flushall()


def _info(client: redis.Redis, section: str) -> dict[str, Any]:
    return client.info(section)


def _cpu(info: Mapping[str, Any]) -> float:
    return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])
