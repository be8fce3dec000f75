"""``leader``: of many processes, one leads; the next one takes over when it ends, dies or is cut off."""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any
from weakref import ref

from .base import Self, Unpack
from .base.name_templates import warn_of_fields
from .base.steps import Steps, refuse_event_loop
from .engine.acquisition import Acquisition
from .engine.held import Runner, caller, runs, twin
from .engine.with_block import WithBlock, block_of
from .exceptions import LockError
from .lock import Lock
from .options import LeaderOptions, read_options


class leader(Lock):  # noqa: N801 (reads as ``locked`` does)
    """One process leads, all others that ask for the same ``name`` stand by; each is the next in order.

    .. code-block:: python

        with leader("beat") as term:
            while term.lead():          # waits until this process leads; False once its term is over
                do_one_tick()
                time.sleep(1)

    ``async with`` and :meth:`alead` do the same in coroutines.

    It is a :class:`Lock` on ``name``, with its guarantees, ``lost``, ``remaining()``, ``check()``, ``claim()`` and
    ``fence``, the number of the term. It differs in this:

    * The block begins at once. :meth:`lead` waits, without end and without a word in the log, and through any outage of
      Redis, which is logged (``standby-cut-off``). A standby keeps its place in the queue meanwhile.
    * A leader counts its lease as over while a third of the TTL is left: then ``lost`` is True, :meth:`lead` returns
      False, and ``on_lost`` is called. So a tick that takes less than a third of the TTL has ended before anybody else
      leads, also when Redis was away. It does not go on when Redis is back: the term is over.
    * The end of the block frees the lock, and the first standby leads at once. It raises LockLost where the term was
      over and neither :meth:`lead` nor an error of the block has said so.

    ``ttl``, ``max_hold`` (the longest term), ``on_lost``, ``using``, ``fenced``, ``note``, ``purpose``, ``template``,
    ``replicas``, ``poll`` and ``backoff`` are as for :class:`Lock`. Renewal is always on, and ``MAX_WAITERS`` does not
    count.

    Each thread or task that stands by makes an object of its own; while one is in its block, another that enters it
    gets LockError. A block that has ended can be entered again, for another term.

    Not guaranteed: that a tick ends which takes longer than a third of the TTL, or whose process is stopped in the
    middle of it and goes on later. Pass ``fence`` to whatever it writes to, or :meth:`claim` it in the database.
    """

    __slots__ = ("_block", "_over", "_runner")

    def __init__(self, name: str, **options: Unpack[LeaderOptions]) -> None:
        super().__init__(name)
        if "{" in name:
            warn_of_fields(name)
        self._options = replace(read_options(options, "leader()", LeaderOptions), stands_by=True)
        self._block: WithBlock | None = None
        self._runner: ref[Runner] | None = None  # the task or thread that is in it
        self._over = False

    def _of_copies(self) -> dict[str, Any]:
        return {**super()._of_copies(), "_block": None, "_runner": None}

    def lead(self) -> bool:
        """Wait until this process leads, and return True as long as it does, without a round trip; then False for good.

        The next term takes a new block. Raises LockError where this thread or task holds the lock already.
        """
        if _get_running_loop() is not None:
            refuse_event_loop("Await alead() instead")
        return (self._latest is not None or self.acquire()) and self._leads()

    @twin
    def alead(self) -> Coroutine[Any, Any, bool]:
        """See lead(). Cancelled while it waits, it leaves the queue."""
        return self._alead(None if self._latest is not None else self.aacquire())

    async def _alead(self, standby: Coroutine[Any, Any, bool] | None) -> bool:
        return (standby is None or await standby) and self._leads()

    def _leads(self) -> bool:
        lease = self._latest
        self._over = self._over or lease is None or lease.closed or lease.lost or not lease.here
        return not self._over

    def __enter__(self) -> Self:
        if _get_running_loop() is not None:
            refuse_event_loop("Use async with instead.")
        return self._begin()

    async def __aenter__(self) -> Self:
        return self._begin()

    def _begin(self) -> Self:
        block, runner = self._block, caller()
        other = None if self._runner is None or block is None or block.exit is None else self._runner()
        if other not in (None, runner) and runs(other):
            trouble = "another thread or task is in one. Each makes an object of its own."
            raise LockError(f"Cannot enter a block with the leader {self.name!r}: {trouble}", self.name)
        self._block, self._latest, self._over = block_of(self), None, False
        self._runner = None if runner is None else ref(runner)
        return self

    def entered(self, acquisition: Acquisition) -> None:
        super().entered(acquisition)
        if self._block is not None:
            self._block.enter(acquisition)

    def _end(self, acquisition: Acquisition | None, error: BaseException | None) -> Steps[None]:
        """The block has ended.

        Whoever was told that the term is over, or was interrupted as it began, needs no error, nor to wait for Redis.
        """
        if acquisition is not None and (self._over or acquisition.over):
            acquisition.abandon_cancelled(error)
        elif acquisition is not None:
            yield from super()._end(acquisition, error)
