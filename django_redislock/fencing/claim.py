"""Claiming: a lock's fence is written into the database, in the transaction that does the work under the lock.

``begin`` does BEGIN and claim as one step: what begins here is a transaction that nobody younger has overtaken.
``prune`` forgets names that nobody has claimed for long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from ..base.display import shown
from ..base.steps import run
from ..engine.extension import tell_fence
from ..engine.lease import Lease
from ..exceptions import LockLost, LockUnavailable
from ..open_transactions import has_claimed, open_transaction
from ..options import check_database
from .table import TABLE, bounded, digest_of, fences, reads_the_past, remedy, write_fence

# SQLSTATE, and numbers of errors of MySQL and MariaDB
MISSING = {"42P01", 1146}
TIMED_OUT = {"55P03", 1205}
CANCELLED = {"57014", 1969, 3024}  # by the limit for statements (statement_timeout, for instance), or by hand
READ_ONLY = {"25006", 1792, 1290, 1836}  # the transaction, or the server
CONFLICTS = {"40001", "40P01", 1213, 1020}  # could not serialize, deadlock, record has changed since last read


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

    ``first``: nothing was read in this transaction yet, for sure. Raises LockLost, LockNotOwned, LockUnavailable;
    and what the database raises, among it what is_conflict() recognises.
    """
    if lease.lost:
        raise lease.lost_error()
    lease.check_not_ending("claim")
    connection, within = connections[check_database(alias, "using")], lease.terms.fence_timeout
    connection.ensure_connection()  # with autocommit off, that begins a transaction
    if not first and not open_transaction(connection):
        raise RuntimeError(
            f"The lock {lease.name!r} can be claimed only inside a transaction, and none is open on the database "
            f"{alias!r}: use transaction.atomic(using={alias!r}), or locked_atomic()."
        )
    with _explaining(lease, alias):
        if not first and reads_the_past(connection, lease.name, within):
            raise RuntimeError(
                f"The lock {lease.name!r} was claimed too late in this transaction on the database {alias!r}: it reads "
                f"rows as they were before the latest holder changed them. Claim first, before anything is read; or "
                f"set the isolation level to READ COMMITTED."
            )
        # whoever adopts a lock that was detached goes on with its token, and with its fence
        met = write_fence(connection, lease.name, lease.fence, digest_of(lease.token), within)
    if met is not None:
        run(tell_fence(lease, met))
        reason = f"the database {alias!r} already has the fence {met}, and this holder's is {lease.fence}"
        text = f"The lock {lease.name!r} was refused by the database: {reason}."
        raise LockLost(text, lease.name, reason=reason, fence=lease.fence)
    lease.claimed = {**lease.claimed, alias: open_transaction(connection)}


def is_missing(error: DatabaseError) -> bool:
    """Return whether the database has no table for the fences."""
    return bool(_codes(error) & MISSING) or "no such table" in str(error)


def is_conflict(error: Exception) -> bool:
    """Return whether the database asks to begin the transaction again."""
    return bool(_codes(error) & CONFLICTS)


@contextmanager
def _explaining(lease: Lease, alias: str) -> Iterator[None]:
    """Turn an error of the database into one that says what to do, if we know."""
    try:
        yield
    except DatabaseError as error:
        if is_missing(error):
            raise ImproperlyConfigured(
                f"The database {alias!r} has no table {TABLE!r}, which fenced locks need. {remedy(alias)}"
            ) from error
        codes = _codes(error)
        if codes & READ_ONLY or "attempt to write a readonly database" in str(error):
            raise ImproperlyConfigured(
                f"The lock {lease.name!r} cannot be claimed on the database {alias!r}, which is read-only: name those "
                f"on which to claim it, with fenced=[...] or claim(using). If it was demoted just now, try again."
            ) from error
        busy = "database is locked" in str(error)  # SQLite has one writer at a time
        if not busy and not codes & (TIMED_OUT | CANCELLED):
            raise
        words = str(error).partition("\n")[0]
        raise LockUnavailable(
            f"The lock {lease.name!r} could not be claimed on the database {alias!r}, which says {words!r}. Another "
            f"transaction that has claimed it (with SQLite, any that writes) may still be open: that of a holder that "
            f"has lost the lock, or has released it before COMMIT and now waits for it; or, if two aliases lead to the "
            f"same database, it is this lock's own claim on the other one.",
            lease.name,
        ) from error


def _codes(error: Exception) -> set[object]:
    """Return what the driver of the database says of its error: psycopg, psycopg2, mysqlclient."""
    cause = error.__cause__
    number = cause.args[0] if cause is not None and cause.args else None
    return {getattr(cause, "sqlstate", None), getattr(cause, "pgcode", None), number} - {None}


TRIES = 10  # a stale transaction makes one try more necessary; more come from first claims of neighbouring rows


def begin(
    opened: ExitStack,
    aliases: Sequence[str],
    leases: Sequence[Lease],
    *,
    beside: Sequence[str] = (),
    durable: bool = False,
    required: bool = False,
) -> None:
    """Open a transaction on each alias, the first outermost, and claim the locks where they are fenced.

    ``opened``, entered and still empty, commits or rolls back at its end, also where this is interrupted.
    ``beside``: where somebody else has begun already. ``required``: they must be fenced somewhere; see claims_on().

    Nothing of the block has run yet, so when the database refuses a claim that has waited, this starts over. Raises
    LockLost if the database has a higher fence, or LockUnavailable if a stale transaction does not end. When they have
    ended, a lease is ``bound`` if each of these transactions has claimed it: what they have committed is valid even if
    the lock was lost since, as nobody's work was overwritten.
    """
    claims = [(lease, alias) for lease in leases for alias in claims_on(lease, [*beside, *aliases], required=required)]
    for lease, alias in claims:
        if alias in beside:
            claim(lease, alias)
    tries = 0
    while True:
        tries += 1
        try:
            open_together(opened, aliases, claims, durable=durable)
            opened.callback(_bind, leases, aliases)
            return
        except DatabaseError as error:
            if tries >= TRIES or not is_conflict(error):
                raise


def _bind(leases: Sequence[Lease], aliases: Sequence[str]) -> None:
    for lease in leases:
        lease.bound = all(has_claimed(lease.claimed, alias) for alias in aliases)


def open_together(
    opened: ExitStack, aliases: Sequence[str], claims: Sequence[tuple[Lease, str]] = (), *, durable: bool = False
) -> None:
    """Open the transactions, and claim each of these locks on its alias. If that raises, all are rolled back.

    ``opened``: see begin(). Their callbacks of ``on_commit()`` run when all have committed. (Where Django nests
    transactions, one that raises comes between two COMMITs, and rolls back what is not committed yet.)
    """
    try:
        for alias in aliases:
            atomic, connection = transaction.atomic(using=alias, durable=durable), connections[alias]
            opened.push(partial(_end, atomic, connection))  # first: this may be interrupted right after it has begun
            leases = [lease for lease, where in claims if where == alias]
            if leases and connection.vendor == "sqlite":  # its BEGIN waits too, in transaction_mode IMMEDIATE
                with _explaining(leases[0], alias), bounded(connection, leases[0].terms.fence_timeout):
                    atomic.__enter__()
            else:
                atomic.__enter__()
            for lease in leases:
                claim(lease, alias, first=True)
        opened.callback(_leave_callbacks_to_the_last, [connections[alias] for alias in aliases])
    except BaseException as error:
        opened.__exit__(type(error), error, error.__traceback__)  # empty again, for another try
        raise


def _end(atomic: transaction.Atomic, connection: BaseDatabaseWrapper, /, *error: Any) -> None:
    if atomic in connection.atomic_blocks:  # it has begun
        atomic.__exit__(*error)


def _leave_callbacks_to_the_last(opened: list[BaseDatabaseWrapper]) -> None:
    # not in a test case, after set_rollback(), or with autocommit off
    commit = [one for one in opened if one.commit_on_exit and not (one.savepoint_ids or one.needs_rollback)]
    if commit and commit[0] is opened[0]:
        for connection in commit[1:]:
            opened[0].run_on_commit[:0] = connection.run_on_commit
            connection.run_on_commit = []


YOUNGEST = timedelta(days=1)  # that may be pruned


class Pruned(NamedTuple):
    """How many rows were (or would be) deleted, and how many are left."""

    deleted: int
    left: int


def prune(older_than: timedelta, *, using: str = "default", dry_run: bool = False) -> Pruned:
    """Delete the rows of names whose latest claim is longer ago; return how many, and how many are left.

    A holder that was stopped for longer than that between acquiring its lock and claiming it can then write, though
    another one has claimed the lock meanwhile. So ValueError for less than a day.
    """
    if not isinstance(older_than, timedelta):
        raise TypeError(f"older_than must be a timedelta, not {shown(older_than)}.")
    if older_than < YOUNGEST:
        raise ValueError(f"older_than must be at least one day, not {older_than!r}.")
    rows = fences().using(using)
    old = rows.filter(claimed__lt=timezone.now() - older_than)
    # in one statement, whatever receivers of pre_delete there are: what is claimed meanwhile stays
    deleted = old.count() if dry_run else old._raw_delete(using)
    return Pruned(deleted, rows.count() - (deleted if dry_run else 0))
