"""Asking sentinels for the master, in place of the alias's own pool.

redis-py asks one sentinel after another without a limit on the total time, and retries: a silent sentinel uses up the
time of the whole call. Here each gets a share of that time, one try and a connection of its own, and the one that has
answered is asked first from then on, or the next one where the master that it named was of no use: it may be the only
one that has not heard of a failover.

Of a master, redis-py takes the address too from the list of all masters. But there the sentinel that leads a failover
has the old one until all replicas follow the new one, with nothing said against it once it is back. Here the address
is that which Redis names to its clients: https://redis.io/docs/latest/develop/reference/sentinel-clients/
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from redis._parsers.helpers import parse_sentinel_masters
from redis.exceptions import ConnectionError, ResponseError
from redis.sentinel import MasterNotFoundError
from redis.utils import str_if_bytes

from ..base.steps import Call, Steps, arun, run
from ..base.times import monotonic
from .wire import CONNECTION_ERRORS, NO_FAILOVER_WITHIN, Refused

# why a connection was not made, though nothing is wrong with those that there are: the node, or a proxy, may have taken
# it and hung up (on a TLS handshake, too, which Python 3.11.2 takes for a connection that was closed in order), or
# nobody could tell where the node is
_NOT_MADE = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError, socket.gaierror)
CONFIRMED_WITHIN = 1.0  # seconds that sentinels get to confirm a late answer, whatever time its call has left


class _Silent(MasterNotFoundError):
    """No sentinel has answered, or all with errors."""


@dataclass(eq=False, repr=False)
class Turn:
    """Which sentinel is asked first: the one that was the ``last`` to name a master, unless that is ``doubted``.

    ``on_change`` is called when another ``master`` is named than before.
    """

    last: int = 0
    doubted: bool = False
    master: tuple[str, int] | None = None
    on_change: Callable[[], object] = lambda: None


@dataclass(eq=False, repr=False)
class Sentinels:
    """The sentinels of an alias: what a connection takes for its pool.

    ``ways``: an RedisConfig for each. ``manager`` is redis-py's. ``turn``: the same for threads and event loops.
    """

    service_name: str
    manager: Any
    ways: list[Any]
    seconds: float = 0.0  # within which the master has to be found
    turn: Turn = field(default_factory=Turn)
    named: Any = None  # the address that they have named for this connection

    is_master = True
    check_connection = False

    def within(self, seconds: float) -> Sentinels:
        """The same, with so much time."""
        return replace(self, seconds=seconds)

    def get_master_address(self) -> Any:
        """Host and port."""
        self.named = run(self._master())
        return self.named

    def confirm(self) -> Steps[None]:
        """Raise ConnectionError if another server than that of this connection is the master by now.

        Where no sentinel answers, that one's own word counts.
        """
        try:
            master = yield from self.within(CONFIRMED_WITHIN)._master()
        except _Silent:
            return
        if self.named not in (None, master):  # None: a site's own class has not asked for it
            raise ConnectionError("{}:{} was silent, and has been replaced".format(*self.named))

    def _master(self) -> Steps[tuple[str, int]]:
        share = self.seconds / (len(self.ways) + 1)  # one share is for connecting to the master
        trouble, troubles = f"No sentinel knows the master {self.service_name!r}.", list[str]()
        kind: type[MasterNotFoundError] = _Silent
        first = self.turn.last + self.turn.doubted
        for number in (each % len(self.ways) for each in range(first, first + len(self.ways))):
            try:
                listed, address = yield from _ask(self.ways[number], share, self.service_name)
            except (*CONNECTION_ERRORS, ResponseError) as error:
                troubles.append(str(error))
                continue
            state, kind = parse_sentinel_masters(listed).get(self.service_name), MasterNotFoundError
            if state and address and self.manager.check_master_state(state, self.service_name):
                host, port = map(str_if_bytes, address)
                master = getattr(self.manager, "_force_master_ip", None) or host, int(port)
                former, self.turn.master = self.turn.master, master
                if former not in (None, master):
                    self.turn.on_change()
                self.turn.last, self.turn.doubted = number, False
                return master
            if state:
                trouble = f"The sentinels find the master {self.service_name!r} down: {state['flags']}."
        raise kind(" ".join([trouble, *troubles]))


class LoopSentinels(Sentinels):
    """The same for the connections of an event loop."""

    async def get_master_address(self) -> Any:
        self.named = await arun(self._master())
        return self.named


def connect(connection: Any) -> Steps[None]:
    """Connect, as if connecting were a request that a node has answered: see believe().

    The caller closes the connection if this raises.
    """
    begun = monotonic()
    try:
        # explicitly, as only connect() makes a Sentinel connection ask for its master
        yield Call(connection.connect)
    except ConnectionError as error:
        not_made = isinstance(error, MasterNotFoundError) or isinstance(error.__cause__ or error.__context__, _NOT_MADE)
        if not_made or any(said in str(error) for said in ("max number of clients", "Connection closed by server")):
            raise Refused(str(error)) from error
        raise
    yield from believe(connection, begun)


def believe(connection: Any, sent: float) -> Steps[None]:
    """C7: raise ConnectionError if an answer to what was ``sent`` (monotonic) does not count.

    A master that sentinels have named may have been replaced meanwhile, if it was silent for half a second. What they
    have said themselves may have waited as well, for a process that was stopped, and the old master have come back.
    """
    sentinels = getattr(connection, "connection_pool", None)
    if isinstance(sentinels, Sentinels) and monotonic() - sent > NO_FAILOVER_WITHIN:
        yield from sentinels.confirm()


def _ask(way: Any, seconds: float, service_name: str) -> Steps[tuple[Any, Any]]:
    """Return what a sentinel knows of all masters that it watches, and the address of this one."""
    connection = way.connection(seconds)
    try:
        yield Call(connection.send_command, ("SENTINEL", "MASTERS"))
        listed = yield Call(connection.read_response)
        yield Call(connection.send_command, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service_name))
        return listed, (yield Call(connection.read_response))
    finally:
        getattr(connection, "abort", connection.disconnect)()  # that of a loop has to be closed in one step
