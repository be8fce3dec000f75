"""Commands as bytes, and answers as values, over one connection of redis-py."""

from __future__ import annotations

import builtins
import math
import select
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from ..base.display import SecretBytes
from ..base.times import monotonic

# All words are text: hiredis crashes the interpreter if a signal handler raises while it packs a number.
Command = tuple[str, ...]

CLUSTER_ERRORS: dict[str, type[ResponseError]] = {
    "MOVED": MovedError,
    "ASK": AskError,
    "TRYAGAIN": TryAgainError,
    "CLUSTERDOWN": ClusterDownError,
}
PASSING = tuple(CLUSTER_ERRORS.values())  # asking again, elsewhere or later, is all it takes
NO_CLUSTER = "Cluster mode is not enabled"  # so redis-py says of a node that refuses CLUSTER SLOTS, whatever the reason


class NotAsked(TimeoutError):
    """Time ran out before the node could be asked, which says nothing against the node."""


# seconds within which no replica takes over: once a master is seen to fail, a replica waits for at least half a second
NO_FAILOVER_WITHIN = 0.5


class Replaced(ConnectionError):
    """A cluster node's answer does not count, as another node has its slots now (C7)."""


class Refused(ConnectionError):
    """A node has hung up on a new connection, as it does where it has too many; or nobody could tell where it is."""


# These say nothing against the node, nor against the connections to it that there are
BLAMELESS = (NotAsked, Replaced, AuthenticationError)

# The connections that are read and written to directly: not those for sentinels, which look at each answer, nor those
# of a site's own class
_PLAIN = frozenset({Connection, SSLConnection, UnixDomainSocketConnection})

CONNECTION_ERRORS = (ConnectionError, TimeoutError, InvalidResponse, OSError)


def hints_at_failover(answer: object) -> bool:
    """Return whether it says that the server is no longer a master, or has lost its replicas, perhaps to a new one.

    Redis 6 wraps the errors that a script meets, and older redis-py has a class for MASTERDOWN on clusters only.
    """
    if not isinstance(answer, ResponseError):
        return False
    others = isinstance(answer, MasterDownError) or any(word in str(answer) for word in ("NOREPLICAS", "MASTERDOWN"))
    return others or is_read_only(answer)


def is_read_only(error: Exception) -> bool:
    """Return whether it says that the server is a replica."""
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)


_pack: Callable[[Command], bytes]
try:
    # as redis-py does, but without checking the type of each word: saves 2 % of an uncontended lock
    from hiredis import pack_command as _pack  # type: ignore[assignment]
except ImportError:  # pragma: no cover (the tests have hiredis)
    _packer = Connection()
    _pack = lambda command: b"".join(_packer.pack_command(*command))  # noqa: E731


def pack(commands: Sequence[Command]) -> SecretBytes:
    """``commands`` as bytes that error reports hide: they contain tokens, and redis-py keeps them in variables."""
    return SecretBytes(b"".join(map(_pack, commands)))


def let_the_system_wait(connection: Any, seconds: float) -> None:
    """Have the system limit each send and each read to so many seconds, if it can.

    Python would do so by one more system call before each of them: four for an uncontended lock, which makes four
    others. (A signal that Python handles meanwhile begins the time anew.) Other sockets than the system's, such as
    those of TLS and gevent, keep their own limits.
    """
    sock: Any = getattr(connection, "_sock", None)  # that of fakeredis has none
    if _is_the_systems(sock) and seconds > 0:
        limit = struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        sock.settimeout(None)


def change_timeout(connection: Any, seconds: float) -> None:
    """Have each send and each read on an open connection take at most so many seconds."""
    connection.socket_timeout = seconds
    connection._sock.settimeout(seconds)
    connection._parser.on_connect(connection)  # the parser has a copy of it


def _is_the_systems(sock: Any) -> bool:
    return sys.platform == "linux" and type(sock).__module__ == "socket"


def begins(connection: Any, seconds: float | None) -> bool:
    """Return whether an answer or a message begins to arrive within so many seconds; None: wait without end.

    ``connection.can_read()`` takes three system calls for that, ends with let_the_system_wait()'s limit where it waits
    by reading, and looks whether the server has closed the connection, which whoever reads next finds out.
    """
    if not _is_the_systems(connection._sock):
        return bool(connection.can_read(seconds))
    reader: Any = getattr(connection._parser, "_reader", None)  # that of hiredis
    if connection._parser._buffer.unread_bytes() if reader is None else reader.has_data():
        return True
    poll = select.poll()
    poll.register(connection._sock, select.POLLIN)
    return bool(poll.poll(None if seconds is None else math.ceil(seconds * 1000)))


def is_stale(connection: Any) -> bool:
    """Return whether the server has closed the connection, or sent something that nobody asked for."""
    try:
        return begins(connection, 0)
    except CONNECTION_ERRORS:
        return True


def read(connection: Any) -> Any:
    """Return the next answer or message; an error that the server has sent is an answer."""
    try:
        if type(connection) not in _PLAIN:
            return connection.read_response()
        # each lock comes here: as connection.read_response(), in fewer steps
        answer = connection._parser.read_response()
    except ResponseError as error:
        return classified(error)
    except OSError as error:
        raise with_address(error, connection) from error
    return classified(answer) if isinstance(answer, ResponseError) else answer


def exchange(connection: Connection, commands: Sequence[Command], by: float | None = None) -> list[Any]:
    """Send ``commands`` in one write and return their answers; an error of a single command stands among them.

    ``by``: the monotonic time at which to give up waiting, if that is sooner than the connection's own timeout.
    """
    try:
        if by is None and len(commands) == 1 and type(connection) in _PLAIN and connection._sock is not None:
            connection._sock.sendall(SecretBytes(_pack(commands[0])))
            return [read(connection)]
        connection.send_packed_command([pack(commands)], check_health=False)
        answers: list[Any] = []
        for _ in commands:
            if by is not None and not begins(connection, max(0.0, by - monotonic())):
                raise TimeoutError("no answer in time")
            answers.append(read(connection))
        return answers
    except ConnectionError as error:
        if isinstance(error.__context__, BlockingIOError):  # what the system says at the end of its time limit
            raise TimeoutError(f"Timeout while talking to {connection._host_error()}") from None
        raise
    except OSError as error:
        raise with_address(error, connection) from error


def with_address(error: OSError, connection: Any) -> RedisError:
    """The error that the connection itself would raise for one of the system's: it says whose connection it was."""
    # the second is what the system says at the end of the time limit that it keeps
    if isinstance(error, (builtins.TimeoutError, BlockingIOError)):
        return TimeoutError(f"Timeout while talking to {connection._host_error()}")
    return ConnectionError(f"Error while talking to {connection._host_error()}: {error}")


def classified(error: ResponseError) -> ResponseError:
    """A cluster's error as the class made for it. Before redis-py 8, only RedisCluster's parser does so."""
    word, _, rest = str(error).partition(" ")
    return CLUSTER_ERRORS[word](rest) if type(error) is ResponseError and word in CLUSTER_ERRORS else error


def wording(error: object) -> str:
    """An error as text, with the first word of cluster errors (MOVED, ASK ...), which redis-py strips.

    Without that word, all that remains is ``4069 10.0.0.1:6379``.
    """
    word = f"{type(error).__name__.removesuffix('Error').upper()} " if isinstance(error, PASSING) else ""
    return f"{word}{error}"
