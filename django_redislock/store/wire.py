"""Commands as bytes, and answers as values, over one connection of redis-py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis.connection import Connection
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    ReadOnlyError,
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


class NotAsked(TimeoutError):
    """Time ran out before the node could be asked, which says nothing against the node."""


class Replaced(ConnectionError):
    """A cluster node's answer does not count, as another node has its slots now (C7)."""


CONNECTION_ERRORS = (ConnectionError, TimeoutError, OSError)


def is_demoted(answer: object) -> bool:
    """Return whether it says that the server is no longer a master. (Redis 6 wraps the errors that a script meets.)"""
    return isinstance(answer, ResponseError) and (isinstance(answer, ReadOnlyError) or "READONLY" in str(answer))


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


def exchange(connection: Connection, commands: Sequence[Command], by: float | None = None) -> list[Any]:
    """Send ``commands`` in one write and return their answers; an error of a single command stands among them.

    ``by``: the monotonic time at which to give up waiting, if that is sooner than the connection's own timeout.
    """
    # nearly always there is one, and this is each lock's way: see pack()
    packed = SecretBytes(_pack(commands[0])) if len(commands) == 1 else pack(commands)
    connection.send_packed_command([packed], check_health=False)
    answers: list[Any] = []
    for _ in commands:
        if by is not None and not connection.can_read(max(0.0, by - monotonic())):
            raise TimeoutError("no answer in time")
        try:
            answers.append(connection.read_response())
        except ResponseError as error:
            answers.append(classified(error))
    return answers


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
