"""``redislocks fences prune``: forget the fences of names that nobody has claimed for long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from ..fencing import is_missing, prune, remedy
from .arguments import age
from .output import Output

HELP = "Delete old fences that the database keeps of claimed locks."


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("action", choices=["prune"], help="prune: delete the rows of names not claimed for long.")
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=age,
        required=True,
        help="Time since the latest claim, such as 30d, 12h or 90m.",
    )
    parser.add_argument("--dry-run", action="store_true", help="Only say how many rows would be deleted.")
    parser.add_argument(
        "--database",
        metavar="ALIAS",
        default=DEFAULT_DB_ALIAS,
        help=f"Alias in DATABASES; by default {DEFAULT_DB_ALIAS!r}.",
    )


def handle(output: Output, *, older_than: timedelta, dry_run: bool, database: str, **options: Any) -> None:
    if database not in connections:
        raise CommandError(
            f"Unknown database alias {database!r}. The aliases in DATABASES are: {', '.join(connections)}.",
            returncode=2,
        )
    try:
        deleted, left = prune(older_than, using=database, dry_run=dry_run)
    except DatabaseError as error:
        hint = f". {remedy(database)}" if is_missing(error) else ""
        raise CommandError(f"Could not prune the fences of the database {database!r}: {error}{hint}") from error
    fences = f"{deleted} fence" if deleted == 1 else f"{deleted} fences"
    done = f"Would delete {fences}, and keep {left}" if dry_run else f"Deleted {fences}, kept {left}"
    output.say(f"{done} (database {database}).")
