"""What the server counts, read over a connection of our own."""

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

    requests: int  # read events: a client's request arrives in one, so it is a round trip
    commands: Mapping[str, Command]

    def server_us(self, contender: type[Contender]) -> float:
        """Microseconds that the server worked for this contender's commands.

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


class Observer:
    """Reads and resets the statistics of a server, without counting itself."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()

    def reset(self) -> None:
        self.client.config_resetstat()

    def read(self) -> Statistics:
        # one INFO, which the server has read before it answers; RESETSTAT wipes out its own read
        info = self._info("all")
        commands = {
            key.removeprefix("cmdstat_"): Command(int(value["calls"]), int(value["usec"]))
            for key, value in info.items()
            if key.startswith("cmdstat_")
        }
        return Statistics(int(info["total_reads_processed"]) - 1, commands)

    def connections(self) -> int:
        return int(self._info("clients")["connected_clients"]) - 1

    def version(self) -> str:
        info = self._info("server")
        if "valkey_version" in info:
            return f"Valkey {info['valkey_version']}"
        return f"Redis {info['redis_version']}"

    def flush(self) -> None:
        self.client.flushall()

    def _info(self, section: str) -> dict[str, Any]:
        return self.client.info(section)
