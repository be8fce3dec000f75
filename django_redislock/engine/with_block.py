"""What a ``with`` statement acquires and releases, also where it is interrupted when nobody could release it (R18).

A signal handler may raise in the very first instruction of ``__exit__``. But the ``with`` statement looks ``__exit__``
up before it calls ``__enter__``, and keeps what it got until its block has ended. So each look-up returns a new object,
and if that dies without having been called to its end, the acquisition is abandoned: its lock is released in the
background.
"""

from __future__ import annotations

import threading
import weakref
from asyncio import CancelledError, _get_running_loop
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SynchronousOnlyOperation

from ..base import Self
from ..base.steps import arun, refuse_event_loop, run
from ..base.times import Seconds
from ..exceptions import LockError
from ..open_transactions import warn_of_release
from ..options import check_timeout
from .held import Held, twin
from .lease import Lease


class Finalizer(weakref.ref[Any]):
    """Notices the death of the object that a ``with`` statement keeps while its block runs (see with_block.py)."""

    __slots__ = ("acquisition",)

    acquisition: Held


class Interruptions:
    """The acquisitions that are still to be abandoned."""

    def __init__(self) -> None:
        self._found: deque[Finalizer] = deque()
        # the callback of finalizers is C code, so no signal handler can raise inside it
        self.note: Callable[[Any], None] = self._found.append

    def __bool__(self) -> bool:
        return bool(self._found)

    def abandon_under(self, lease: Lease) -> bool:
        """Abandon at once the acquisition under this lease, if it was interrupted and still has to be."""
        found = [finalizer for finalizer in self._found.copy() if finalizer.acquisition.lease is lease]
        for finalizer in found:
            finalizer.acquisition.abandon()  # abandon_all() does so again, without harm, in case this is interrupted
        return bool(found)

    def abandon_all(self) -> list[Exception]:
        """Undo each of them once; return the errors. Only for our own threads, and where the process ends."""
        failures: list[Exception] = []
        for finalizer in self._found.copy():
            try:
                finalizer.acquisition.abandon()
            except Exception as error:
                failures.append(error)
            with suppress(ValueError):  # another thread was faster
                self._found.remove(finalizer)  # only now: see abandon_under()
        return failures


class WithBlock:
    """One run of a ``with`` block, from the look-up of its ``__exit__`` on."""

    lock: Any
    acquisition: Any = None  # once it was entered: an Acquisition, or Several
    context: Any = None  # or what else is to be left at the end: of locked_atomic
    _exit: Callable[[], object]

    @property
    def acquired(self) -> Any:
        """What was acquired for this block. An ExitStack enters the lock itself, so then it is the lock's own."""
        return self.acquisition or self.lock._own()

    @property
    def exit(self) -> object:
        """The object that the statement keeps for as long as the block runs.

        A coroutine that ends the block must keep it, too: the statement drops it once it has made the coroutine.
        """
        return self._exit()

    def enter(self, acquisition: Any) -> None:
        """The block is about to begin, with this acquisition."""
        self.acquisition = acquisition
        exit = self._exit()
        if exit is not None:  # it is dead if __exit__ was called by hand before; a traceback may keep the block
            acquisition.abandon_after(exit)


class ExitMethod:
    """``__exit__`` of a lock, as a descriptor. ``function`` takes a :class:`WithBlock` instead of self.

    ``awaited``: ``__aexit__``, and a coroutine function that takes the block, the error, and what it has to keep.
    """

    def __init__(self, function: Callable[..., Any], *, awaited: bool = False) -> None:
        def begin(block: WithBlock, kind: object, error: object, traceback: object) -> Any:
            return function(block, error, block.exit)

        def of_class(lock: Any, *args: Any) -> Any:
            block = WithBlock()
            block.lock, block._exit = lock, lambda: None
            return self._function(block, *args)

        self._function = begin if awaited else function
        self._of_class: Callable[..., Any] = twin(of_class) if awaited else of_class

    def __get__(self, lock: Any, kind: type | None = None) -> Callable[..., Any]:
        if lock is None:  # of the class: ExitStack does so, and hands over the lock itself
            return self._of_class
        block = WithBlock()
        exit = partial(self._function, block)  # no bound method: Python 3.14 drops that before its body begins
        block.lock, block._exit = lock, weakref.ref(exit)
        _last.block = weakref.ref(block)
        return exit


_last: Any = threading.local()  # the block whose exit this thread has looked up last: it is the next one to be entered


def block_of(lock: object) -> WithBlock | None:
    """The block of the ``with`` statement that is entering ``lock`` now, if known."""
    found, _last.block = getattr(_last, "block", None), None
    block: WithBlock | None = found and found()
    return block if block is not None and block.lock is lock else None


def _leave(
    block: WithBlock, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
) -> None:
    acquisition: Any = None
    try:
        if _get_running_loop() is not None:
            refuse_event_loop("Use async with instead.")
        acquisition = block.acquired
        if error is None and acquisition is not None and acquisition.release_at_once():
            warn_of_release(acquisition.lease)
        else:
            run(block.lock._end(acquisition, error))
    except (LockError, SynchronousOnlyOperation):
        raise
    except BaseException:  # interrupted; what an ExitStack has entered, nobody else gives back
        acquisition = acquisition or block.acquired
        if acquisition is not None:
            acquisition.abandon()
        raise


async def _aleave(block: WithBlock, error: BaseException | None, kept: object) -> None:
    acquisition = block.acquired
    try:
        if error is None and acquisition is not None and await acquisition.arelease_at_once():
            warn_of_release(acquisition.lease)
        else:
            await arun(block.lock._end(acquisition, error))
    except (LockError, CancelledError):
        raise  # cancelled: what was awaited has abandoned it
    except BaseException:  # interrupted, see _leave()
        if acquisition is not None:  # pragma: no branch (then there is nothing to interrupt)
            acquisition.abandon()
        raise
    finally:
        del kept  # the traceback of an error may keep this frame, and the block has ended


class Enterable:
    """What a ``with`` statement acquires and releases: a Lock, or a LockSet.

    It makes acquisitions with ``_acquisition()``, finds its own with ``_own()``, and ends one with ``_end()``.
    """

    __slots__ = ()

    _acquisition: Callable[..., Any]  # makes an Acquisition, or Several, for whoever calls it

    def __enter__(self) -> Self:
        if _get_running_loop() is not None:
            refuse_event_loop("Use async with instead.")
        block = block_of(self)  # that whose __exit__ was looked up just now, see ExitMethod
        acquisition = self._acquisition()
        try:
            if block is not None:
                block.enter(acquisition)
            refusal = acquisition.acquire()
            if refusal is not None:
                raise refusal
            return self
        except BaseException:
            acquisition.abandon()
            raise
        finally:
            refusal = None  # an error there refers to this frame, and the frames of all callers would live as long

    async def _aenter(self, acquisition: Any, block: WithBlock | None) -> Self:
        try:
            if block is not None:
                block.enter(acquisition)
            refusal = await acquisition.aacquire()
            if refusal is not None:
                raise refusal
            return self
        except BaseException as error:
            acquisition.abandon_cancelled(error)
            raise
        finally:
            refusal = None  # see __enter__()

    if TYPE_CHECKING:  # as contextlib declares them

        async def __aenter__(self) -> Self: ...

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:

        @twin
        def __aenter__(self):
            """See __enter__()."""
            block = block_of(self)
            return self._aenter(self._acquisition(), block)

        __exit__ = ExitMethod(_leave)
        __aexit__ = ExitMethod(_aleave, awaited=True)

    async def _aobtain(self, acquisition: Any, blocking: bool | None, blocking_timeout: Seconds | None) -> bool:
        try:
            deadline = acquisition.terms.deadline(blocking, check_timeout(blocking_timeout))
            return await acquisition.aacquire(deadline) is None
        except BaseException as error:
            acquisition.abandon_cancelled(error)
            raise
