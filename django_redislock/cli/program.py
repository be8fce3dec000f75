"""A program that runs under a lock: what it is told, how it ends, and that nothing of it outlives the lock."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import ceil
from subprocess import DEVNULL, PIPE, Popen
from types import FrameType
from typing import Any

from ..base.times import monotonic

RELAYED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
FROM_KEYBOARD = frozenset({signal.SIGINT, signal.SIGQUIT})

LOOK_EVERY = 0.05  # seconds, while what a program has left behind comes to its end

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


class Guard:
    """A small process that ends a program when this one has died."""

    def __init__(self, kill_after: float) -> None:
        try:
            self._process: Popen[bytes] | None = Popen(
                [SHELL, "-c", GUARD, "redislocks-guard", str(ceil(kill_after))],
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self._process = None  # no shell, in some containers: do without

    def tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(f"{line}\n".encode())
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # somebody has killed it

    def end(self) -> None:
        self.tell("ended")
        if self._process is not None:
            self._process.communicate()


class Program:
    """A running program, with all that it starts in its process group.

    ``shared``: it stays in our own process group, where the terminal's Ctrl-C and Ctrl-Z reach it as they reach us, and
    it may read from the terminal. Then the program alone is signalled. Raises OSError when it does not start.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, shared: bool, kill_after: float
    ) -> None:
        self._shared = shared
        self._kill_after = kill_after
        self._ended = self._gone = False
        self._ending = False  # it was told to end, and what it has started with it
        self._warned = False
        self._news = threading.Event()
        self._guard = Guard(kill_after)
        try:
            # a session of its own: process_group= is not there before Python 3.11
            self._process = Popen(arguments, env=environment, start_new_session=not shared)
        except BaseException:
            self._guard.end()
            raise
        self._target = self._process.pid if shared else -self._process.pid
        self._guard.tell(str(self._target))
        threading.Thread(target=self._await_end, name="redislocks-program", daemon=True).start()

    def _await_end(self) -> None:
        self._process.wait()
        self._ended = True
        self._news.set()

    def look(self) -> None:
        """Wake wait(): something has happened, such as the loss of the lock."""
        self._news.set()

    def signal(self, number: int) -> None:
        """Pass on a signal that we were sent. Called from signal handlers, so it takes no lock."""
        if self._shared and number in FROM_KEYBOARD:
            return  # the terminal has sent it to both of us
        self._ending = self._ending or number in ENDING
        self._send(number)

    def _send(self, number: int) -> bool:
        """Send a signal; return whether anybody is there to get it."""
        if self._gone or (self._shared and self._ended):
            return False
        try:
            os.kill(self._target, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            if number in ENDING:
                self._warn()
        return True

    def _is_left(self) -> bool:
        """Whether anything of the program is left, once it has ended itself and its exit status is known."""
        if not self._shared:
            try:
                while os.waitpid(self._target, os.WNOHANG)[0]:
                    pass  # process 1 of a container inherits orphans, which stay as zombies until it asks for them
            except ChildProcessError:
                pass
        return self._send(0)

    def _warn(self) -> None:
        """Say once that the program cannot be ended. Called from signal handlers, so it uses no file object."""
        if not self._warned and sys.stderr is not None:  # else 2 may be the number of a connection to Redis
            self._warned = True
            pid = self._process.pid
            with suppress(OSError):
                os.write(2, f"Cannot end the program (process {pid}): it runs as another user.\n".encode())

    def wait(self, lost: Callable[[], bool], remaining: Callable[[], float]) -> int:
        """Wait until it has ended, and end it when the lock is lost; return its exit status as a shell would.

        Once it was told to end, by us or by a signal, this waits for its whole process group.
        """
        kill_at = math.inf
        told = False
        while True:
            self._news.clear()
            if self._ended and not (self._ending and self._is_left()):
                break
            if not told and lost():
                told = self._ending = True
                kill_at = monotonic() + self._kill_after
                self._send(signal.SIGTERM)
                self._send(signal.SIGCONT)  # a stopped one would not notice
            if monotonic() >= kill_at:
                kill_at = math.inf
                self._send(signal.SIGKILL)
            self._news.wait(LOOK_EVERY if self._ended or told else max(remaining(), LOOK_EVERY))
        self._gone = True
        self._guard.end()
        status = self._process.returncode
        return 128 - status if status < 0 else status


class Relay:
    """Passes on the signals that this process gets to a program. While there is none, they end this process: cleanly,
    so that the lock is released. Signals that were ignored at the start (nohup) stay ignored, by the program too.
    """

    def __init__(self) -> None:
        self._program: Program | None = None
        self._starting = False
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Relay:
        if threading.current_thread() is threading.main_thread():
            for number in RELAYED:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._on_signal)
            if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # exit statuses would be thrown away
                self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._program is not None:
            self._program.signal(number)
        elif self._starting:
            self._early.append(number)  # an exception halfway would leave a program that nobody knows
        else:
            sys.exit(128 + number)

    def look(self) -> None:
        """See :meth:`Program.look`; one that starts later looks by itself."""
        if self._program is not None:
            self._program.look()

    def start(self, make: Callable[[], Program]) -> Program:
        self._starting = True
        try:
            self._program = program = make()
        finally:
            self._starting = False
        for number in self._early:
            program.signal(number)
        return program


def has_terminal() -> bool:
    """Whether we read from a terminal, in the foreground."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
