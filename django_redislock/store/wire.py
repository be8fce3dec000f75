"""Commands as bytes, and answers as values, over one connection of redis-py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
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

from ..display import SecretBytes

# All words are text: hiredis crashes the interpreter where a signal handler raises while it packs a number.
Command = tuple[str, ...]

CLUSTER_ERRORS: dict[str, type[ResponseError]] = {
    "MOVED": MovedError,
    "ASK": AskError,
    "TRYAGAIN": TryAgainError,
    "CLUSTERDOWN": ClusterDownError,
}
PASSING = tuple(CLUSTER_ERRORS.values())  # whoever gets one has only to ask again, elsewhere or later


class NotAsked(TimeoutError):
    """The time was over before the node could be asked: that is no sign that anything is wrong with it."""


class Replaced(ConnectionError):
    """A node of a cluster has answered whose answer does not count, as another one has its slots now (C7)."""


CONNECTION_ERRORS = (ConnectionError, TimeoutError, OSError)


def is_demoted(answer: object) -> bool:
    """Whether it says that its server is no master any more (Redis 6 wraps what a script meets): connect anew."""
    return isinstance(answer, ResponseError) and (isinstance(answer, ReadOnlyError) or "READONLY" in str(answer))


_pack: Callable[[Command], bytes]
try:
    # what redis-py does as well, without a look at the type of each word: 2 % of an uncontended lock
    from hiredis import pack_command as _pack  # type: ignore[assignment]
except ImportError:  # pragma: no cover (the tests have hiredis)
    _packer = Connection()
    _pack = lambda command: b"".join(_packer.pack_command(*command))  # noqa: E731


def pack(commands: Sequence[Command]) -> SecretBytes:
    """``commands`` as bytes. They name tokens, and redis-py keeps them in local variables."""
    return SecretBytes(b"".join(map(_pack, commands)))


def exchange(connection: Connection, commands: Sequence[Command], by: float | None = None) -> list[Any]:
    """Send ``commands`` in one write and return their answers; an error of a single command stands among them.

    ``by``: the monotonic time at which to give up waiting, if that is sooner than the connection's own timeout.
    """
    connection.send_packed_command([pack(commands)])
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
    """What a cluster says, as an error of its own class: before redis-py 8, only the parser of RedisCluster does so."""
    word, _, rest = str(error).partition(" ")
    return CLUSTER_ERRORS[word](rest) if type(error) is ResponseError and word in CLUSTER_ERRORS else error


def wording(error: object) -> str:
    """An error as text, with the word that redis-py takes away from those of a cluster (MOVED, ASK ...).

    Without it, ``4069 10.0.0.1:6379`` is all that is left.
    """
    word = f"{type(error).__name__.removesuffix('Error').upper()} " if isinstance(error, PASSING) else ""
    return f"{word}{error}"
