"""``PoolMember``: a lock on a member of a pool, which is held already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import engine
from .base.names import unquoted
from .engine import Acquisition, Lease
from .exceptions import LockError
from .lock import Lock
from .options import LockOptions

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # Python 3.11 has them in typing


class PoolMember(Lock):
    """An already acquired :class:`Lock` on a member of a pool, as :meth:`LockPool.acquire` returns it.

    ``key`` is the member. ``with`` does not acquire it again, and releases it at its end. A second ``with`` inside of
    that raises LockError.
    """

    __slots__ = ("_entered", "key")

    def __init__(self, name: str, **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        self.key: str = unquoted(name.rpartition(":")[2])
        self._entered: Lease | None = None  # by a block, which will release it

    @classmethod
    def of(cls, section: Acquisition, options: LockOptions) -> Self:
        """The member that was acquired."""
        member = cls(section.held.name, **options)
        section.belongs_to(member)
        return member

    def __enter__(self) -> Self:
        if not self._go_on(None):
            super().__enter__()
            self._entered = self._latest
        return self

    def __aenter__(self) -> Any:
        block = engine.block_of(self)
        return self._go_on_here() if self._go_on(block) else self._enter_anew(block)

    async def _go_on_here(self) -> Self:
        return self

    async def _enter_anew(self, block: engine.WithBlock | None) -> Self:
        await self._aenter(self._section(None), block)
        self._entered = self._latest
        return self

    def _go_on(self, block: engine.WithBlock | None) -> bool:
        """Whether it is held already, so that the block only has to release it."""
        section = self._own()
        if section is None:
            return False
        if section.held.lost:  # and may be somebody else's
            raise section.held.lost_error()
        if section.held is self._entered:
            raise LockError(
                f"Cannot enter a block with the member {self.name!r}: this thread or task is in one already, which "
                f"releases it.",
                self.name,
            )
        self._entered = section.held
        block = block or engine.block_of(self)
        if block is not None:
            block.enter(section)
        return True
