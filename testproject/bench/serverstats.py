"""Statistics of the servers, read over separate connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import redis

from .contenders import Contender

OURSELVES = "lockbench-observer"  # the name of these connections


class Statistics(NamedTuple):
    """Of all nodes, since the last reset."""

    requests: int  # read events: each request of a client arrives in one, so they count round trips
    received: int  # bytes
    cpu: float  # CPU seconds of the process, including reading and writing, which the time of commands leaves out
    commands: Sequence[Mapping[str, tuple[int, int]]]  # by node: calls and microseconds of each command

    def server_us(self, kind: type[Contender]) -> list[float]:
        """Microseconds that each node spent on this contender's commands.

        Redis counts a command inside a script once for itself and once more within its script, so only what the
        client sent counts; of a command that does both, the share of its calls.
        """
        found = []
        for commands in self.commands:
            scripts, _ = commands.get("evalsha", (0, 0))
            of_each = [(name, *commands[name]) for name in kind.commands if name in commands]
            found.append(sum(us * (1 - scripts / calls * (name in kind.in_script)) for name, calls, us in of_each))
        return found


class Observer:
    """Reads and resets the statistics of a server, or of the nodes of a cluster, without counting its own commands."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.clients = [redis.Redis.from_url(url, client_name=OURSELVES) for url in urls]

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def flush(self) -> None:
        for client in self.clients:
            client.flushall()

    def reset(self) -> None:
        self._cpu = self.cpu()
        for client in self.clients:
            client.config_resetstat()

    def read(self) -> Statistics:
        # one INFO, which the server has read before it answers; RESETSTAT resets the count of its own read
        infos = self._infos("all")
        commands = [
            {
                key.removeprefix("cmdstat_"): (int(value["calls"]), int(value["usec"]))
                for key, value in info.items()
                if key.startswith("cmdstat_")
            }
            for info in infos
        ]
        requests = sum(int(info["total_reads_processed"]) - 1 for info in infos)
        received = sum(int(info["total_net_input_bytes"]) for info in infos)
        return Statistics(requests, received, self.cpu() - self._cpu, commands)

    def cpu(self) -> float:
        """CPU seconds since the start."""
        return sum(float(info["used_cpu_sys"]) + float(info["used_cpu_user"]) for info in self._infos("cpu"))

    def memory(self) -> int:
        """Bytes in use, without the buffers of clients, and without those statistics."""
        self.reset()
        return sum(int(info["used_memory"]) - int(info["mem_clients_normal"]) for info in self._infos("memory"))

    def connections(self) -> int:
        return sum(one["name"] != OURSELVES for client in self.clients for one in client.client_list())

    def version(self) -> str:
        info = self._infos("server")[0]
        return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"

    def _infos(self, section: str) -> list[dict[str, Any]]:
        return [client.info(section) for client in self.clients]
