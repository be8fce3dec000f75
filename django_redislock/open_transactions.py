"""Open database transactions, as far as locks care: whoever gets a lock before COMMIT reads stale rows."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from .base.log import warn
from .conf import conf


def in_atomic_block(connection: BaseDatabaseWrapper) -> bool:
    """Return whether an atomic block is open. That of a test case does not count: it is never committed."""
    opened: list[Any] = connection.atomic_blocks
    return any(not block._from_testcase for block in opened)


def is_manual(connection: BaseDatabaseWrapper) -> bool:
    """Return whether autocommit is off, so that a transaction may be open. Does not connect."""
    return connection.connection is not None and not connection.in_atomic_block and not connection.autocommit


# whether this process has ever used a database: a release in one that has not is 5 us faster
_connected = settings.configured and any(connections.all(initialized_only=True))


def _on_connection(**kwargs: Any) -> None:
    global _connected
    _connected = True


connection_created.connect(_on_connection, dispatch_uid="django_redislock.open_transactions")


class Released(Protocol):
    """A lease that has ended."""

    name: str
    claimed: frozenset[str]  # aliases whose transactions have claimed it

    @property
    def unclaimed(self) -> bool: ...


def open_aliases() -> list[str]:
    """The aliases on which this thread has a transaction open. Does not connect."""
    opened = connections.all(initialized_only=True)
    return [connection.alias for connection in opened if in_atomic_block(connection) or is_manual(connection)]


def warn_unclaimed(name: str) -> None:
    """Warn that the lock ``name`` is fenced, and that no database was ever told."""
    warn(
        f"The lock {name!r} is fenced, and was released without having been claimed: what was written under it can "
        f"overwrite what a younger holder wrote. Use locked_atomic() or locked_view(), or call claim() first in "
        f"each transaction."
    )


def warn_of_release(released: str | Released) -> None:
    """Warn, or as RELEASE_IN_TRANSACTION says, when a lock has been released inside a transaction.

    It is free by now: to keep the lock would do more harm, and an error out of the block rolls the transaction back.
    Where the open transaction has claimed it, no harm is done: the next holder's claim waits for COMMIT. If the lock is
    fenced, and no database was ever told, this warns of that as well. A name alone is of a lock that was released by
    its token, or of one that cannot claim.
    """
    if isinstance(released, str):
        name, claimed = released, frozenset[str]()
    else:
        name, claimed = released.name, released.claimed
        if released.unclaimed:
            warn_unclaimed(name)
    reaction = conf().RELEASE_IN_TRANSACTION
    if reaction == "ignore" or asyncio._get_running_loop() is not None:
        return
    aliases = [alias for alias in open_aliases() if alias not in claimed] if _connected else []
    if not aliases:
        return
    text = (
        f"The lock {name!r} was released inside an open transaction (database {', '.join(aliases)}): until COMMIT, the "
        f"next holder reads stale rows. Use locked_atomic() or locked_view(), or acquire the lock outside of the "
        f"transaction (REDISLOCK['RELEASE_IN_TRANSACTION'] sets what happens here: 'warn', 'error' or 'ignore')."
    )
    if reaction == "error":
        raise RuntimeError(text)
    warn(text)
