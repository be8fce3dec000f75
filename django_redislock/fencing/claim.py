"""Claiming: a lock's fence is written into the database, in the transaction that does the work under the lock."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from ..engine import Lease
from ..exceptions import LockLost, LockUnavailable
from ..open_transactions import in_atomic_block, is_manual
from .table import TABLE, holder_of, reads_the_past, remedy, write_fence

# SQLSTATE, and numbers of errors of MySQL and MariaDB
MISSING = {"42P01", 1146}
TIMED_OUT = {"55P03", 1205}
CONFLICTS = {"40001", "40P01", 1213, 1020}  # could not serialize, deadlock, record has changed since last read


class Overtaken(LockLost):
    """The database has met a higher fence, or the same: that of another holder."""


def claims_on(lease: Lease, aliases: Sequence[str], *, required: bool = False) -> list[str]:
    """On which of these aliases, that have transactions open, whoever holds the lease has to claim.

    ``required``: a fenced lock without any transaction is a RuntimeError.
    """
    wanted = lease.fenced
    if required and wanted and not aliases:
        raise RuntimeError(
            f"The lock {lease.name!r} must be claimed in a transaction, but none is open: use locked_atomic(), or "
            f"locked_view() with ATOMIC_REQUESTS, or call claim() in a transaction of your own."
        )
    if isinstance(wanted, bool):
        return list(aliases) if wanted else []
    if missing := [alias for alias in wanted if alias not in aliases]:
        raise RuntimeError(
            f"The lock {lease.name!r} must be claimed on the database {missing[0]!r}, where no transaction is open. "
            f"Those with a transaction are: {', '.join(map(repr, aliases)) or 'none'}."
        )
    return list(wanted)


def claim(lease: Lease, alias: str, *, first: bool = False) -> None:
    """Raise the fence of the lock's name in the open transaction on ``alias``; see Lock.claim().

    ``first``: nothing was read in this transaction yet, for sure. Raises Overtaken, LockLost, LockUnavailable; and
    what the database raises, among it what is_conflict() recognises.
    """
    if lease.lost:
        raise lease.lost_error()
    connection, within = connections[alias], lease.terms.fence_timeout
    if not first and not (in_atomic_block(connection) or is_manual(connection)):
        raise RuntimeError(
            f"The lock {lease.name!r} can be claimed only inside a transaction, and none is open on the database "
            f"{alias!r}: use transaction.atomic(using={alias!r}), or locked_atomic()."
        )
    try:
        if not first and reads_the_past(connection, lease.name, within):
            raise RuntimeError(
                f"The lock {lease.name!r} was claimed too late in this transaction on the database {alias!r}: it reads "
                f"rows as they were before the latest holder changed them. Claim first, before anything is read; or "
                f"set the isolation level to READ COMMITTED."
            )
        # whoever adopts a lock that was detached goes on with its token, and with its fence
        met = write_fence(connection, lease.name, lease.fence, holder_of(lease.token), within)
    except DatabaseError as error:
        if explained := _explained(error, lease, alias):
            raise explained from error
        raise
    if met is not None:
        lease.partition.note_fence(met)  # Redis hears of it with the next call
        reason = f"the database {alias!r} already has the fence {met}, and this holder's is {lease.fence}"
        text = f"The lock {lease.name!r} was refused by the database: {reason}."
        raise Overtaken(text, lease.name, reason=reason, fence=lease.fence)
    lease.claimed |= {alias}


def is_missing(error: DatabaseError) -> bool:
    """Whether the database has no table for the fences."""
    return bool(_codes(error) & MISSING) or "no such table" in str(error)


def is_conflict(error: Exception) -> bool:
    """Whether the database asks to begin the transaction again."""
    return bool(_codes(error) & CONFLICTS)


def _explained(error: DatabaseError, lease: Lease, alias: str) -> Exception | None:
    """An error that says what to do, if we know."""
    codes, text = _codes(error), str(error)
    if is_missing(error):
        return ImproperlyConfigured(
            f"The database {alias!r} has no table {TABLE!r}, which fenced locks need. {remedy(alias)}"
        )
    busy = "database is locked" in text  # SQLite has one writer at a time
    if codes & TIMED_OUT or busy:
        bound, holder = "", "another transaction that writes is still open, or has written since this one began to read"
        if not busy:
            bound = "" if lease.terms.fence_timeout is None else f" within {lease.terms.fence_timeout:g} s"
            holder = "another transaction that has claimed it, of a holder that has lost the lock, is still open"
        mine = sorted(lease.claimed - {alias})
        itself = (
            f"; or it is this lock's own claim on {', '.join(map(repr, mine))}, if that is the same database: claim it "
            f"there alone, with fenced={mine}"
        )
        return LockUnavailable(
            f"The lock {lease.name!r} could not be claimed on the database {alias!r}{bound}: {holder}"
            f"{itself if mine else ''}.",
            lease.name,
        )
    return None


def _codes(error: Exception) -> set[object]:
    """What the driver of the database says of its error: psycopg, psycopg2, mysqlclient."""
    cause = error.__cause__
    number = cause.args[0] if cause is not None and cause.args else None
    return {getattr(cause, "sqlstate", None), getattr(cause, "pgcode", None), number} - {None}
