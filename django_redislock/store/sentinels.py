"""Asking sentinels for the master, in place of the alias's own pool.

redis-py asks one sentinel after another without a limit on the total time, and retries: a silent sentinel uses up the
time of the whole call. Here each gets a share of that time, one try and a connection of its own, and the one that has
answered is asked first from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis._parsers.helpers import parse_sentinel_masters
from redis.exceptions import ConnectionError, ResponseError
from redis.sentinel import MasterNotFoundError

from ..base.steps import Call, Steps, arun, run
from .wire import CONNECTION_ERRORS, exchange


class Sentinels:
    """The sentinels of an alias, in the order in which they are asked.

    ``ways`` make the connections to them: an Origin for each, or a Maker for event loops. ``manager`` is redis-py's.
    """

    def __init__(self, name: str, manager: Any, ways: Sequence[Any]) -> None:
        self.name: str = name
        self.manager: Any = manager
        self.ways: Sequence[Any] = ways

    def master(self, seconds: float) -> Steps[tuple[str, int]]:
        """Host and port of the master, found within ``seconds``."""
        share = seconds / (len(self.ways) + 1)  # one share is for connecting to the master
        troubles: list[str] = []
        for way in self.ways:
            try:
                answer = yield Call(_ask, (way, share), twin=_aask)
                state = parse_sentinel_masters(answer).get(self.name)
            except CONNECTION_ERRORS as error:
                troubles.append(str(error))
                continue
            if state and self.manager.check_master_state(state, self.name):
                self.ways = [way, *(other for other in self.ways if other is not way)]
                return getattr(self.manager, "_force_master_ip", None) or state["ip"], state["port"]
        raise MasterNotFoundError(f"No sentinel knows the master {self.name!r}. {' '.join(troubles)}".rstrip())


def _ask(way: Any, seconds: float) -> Any:
    """What a sentinel knows of all masters that it watches."""
    connection = way.connection(seconds)
    try:
        (answer,) = exchange(connection, [("SENTINEL", "MASTERS")])
    finally:
        connection.disconnect()
    if isinstance(answer, ResponseError):
        raise ConnectionError(str(answer))
    return answer


async def _aask(way: Any, seconds: float) -> Any:
    connection = way.connection(seconds)
    try:
        await connection.send_command("SENTINEL", "MASTERS")
        return await connection.read_response()
    except ResponseError as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.hang_up()


class Asking:
    """What a Sentinel connection takes for its pool."""

    is_master = True
    check_connection = False

    def __init__(self, sentinels: Sentinels, seconds: float) -> None:
        self.service_name: str = sentinels.name
        self._sentinels = sentinels
        self._seconds = seconds

    def get_master_address(self) -> Any:
        return run(self._sentinels.master(self._seconds))


class LoopAsking(Asking):
    """The same in an event loop."""

    async def get_master_address(self) -> Any:
        return await arun(self._sentinels.master(self._seconds))
