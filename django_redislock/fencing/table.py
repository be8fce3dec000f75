"""The table of fences: a row for each name that was ever claimed in this database, with the highest fence so far.

Whoever raises the fence in a row keeps the row locked until COMMIT. So a stale transaction has either committed before
the block of its successor begins, or it is refused. (Kleppmann 2016, "How to do distributed locking"; the idea of a
number that the guarded resource checks is that of Chubby's sequencers, Burrows 2006.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

TABLE = "redislock_fence"
RAISE = (
    "UPDATE {table} SET {fence} = %s, {holder} = %s, {claimed} = %s"
    " WHERE {key} = %s AND ({fence} < %s OR {fence} = %s AND {holder} = %s)"
)
# PostgreSQL: the same with a bounded wait, in one statement. The usual bound is back before the next one runs.
RAISE_WITHIN = (
    "WITH usual AS MATERIALIZED"
    " (SELECT current_setting('lock_timeout') AS bound, set_config('lock_timeout', %s, true) AS ours),"
    f" raised AS ({RAISE} AND (SELECT ours FROM usual) IS NOT NULL RETURNING 1),"
    " counted AS (SELECT count(*) AS number FROM raised)"
    " SELECT number, set_config('lock_timeout', bound, number >= 0) FROM counted, usual"
)


def digest_of(text: str) -> str:
    """The key of the row of a lock's name, since collations take names for the same that differ in case or accents.

    And who has written a fence, of the token: whoever reads that may release the lock.
    """
    return sha256(text.encode()).hexdigest()


def fences() -> Any:
    """The manager of the model, which is in a layer above this one."""
    try:
        return apps.get_model("django_redislock", "Fence")._default_manager
    except LookupError:
        raise ImproperlyConfigured(
            f"Fenced locks need the table {TABLE!r}, and its app is not installed. Add 'django_redislock' to "
            f"INSTALLED_APPS, then run manage.py migrate."
        ) from None


def remedy(alias: str) -> str:
    """Return what creates the table in this database."""
    return (
        f"Run manage.py migrate --database {alias}. If DATABASE_ROUTERS have kept 'django_redislock' out of it, let "
        f"them allow it, and first run manage.py migrate django_redislock zero --fake --database {alias}."
    )


def write_fence(
    connection: BaseDatabaseWrapper, name: str, fence: int, holder: str, within: float | None
) -> int | None:
    """Write ``fence`` into the row of ``name``, in the open transaction, unless a higher one is there.

    Or the same, by another ``holder``: then Redis has given it twice, since it has forgotten the first time, and its
    clock is behind. Returns the one that is there; None: it was written. ``within``: the seconds to wait for another
    transaction that has the row; None: for as long as the database lets it.
    """
    fences()  # before the database is asked: without the app, it lacks the table, and migrate would not create it
    key = digest_of(name)
    if _raise(connection, key, fence, holder, within):
        return None
    # no row yet, or a refusal. A locking read: it sees what is there now, where a snapshot does not
    row = fences().using(connection.alias).filter(key=key).values_list("fence", flat=True)
    with bounded(connection, within):
        while not (found := list(row.select_for_update())):
            _insert(connection, key, name, fence - 1)
        # nobody comes between: the row is locked (SQLite has one writer at a time)
        return None if _raise(connection, key, fence, holder, None) else found[0]


def reads_the_past(connection: BaseDatabaseWrapper, name: str, within: float | None) -> bool:
    """Whether this transaction reads from a snapshot that is older than the latest claim of ``name`` by another one.

    MySQL and MariaDB at REPEATABLE READ would raise the fence of today, and let the block read the rows of yesterday.
    Other databases refuse to do so by themselves. To be asked before the fence is raised: one's own writes are seen.
    """
    if connection.vendor != "mysql" or getattr(connection, "isolation_level", None) == "read committed":
        return False
    row = fences().using(connection.alias).filter(key=digest_of(name)).values_list("fence", flat=True)
    with bounded(connection, within):
        today = list(row.select_for_update())  # first: without a snapshot yet, the next line takes one
    return today != list(row)


def _raise(connection: BaseDatabaseWrapper, key: str, fence: int, holder: str, within: float | None) -> bool:
    now = connection.ops.adapt_datetimefield_value(timezone.now())
    values: list[Any] = [fence, holder, now, key, fence, fence, holder]
    sql = RAISE
    if within is not None:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(_quoted(connection, RAISE_WITHIN), [f"{_ms(within)}ms", *values])
                return bool(cursor.fetchone()[0])
        if not getattr(connection, "mysql_is_mariadb", False):
            with bounded(connection, within):
                return _raise(connection, key, fence, holder, None)
        sql = f"SET STATEMENT innodb_lock_wait_timeout = {math.ceil(within)} FOR {sql}"
    with connection.cursor() as cursor:
        cursor.execute(_quoted(connection, sql), values)
        return bool(cursor.rowcount)


def _insert(connection: BaseDatabaseWrapper, key: str, name: str, fence: int) -> None:
    """A new row, unless somebody else was quicker."""
    manager = fences()
    row = manager.model(key=key, name=name, fence=fence, claimed=timezone.now())
    manager.using(connection.alias).bulk_create([row], ignore_conflicts=True)


def _quoted(connection: BaseDatabaseWrapper, sql: str) -> str:
    columns = {name: connection.ops.quote_name(name) for name in ("key", "fence", "holder", "claimed")}
    return sql.format(table=connection.ops.quote_name(TABLE), **columns)


@contextmanager
def bounded(connection: BaseDatabaseWrapper, within: float | None) -> Iterator[None]:
    """Let statements wait for locks of the database for at most so many seconds; None: as usual."""
    if within is None or connection.vendor not in _BOUNDS:
        yield
        return
    read, write, bound = _BOUNDS[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(read)
        usual = cursor.fetchone()[0]
        cursor.execute(write.format(bound(within)))
    try:
        yield
    except BaseException:
        # a transaction of PostgreSQL that has failed takes its settings with it, and can do nothing more
        if connection.vendor != "postgresql":
            # not by Django's own cursor, which may refuse by now; and the error to tell is the first one
            with suppress(Exception), closing(connection.create_cursor()) as raw:
                raw.execute(write.format(usual))
        raise
    with connection.cursor() as cursor:
        cursor.execute(write.format(usual))


def _ms(seconds: float) -> int:
    return min(max(1, round(seconds * 1000)), 2**31 - 1)  # the most that PostgreSQL and SQLite take


# by vendor: what reads the usual bound, what sets one, and how seconds are written there
_BOUNDS: dict[str, tuple[str, str, Callable[[float], object]]] = {
    "postgresql": (
        "SELECT current_setting('lock_timeout')",
        "SET LOCAL lock_timeout = '{}'",
        lambda seconds: f"{_ms(seconds)}ms",
    ),
    "mysql": (
        "SELECT @@SESSION.innodb_lock_wait_timeout",
        "SET SESSION innodb_lock_wait_timeout = {}",
        math.ceil,
    ),
    "sqlite": ("PRAGMA busy_timeout", "PRAGMA busy_timeout = {}", _ms),
}
