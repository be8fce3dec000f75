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
from typing import Any

from ..leases.lease import Section
from .twin import twin


class WithBlock:
    """One run of a ``with`` block, from the look-up of its ``__exit__`` on."""

    lock: Any
    section: Section | None = None  # once it was entered
    context: Any = None  # or another context manager, to be left at the end
    _exit: Callable[[], object]

    @property
    def exit(self) -> object:
        """The object that the statement keeps for as long as the block runs.

        A coroutine that ends the block must keep it, too: the statement drops it once it has made the coroutine.
        """
        return self._exit()

    def enter(self, section: Section) -> None:
        """The block is about to begin, with this section."""
        self.section = section
        exit = self._exit()
        if exit is not None:  # it is dead if __exit__ was called by hand before; a traceback may keep the block
            section.undo_after(exit)


class ExitMethod:
    """``__exit__`` of a lock, as a descriptor. ``function`` takes a :class:`WithBlock` instead of self."""

    def __init__(self, function: Callable[..., Any], *, awaited: bool = False) -> None:
        def of_class(lock: Any, *args: Any) -> Any:
            block = WithBlock()
            block.lock, block._exit = lock, lambda: None
            return function(block, *args)

        self._function = function
        self._of_class: Callable[..., Any] = twin(of_class) if awaited else of_class

    def __get__(self, lock: Any, kind: type | None = None) -> Callable[..., Any]:
        if lock is None:  # of the class: ExitStack does so, and hands over the lock itself
            return self._of_class
        block = WithBlock()
        exit = partial(self._function, block)
        block.lock, block._exit = lock, weakref.ref(exit)
        _last.block = weakref.ref(block)
        return exit


def section_of(block: WithBlock) -> Section | None:
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
