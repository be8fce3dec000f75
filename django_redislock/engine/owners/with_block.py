"""Notices that a ``with`` block is over, even if an exception strikes before ``__exit__`` can do anything.

A signal handler may raise in the very first instruction of ``__exit__``. But the ``with`` statement looks ``__exit__``
up before it calls ``__enter__``, and keeps what it got until its block has ended. So each look-up returns a new object,
and if that dies without having been called to its end, the section is undone.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation

from ...base.steps import Steps, arun, run_blocking
from ...exceptions import LockError
from ..leases.lease import Section
from .twin import twin

# what ends a block: the steps of (the lock; the section, if there is one; the error, if there is one)
End = Callable[[Any, Section | None, BaseException | None], Steps[None]]


class WithBlock:
    """One run of a ``with`` block, from the look-up of its ``__exit__`` on."""

    __slots__ = ("__weakref__", "_exit", "context", "lock", "section")

    def __init__(self, lock: object) -> None:
        self.lock: Any = lock
        self.section: Section | None = None  # once it was entered
        self.context: Any = None  # or another context manager, to be left at the end
        self._exit: Callable[[], object] = lambda: None

    def looked_up(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The object that the statement keeps for as long as the block runs."""
        exit = partial(function, self)
        self._exit = weakref.ref(exit)
        return exit

    @property
    def exit(self) -> object:
        """That object. A coroutine that ends the block must keep it, too: the statement drops it once it has made the
        coroutine."""
        return self._exit()

    def enter(self, section: Section) -> None:
        """The block is about to begin, with this section."""
        self.section = section
        exit = self.exit
        if exit is not None:  # it is dead if __exit__ was called by hand before; a traceback may keep the block
            section.undo_after(exit)


class ExitMethod:
    """``__exit__`` of a lock, as a descriptor. ``function`` takes a :class:`WithBlock` instead of self."""

    def __init__(self, function: Callable[..., Any], *, awaited: bool = False) -> None:
        def of_class(lock: Any, *args: Any) -> Any:
            return function(WithBlock(lock), *args)

        self._function = function
        self._of_class: Callable[..., Any] = twin(of_class) if awaited else of_class

    def __get__(self, lock: Any, kind: type | None = None) -> Callable[..., Any]:
        if lock is None:  # of the class: ExitStack does so, and hands over the lock itself
            return self._of_class
        block = WithBlock(lock)
        _last.block = weakref.ref(block)
        return block.looked_up(self._function)


def exit_of(end: End) -> ExitMethod:
    """``__exit__`` of a lock whose blocks end with these steps."""
    return ExitMethod(partial(_leave, end))


def aexit_of(end: End) -> ExitMethod:
    """``__aexit__`` of the same."""
    return ExitMethod(partial(_aleave, end), awaited=True)


def _leave(
    end: End,
    block: WithBlock,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    section = None
    try:
        section = _section_of(block)
        run_blocking(end(block.lock, section, error), "Use async with instead.")
    except (LockError, SynchronousOnlyOperation):
        raise
    except BaseException:  # interrupted; what an ExitStack has entered, nobody else gives back
        section = section or _section_of(block)
        if section is not None:
            section.undo()
        raise


def _aleave(
    end: End,
    block: WithBlock,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> Any:
    return _await_end(end, block, error, block.exit)


async def _await_end(end: End, block: WithBlock, error: BaseException | None, kept: object) -> None:
    await arun(end(block.lock, _section_of(block), error))


def _section_of(block: WithBlock) -> Section | None:
    """An ExitStack enters the lock itself, so its block has none."""
    section: Section | None = block.section or block.lock._own()
    return section


class _Last(threading.local):
    """The block whose exit this thread has looked up last: it is the next one to be entered."""

    block: Callable[[], WithBlock | None] | None = None


_last = _Last()


def block_of(lock: object) -> WithBlock | None:
    """The block of the ``with`` statement that is entering ``lock`` now, if known."""
    found, _last.block = _last.block, None
    block = None if found is None else found()
    return block if block is not None and block.lock is lock else None
