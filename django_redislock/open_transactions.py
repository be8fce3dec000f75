"""Open database transactions, as far as locks care: whoever gets a lock before COMMIT reads stale rows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import Atomic

from .base.log import warn
from .conf import conf


def open_transaction(connection: BaseDatabaseWrapper) -> object:
    """Return what stands for the open transaction, or None. Does not connect.

    That is the outermost atomic block; that of a test case does not count, since it is never committed. With autocommit
    off, no end of a transaction is seen, and the connection stands for all of them.
    """
    blocks: list[Any] = connection.atomic_blocks
    manual = connection.connection is not None and not connection.in_atomic_block and not connection.autocommit
    return next((block for block in blocks if not block._from_testcase), connection if manual else None)


def in_atomic_block(connection: BaseDatabaseWrapper) -> bool:
    """Return whether an atomic block is open that counts."""
    return isinstance(open_transaction(connection), Atomic)


def has_claimed(claimed: Mapping[str, object], alias: str) -> bool:
    """Return whether the transaction that is open on this alias is the one that has claimed."""
    return alias in claimed and claimed[alias] is open_transaction(connections[alias])


# whether this process has ever used a database: a release in one that has not is 5 us faster
_connected = settings.configured and any(connections.all(initialized_only=True))


def _on_connection(**kwargs: Any) -> None:
    global _connected
    _connected = True


connection_created.connect(_on_connection, dispatch_uid="django_redislock.open_transactions")


class Released(Protocol):
    """A lease that has ended."""

    name: str
    claimed: Mapping[str, object]  # by alias, the transaction that has claimed it last; see open_transaction()

    @property
    def unclaimed(self) -> bool: ...


def open_aliases() -> list[str]:
    """The aliases on which this thread has a transaction open. Does not connect."""
    opened = connections.all(initialized_only=True)
    return [connection.alias for connection in opened if open_transaction(connection)]


def aliases_to_claim(fenced: bool | Sequence[str] | None) -> list[str]:
    """Those, and what has a transaction as soon as it is connected: with AUTOCOMMIT off, the default, and ``fenced``.

    Not any other, where maybe nobody would commit.
    """
    named = {DEFAULT_DB_ALIAS, *(fenced if isinstance(fenced, tuple) else ())}
    manual = [alias for alias, given in connections.settings.items() if alias in named and not given["AUTOCOMMIT"]]
    return open_aliases() + [alias for alias in manual if connections[alias].connection is None]


def warn_unclaimed() -> None:
    """Warn that a lock is fenced, and that no database was ever told. See warn_of_release() for its name."""
    warn(
        "A lock that is fenced was released without having been claimed: what was written under it can overwrite what "
        "a younger holder wrote. Use locked_atomic() or locked_view(), or call claim() first in each transaction."
    )


def warn_of_release(released: str | Released) -> None:
    """Warn, or as RELEASE_IN_TRANSACTION says, when a lock has been released inside a transaction.

    It is free by now: to keep the lock would do more harm, and an error out of the block rolls the transaction back.
    Where the open transaction has claimed it, no stale rows are read: the next holder's claim waits for COMMIT. If the
    lock is fenced, and no database was ever told, this warns of that as well. A name alone is of a lock that was
    released by its token, or of one that cannot claim.
    """
    claimed: Mapping[str, object] = {}
    if isinstance(released, str):
        name = released
    else:
        name, claimed = released.name, released.claimed
        if released.unclaimed:
            warn_unclaimed()
    if not _connected or asyncio._get_running_loop() is not None:
        return
    reaction = conf().RELEASE_IN_TRANSACTION
    aliases = [] if reaction == "ignore" else [each for each in open_aliases() if not has_claimed(claimed, each)]
    if not aliases:
        return
    text = (
        f" was released inside an open transaction (database {', '.join(aliases)}): until COMMIT, the "
        f"next holder reads stale rows. Use locked_atomic() or locked_view(), or acquire the lock outside of the "
        f"transaction (REDISLOCK['RELEASE_IN_TRANSACTION'] sets what happens here: 'warn', 'error' or 'ignore')."
    )
    if reaction == "error":
        raise RuntimeError(f"The lock {name!r}{text}")
    warn(f"A lock{text}")  # without the name: Python remembers each text, and there may be any number of names
