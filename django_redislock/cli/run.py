"""``redislocks run``: a program under a lock, the signals that it gets, and how it ends: before the lock does."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from glob import glob
from subprocess import DEVNULL, PIPE, Popen
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from ..base.display import printable
from ..base.names import SEMAPHORE
from ..base.times import monotonic
from ..jobs.locked_command import LOST, held
from ..leadership import leader
from ..lock import Lock
from ..semaphore import Semaphore
from ..store.stores import get_store
from .locks import warn_of_memory
from .output import Output

CANNOT_RUN, NOT_FOUND = 126, 127  # as shells say it
RELAYED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
FROM_KEYBOARD = frozenset({signal.SIGINT, signal.SIGQUIT})

LOOK_EVERY = 0.05  # seconds, while a program comes to its end
SEEN_WITHIN = 0.25  # seconds after its end, or the loss of the lock


def run_program(
    output: Output,
    *,
    name: str,
    program: Sequence[str],
    limit: int | None,
    ttl: float | None,
    blocking_timeout: float,
    at_least: float,
    stay: bool,
    kill_after: float,
    conflict_exit_code: int,
    using: str | None,
    **options: Any,
) -> None:
    """Run a program under a lock, or a semaphore, and exit with its status. It is renewed while the program runs."""
    if stay and (limit or blocking_timeout or at_least):
        raise CommandError(
            "--stay waits without end, for one lock: it goes with none of --limit, --blocking-timeout and --at-least.",
            returncode=2,
        )
    store = get_store(using)
    if store.memory and not settings.DEBUG:
        raise CommandError(
            f"Not run: the cache alias {store.alias!r} is not Redis, so the lock would guard this process only. Name "
            f"an alias with a Redis in REDISLOCK['CACHE'], or with --using.",
            returncode=2,
        )
    warn_of_memory(output, store)
    given: dict[str, Any] = {
        "ttl": ttl,
        "using": using,
        # without its arguments, which may hold secrets
        "purpose": f"redislocks run {os.path.basename(program[0])}",
    }
    try:
        lock = _make_lock(name, given, stay, limit, blocking_timeout)
    except ValueError as error:
        raise CommandError(str(error), returncode=2) from None
    if stay:
        kill_after = min(kill_after, lock.ttl / 4)  # of the third that is left when a leader's lease counts as over
    with Program(kill_after) as running:
        while True:
            try:
                with held(lock, busy_status=conflict_exit_code, at_least=at_least):
                    status = _run_once(lock, running, program)
                break
            except CommandError as error:
                if not stay or error.returncode != LOST:
                    raise
                running.forget()
                if running.dismissed:
                    raise
    if status:
        sys.exit(status)


def _make_lock(name: str, given: Mapping[str, Any], stay: bool, limit: int | None, blocking_timeout: float) -> Lock:
    if limit is None and name.startswith(SEMAPHORE):
        raise ValueError(f"{name!r} is a semaphore: say with --limit how many programs may run at once.")
    # not fenced: the program writes, and cannot claim the lock. A release must not warn of that
    if stay:
        return leader(name, fenced=False, **given)
    if limit is None:
        return Lock(name, blocking_timeout=blocking_timeout, auto_renew=True, fenced=False, **given)
    return Semaphore(name, limit=limit, blocking_timeout=blocking_timeout, auto_renew=True, **given)


def _run_once(lock: Lock, running: Program, program: Sequence[str]) -> int:
    """Run the program under a lock, which a leader has yet to get; return its exit status."""
    if isinstance(lock, leader):
        lock.lead()
    try:
        running.start(program, {**os.environ, "REDISLOCK_NAME": lock.name, "REDISLOCK_FENCE": str(lock.fence)})
    except OSError as error:
        status = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
        problem = f"Cannot run {printable(program[0])}: {error.strerror or error}."
        raise CommandError(problem, returncode=status) from error
    return running.wait(lambda: lock.lost, lock.remaining)


# Ends the program if we cannot, because we were killed by -9 (by the kernel when memory is short, say). We keep the
# write end of its input: if that closes before we have said that the program has ended, we are dead. (A program that
# started in the very moment we died is missed. Linux's PR_SET_PDEATHSIG reaches only the program, nothing that it has
# started, and would have to be set between fork and exec, in Python, in a process that has threads.)
GUARD = """
read -r target || exit 0
read -r ended && exit 0
kill -s TERM -- "$target" || exit 0
kill -s CONT -- "$target"
waited=0
while [ "$waited" -lt "$1" ] && kill -s 0 -- "$target"; do sleep 1; waited=$((waited + 1)); done
kill -s KILL -- "$target"
"""
SHELL = "/bin/sh"


def _start_guard(kill_after: float) -> Popen[bytes] | None:
    words = [SHELL, "-c", GUARD, "redislocks-guard", str(math.ceil(kill_after))]
    try:
        return Popen(words, bufsize=0, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
    except OSError:
        return None  # no shell, in some containers: do without


class Program:
    """A program, with all that it starts in its process group. In this block, it gets the signals of this process.

    While there is none, they end this process: cleanly, so that the lock is released. Signals that were ignored at the
    start (nohup) stay ignored, by the program too.
    """

    def __init__(self, kill_after: float) -> None:
        self._kill_after = kill_after
        self._process: Popen[bytes] | None = None
        # it stays in our own process group, where the terminal's Ctrl-C and Ctrl-Z reach it as they reach us, and it
        # may read from the terminal. Then the program alone is signalled
        self._shared = False
        self._starting = self._gone = False
        self._ending = False  # it was told to end, and what it has started with it
        self.dismissed: bool = False  # a signal has asked this process to end
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Program:
        if threading.current_thread() is threading.main_thread():
            for number in (*RELAYED, signal.SIGTSTP):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._on_signal)
            if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # exit statuses would be thrown away
                self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises OSError when it does not start."""
        self._shared = _has_terminal()
        self._guard = _start_guard(self._kill_after)
        self._starting = True
        try:
            # a session of its own: process_group= is not there before Python 3.11
            self._process = Popen(arguments, env=environment, start_new_session=not self._shared)
        except BaseException:
            self._dismiss_guard()
            raise
        finally:
            self._starting = False
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):  # somebody has killed it
                self._guard.stdin.write(b"%d\n" % self._target)
        for number in self._early:
            self._on_signal(number, None)

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.communicate(b"ended\n" if self._process else b"")

    @property
    def _target(self) -> int:
        assert self._process is not None
        return self._process.pid if self._shared else -self._process.pid

    def forget(self) -> None:
        """It has ended, and may be started again; meanwhile signals end this process, as before the first start."""
        self._process, self._early = None, []
        self._gone = self._ending = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._starting:
            self._early.append(number)  # an exception halfway would leave a program that nobody knows
        elif number == signal.SIGTSTP:
            self._stop()
        elif self._process is not None:
            self._relay(number)
        elif not self.dismissed:  # a second one must not interrupt what the first has us clean up
            self.dismissed = True
            sys.exit(128 + number)

    def _stop(self) -> None:
        """Stop the program, then this process; when this one goes on, so does the program. For signal handlers."""
        own_session = self._process is not None and not self._shared
        if own_session:
            self._send(signal.SIGSTOP)  # not SIGTSTP, which the kernel discards in such an orphaned process group
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_signal)
        if own_session:
            self._send(signal.SIGCONT)

    def _relay(self, number: int) -> None:
        """Called from signal handlers, so it takes no lock."""
        # a program may take SIGHUP as a call to read its settings again; if it ends by it, we have nothing to run
        self.dismissed = self.dismissed or number in ENDING - {signal.SIGHUP}
        if self._shared and number in FROM_KEYBOARD:
            return  # the terminal has sent it to both of us
        self._ending = self._ending or number in ENDING
        self._send(number)

    def _send(self, number: int) -> bool:
        """Send a signal; return whether anybody is there to get it."""
        assert self._process is not None
        if self._gone or (self._shared and self._process.returncode is not None):
            return False
        try:
            os.kill(self._target, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it has changed its user
        return True

    def _is_left(self) -> bool:
        """Return whether anything of the program is left, once it has ended itself and its exit status is known."""
        if not self._shared:
            try:
                while os.waitpid(self._target, os.WNOHANG)[0]:
                    pass  # process 1 of a container inherits orphans, which stay as zombies until it asks for them
            except ChildProcessError:
                pass
        return self._send(0) and not _are_zombies(-self._target)

    def wait(self, lost: Callable[[], bool], remaining: Callable[[], float]) -> int:
        """Wait until it has ended, and end it when the lock is lost; return its exit status as a shell would.

        Once it was told to end, by us or by a signal, this waits for its whole process group.
        """
        kill_at, told = math.inf, False
        pause = 0.001  # many programs are short
        assert self._process is not None
        while True:
            ended = self._process.poll() is not None
            if ended and not (self._ending and self._is_left()):
                break
            if not told and lost():
                told = self._ending = True
                kill_at = monotonic() + self._kill_after
                self._send(signal.SIGTERM)
                self._send(signal.SIGCONT)  # a stopped one would not notice
            if monotonic() >= kill_at:
                kill_at = math.inf
                self._send(signal.SIGKILL)
            pause = min(1.2 * pause, SEEN_WITHIN)
            time.sleep(LOOK_EVERY if ended or told else min(pause, max(remaining(), LOOK_EVERY)))
        self._gone = True
        self._dismiss_guard()
        status = self._process.returncode
        return 128 - status if status < 0 else status


def _are_zombies(group: int) -> bool:
    """Return whether all that is left of a process group has ended, and its parent does not ask for it; on Linux only.

    Process 1 of a container may never do so. We do not take its place (PR_SET_CHILD_SUBREAPER): all that the program
    leaves behind would be ours to ask for, daemons too, in whatever process calls this command.
    """
    states = set()
    for path in glob("/proc/[0-9]*/stat"):
        with suppress(OSError), open(path, "rb") as stat:
            state, _, its_group, *more = stat.read().rpartition(b")")[2].split()
            if int(its_group) == group:
                states.add(state if int(more[14]) <= 1 else b"")  # other threads may outlive the first one, a zombie
    return bool(states) and states <= {b"Z", b"X"}


def _has_terminal() -> bool:
    """Return whether we read from a terminal, in the foreground."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
