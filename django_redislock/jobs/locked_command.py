"""``LockedCommand``: for a site's own management commands that must not overlap."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError

from ..base.display import did_you_mean, printable, shown
from ..base.name_templates import Template
from ..base.names import lock_name
from ..base.steps import refuse_event_loop
from ..base.times import Seconds, seconds
from ..exceptions import LockLost, LockNotAcquired, LockNotOwned, LockUnavailable
from ..lock import Lock
from ..options import SemaphoreOptions, choose_waiting
from ..semaphore import Semaphore

# Exit statuses, from sysexits.h where one fits: programs rarely end with these by chance, unlike the 1 of flock(1), and
# 75 is known as "try again later".
UNAVAILABLE = 69  # EX_UNAVAILABLE: Redis cannot be reached
BUSY = 75  # EX_TEMPFAIL: the lock is held elsewhere
LOST = 76  # the lock was lost before the work was done


class LockBusy(CommandError):
    """The lock of a command is held elsewhere."""


class LockedCommand(BaseCommand):
    """A management command that runs only while it holds a lock, so that it never overlaps, on however many machines.

    ``lock_name``
        A name or a template over the command's options (``"report:{year}"``). None takes the label of its app and its
        own name: ``shop:nightly``.
    ``lock_limit``
        How many may run at once, under a :class:`Semaphore`; None: only one, under a :class:`Lock`.
    ``lock_blocking_timeout``
        Seconds to wait for a busy lock: 0 does not wait, None takes the setting BLOCKING_TIMEOUT, as does 0 with
        ``blocking``, ``attempts`` or ``backoff`` in ``lock_options``.
    ``lock_ttl``, ``lock_using``
        As ``ttl`` and ``using`` of :class:`Lock`.
    ``lock_at_least``
        Seconds for which the lock is held at least, even if the command ends sooner (returns, or calls ``sys.exit()``;
        an error releases the lock): for commands that several machines start at the same minute by clocks that differ.
    ``lock_options``
        Other options of :class:`Lock`: ``{"poll": True, "note": "the books of the year"}``, say.
    ``lock_busy_status``
        Exit status when the lock is busy.

    A busy lock raises CommandError (``returncode`` 75; on the command line nothing is printed, except to a terminal or
    with ``-v 2``), as do an unreachable Redis (69) and a lock that was lost before the command ended (76). A command
    that has lost its lock keeps running until it checks: call ``self.lock.check()`` in long loops. Works through
    ``call_command`` too. The lock of a command that is killed ends with its TTL. A class with another attribute that
    begins with ``lock_``, and is no method, raises TypeError: it is misspelt.
    """

    lock_name: str | None = None
    lock_limit: int | None = None
    lock_blocking_timeout: Seconds | None = 0
    lock_ttl: Seconds | None = None
    lock_using: str | None = None
    lock_at_least: Seconds = 0
    lock_options: Mapping[str, Any] = {}
    lock_busy_status: int = BUSY

    lock: Lock  # while the command runs

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in dir(cls):  # those of its mixins too
            value = inspect.getattr_static(cls, name)
            if name.startswith("lock_") and name not in _ATTRIBUTES and not callable(value):
                raise TypeError(
                    f"{cls.__qualname__} has {name} = {shown(value)}, which LockedCommand does not know."
                    f"{did_you_mean(name, _ATTRIBUTES, 'lock_')} The attributes are: {', '.join(_ATTRIBUTES)}."
                )

    def execute(self, *args: Any, **options: Any) -> str | None:
        refuse_event_loop()
        template = self.lock_name
        if template is None:  # app:command, wherever the class was subclassed from
            module = type(self).__module__
            app = apps.get_containing_app_config(module)
            name = lock_name(app.label if app else module.partition(".")[0], module.rpartition(".")[2])
        else:
            name = Template(template, "lock name", quoted=True).fill(options)
        timeout = self.lock_blocking_timeout
        if not timeout and choose_waiting(self.lock_options):
            timeout = None
        given: SemaphoreOptions = {
            "ttl": self.lock_ttl,
            "blocking_timeout": timeout,
            "using": self.lock_using,
            "purpose": type(self).__module__.rpartition(".")[2],
            "template": template or "",
        }
        every: Any = {**given, **self.lock_options}
        lock = Lock(name, **every) if self.lock_limit is None else Semaphore(name, limit=self.lock_limit, **every)
        at_least = seconds(self.lock_at_least, "lock_at_least", least=0)
        status = self.lock_busy_status
        if not isinstance(status, int) or not 0 <= status <= 255:  # else it would show on the day that it is busy
            what = f"{type(self).__qualname__}.lock_busy_status"
            raise ValueError(f"{what} must be an exit status from 0 to 255, not {shown(status)}.")
        with ExitStack() as stack:
            with quiet_when_busy(self, options.get("verbosity", 1)):
                stack.enter_context(held(lock, busy_status=status, at_least=at_least))
            if (outer := vars(self).get("lock")) is not None:  # the command has executed itself, with other options
                stack.callback(setattr, self, "lock", outer)
            self.lock = lock
            try:
                return super().execute(*args, **options)
            except SystemExit as end:  # a normal end, not an error
                ended = end
        raise ended


_ATTRIBUTES = [name for name in LockedCommand.__annotations__ if name.startswith("lock_")]


@contextmanager
def quiet_when_busy(command: BaseCommand, verbosity: int) -> Iterator[None]:
    """Exit silently when the lock is busy: that is normal on nine of ten machines with the same crontab, and cron mails
    what is printed. Not at a terminal, with ``-v 2``, or where the command was called from code.
    """
    try:
        yield
    except LockBusy as busy:
        if getattr(command, "_called_from_command_line", False) and verbosity < 2 and not command.stderr.isatty():
            sys.exit(busy.returncode)
        raise


@contextmanager
def held(lock: Lock, *, busy_status: int, at_least: float = 0.0) -> Iterator[None]:
    """Hold ``lock`` during a block, at least for ``at_least`` seconds; errors become CommandErrors."""
    begun = released = False
    try:
        with lock:  # not entered by hand: an interruption right after that would leave it held
            begun = True
            yield
            acquisition = lock._own()
            if acquisition is None:
                released = True  # or detached, by the command itself
            else:
                acquisition.keep(at_least)
    except LockUnavailable as error:
        if begun:  # it is an error of the work, or of its end
            raise
        raise CommandError(str(error), returncode=UNAVAILABLE) from error
    except LockNotAcquired as error:
        if begun:
            raise
        raise LockBusy(printable(str(error)), returncode=busy_status) from None
    except LockLost as error:
        if error.name != lock.name:
            raise
        raise CommandError(str(error), returncode=LOST) from error
    except LockNotOwned:
        if not released:
            raise
