"""Who a lock belongs to: whose it is to use, whether they still live, and what people read of them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import asgiref.sync

MAX_BYTES = 200
Task = asyncio.Task[Any]

_process: tuple[str, str] | None = None  # host and pid, command


class Bond:
    """Kept by what a thread or task knows that it holds. When that is forgotten, nobody can release the lease."""

    __slots__ = ("__weakref__",)


def _unbound() -> None:
    return None


class Owner:
    """The thread or task that has acquired, or the sync caller that goes on when a task of ``async_to_sync`` has."""

    __slots__ = ("_bond", "_bridged", "_followed", "_pid", "_who")

    def __init__(self, task: Task | None) -> None:
        """``task``: the one that runs; None: this thread."""
        self._who: weakref.ref[Any] = weakref.ref(threading.current_thread() if task is None else task)
        self._bridged = task is not None and _is_bridge(task)
        self._followed = False  # by a response, which is the owner now
        self._bond: Callable[[], Bond | None] = _unbound
        self._pid = os.getpid()

    def bond(self) -> Bond:
        """What those who hold the lease must keep; new when nobody does."""
        bond = self._bond()
        if bond is None:
            bond = Bond()
            self._bond = weakref.ref(bond)
        return bond

    def follow(self, response: object) -> None:
        """The view has returned: only hooks will release, and while ``response`` lives they may."""
        self._who = weakref.ref(response)
        self._followed = True

    @property
    def here(self) -> bool:
        """Not in the process that this one was forked from."""
        return self._pid == os.getpid()

    def is_me(self, task: Task | None) -> bool:
        """Whether that is the running ``task`` (None: sync code), whose context shows what is owned.

        A task's context was copied from whoever created it, so it shows the leases of others: its creator's are not its
        own, unless that is the sync caller of ``async_to_sync``.
        """
        return self._pid == os.getpid() and (task is None or self._who() is task or _is_bridge(task))

    def alive(self) -> bool:
        """Whether they live, and whoever could still release."""
        who: Any = self._who()
        if self._followed:
            return who is not None
        if self._bond() is None:
            return False
        if self._bridged:
            return True
        # not the other way round: gevent leaves in threading a Thread that not all of its threads are instances of
        if asyncio.isfuture(who):
            # nobody goes on with a task whose loop was closed over it
            return not who.done() and not who.get_loop().is_closed()
        return who is not None and who.is_alive()


def _is_bridge(task: Task) -> bool:
    """Whether the task was made by ``async_to_sync``: it ends with the call, and the sync caller goes on."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename == asgiref.sync.__file__


def running_task() -> Task | None:
    """The task that runs in this thread, if any."""
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


def describe_owner(purpose: str, task: Task | None = None) -> str:
    """``host:pid:thread`` (or task) and ``purpose``, for people to read.

    ``purpose`` is a request's path, say; without one it is the management command that runs, if any.
    """
    global _process
    if _process is None:
        program, *arguments = sys.argv or [""]
        managing = program.endswith(("manage.py", "django-admin", "django/__main__.py"))
        command = arguments[0] if managing and arguments and not arguments[0].startswith("-") else ""
        _process = f"{socket.gethostname()}:{os.getpid()}:", command
    where, command = _process
    thread = threading.current_thread().name
    text = f"{where}{thread if task is None else f'{thread}/{task.get_name()}'} {purpose or command}".rstrip()
    if not text.isascii() or not text.isprintable() or len(text) > MAX_BYTES:
        text = "".join(char if char.isprintable() else "?" for char in text)
        text = text.encode(errors="replace")[:MAX_BYTES].decode(errors="ignore")
    return text


def _after_fork_in_child() -> None:  # pragma: no cover (runs in forked children only)
    global _process
    _process = None


os.register_at_fork(after_in_child=_after_fork_in_child)
