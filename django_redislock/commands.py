"""``LockedCommand``: for a site's own management commands that must not overlap."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError

from . import blocks
from .conf import Seconds, seconds
from .exceptions import LockLost, LockUnavailable
from .lock import FairLock, Lock
from .names import NameTemplate, lock_name
from .steps import run
from .texts import duration, printable

# Exit statuses. Those of sysexits.h where one fits: hardly a program ends with them by chance, as it does with the 1 of
# flock(1), and 75 is known as "try again later".
UNAVAILABLE = 69  # EX_UNAVAILABLE: Redis cannot be reached
BUSY = 75  # EX_TEMPFAIL: somebody else holds the lock
LOST = 76  # the lock was lost before the work was done


class LockBusy(CommandError):
    """Somebody else holds the lock of a command."""


class LockedCommand(BaseCommand):
    """A management command that runs only while it holds a lock, so that it never overlaps, on however many machines.

    ``lock_name``
        A name or a template over the command's options (``"report:{year}"``). None takes the label of its app and its
        own name: ``shop:nightly``.
    ``lock_wait``
        Seconds to wait for a busy lock: 0 does not wait, None takes the setting BLOCKING_TIMEOUT.
    ``lock_ttl``, ``lock_fair``, ``lock_using``
        As ``ttl`` and ``using`` of :class:`Lock`; ``lock_fair`` takes a :class:`FairLock`.
    ``lock_at_least``
        Seconds, from when it was taken, that the lock is kept even when the command has ended before (returned, or
        left by ``sys.exit()``; an error lets go): for commands that several machines start at the same minute by clocks
        that differ.
    ``lock_options``
        Whatever else :class:`Lock` takes: ``{"wait": "poll", "note": "the books of the year"}``, say.
    ``lock_busy_status``
        Exit status when the lock is busy.

    A busy lock raises CommandError (``returncode`` 75; on the command line nothing is printed, but for terminals and
    with ``-v 2``), as do an unreachable Redis (69) and a lock that was lost before the command had ended (76). It goes
    on until it looks: call ``self.lock.check()`` in long loops. Works through ``call_command`` too. A command that is
    killed leaves its lock to its TTL.
    """

    lock_name: str | None = None
    lock_wait: Seconds | None = 0
    lock_ttl: Seconds | None = None
    lock_fair: bool = False
    lock_using: str | None = None
    lock_at_least: Seconds = 0
    lock_options: Mapping[str, Any] = {}
    lock_busy_status: int = BUSY

    lock: Lock  # while the command runs

    def execute(self, *args: Any, **options: Any) -> str | None:
        template = self.lock_name
        name = _default_name(type(self)) if template is None else NameTemplate(template).fill(options)
        kind = FairLock if self.lock_fair else Lock
        options_of_lock = {"ttl": self.lock_ttl, "blocking_timeout": self.lock_wait, "using": self.lock_using}
        self.lock = kind(name, **{**options_of_lock, **self.lock_options})
        self.lock.purpose = type(self).__module__.rpartition(".")[2]
        at_least = seconds(self.lock_at_least, "lock_at_least", positive=False)
        with ExitStack() as stack:
            with quiet_when_busy(self, options.get("verbosity", 1)):
                stack.enter_context(taken(self.lock, busy_status=self.lock_busy_status, at_least=at_least))
            try:
                return super().execute(*args, **options)
            except SystemExit as end:  # an end like any other, as that of a program is
                ended = end
        raise ended


def _default_name(command: type[BaseCommand]) -> str:
    """``label:name`` for the module ``shop.management.commands.nightly``, wherever the class was subclassed from."""
    module = command.__module__
    app = apps.get_containing_app_config(module)
    return lock_name(app.label if app else module.partition(".")[0], module.rpartition(".")[2])


@contextmanager
def quiet_when_busy(command: BaseCommand, verbosity: int) -> Iterator[None]:
    """End without a word when the lock is busy: on nine of ten machines with the same crontab that is no news, which
    cron would mail. Not at a terminal, with ``-v 2``, or where the command was called from code.
    """
    try:
        yield
    except LockBusy as busy:
        if getattr(command, "_called_from_command_line", False) and verbosity < 2 and not command.stderr.isatty():
            sys.exit(busy.returncode)
        raise


@contextmanager
def taken(lock: Lock, *, busy_status: int, at_least: float = 0.0) -> Iterator[None]:
    """Hold ``lock`` for the time of a block, at least so many seconds; what goes wrong is a CommandError."""
    try:
        got = lock.acquire()
    except LockUnavailable as error:
        raise CommandError(str(error), returncode=UNAVAILABLE) from error
    if not got:
        raise LockBusy(_held_by(lock), returncode=busy_status)
    since = monotonic()
    try:
        with ExitStack() as stack:
            stack.push(lock)  # lets go of it when the block raises
            yield
            if lock.lost:
                lock.check()  # says so, which a release could not where Redis is out of reach
            stack.pop_all()
        _give_back(lock, at_least - (monotonic() - since))
    except LockLost as error:
        if error.name != lock.name:
            raise
        raise CommandError(str(error), returncode=LOST) from error


def _give_back(lock: Lock, left: float) -> None:
    """Release ``lock``, or keep it from others for the seconds that are ``left``."""
    lease = lock._lease()
    if left >= 0.001:
        try:
            lock.extend(left, replace_ttl=True)
            lock.detach()
            return
        except LockUnavailable:
            pass  # it ends before, then
    run(lock._release_surely(lease))
    blocks.complain_of_release(lock.name)


def _held_by(lock: Lock) -> str:
    try:
        info = lock.info()
    except LockUnavailable:
        info = None
    holder = f" by {printable(info.owner)} for {duration(info.held_for)}" if info else " by somebody else"
    return f"The lock {printable(lock.name)} is held{holder}."
