"""What a demo sets up and removes again: a database, a key prefix in Redis, and handlers for Ctrl-C."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import override_settings
from redis.exceptions import RedisError

from django_redislock import list_locks
from django_redislock.store.stores import get_store


@contextmanager
def database(path: Path) -> Iterator[Path]:
    """A new, migrated SQLite database as the default one."""
    connection.close()
    before = connection.settings_dict["NAME"]
    connection.settings_dict["NAME"] = str(path)
    try:
        call_command("migrate", verbosity=0, interactive=False)
        yield path
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before


@contextmanager
def own_keys() -> Iterator[None]:
    """A key prefix of its own in the Redis that the user has given us, for this process and its children."""
    prefix = os.environ["SHOP_KEY_PREFIX"] = f"shop-demo-{secrets.token_hex(4)}"
    with override_settings(CACHES={"default": {**settings.CACHES["default"], "KEY_PREFIX": prefix}}):
        list_locks()  # raises if Redis cannot be reached
        try:
            yield
        finally:
            # other keys expire; these are meant to stay, but nobody will use this prefix again
            with suppress(RedisError, OSError):
                for partition in get_store().everywhere():
                    partition.execute(("DEL", f"{partition.prefix}fence", f"{partition.prefix}index"))


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt, so that either cleans up, even if SIGINT was ignored before."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
