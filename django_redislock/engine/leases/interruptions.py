"""Sections interrupted at a moment when nobody could release their locks (R18): noticed here, and undone."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import Any

from .lease import Lease, Section


class Witness(weakref.ref[Any]):
    """Notices the death of the object that a ``with`` statement keeps while its block runs (see with_block.py)."""

    __slots__ = ("section",)

    section: Section


class Interruptions:
    """The sections that are still to be undone."""

    def __init__(self) -> None:
        self._found: deque[Witness] = deque()

    def __bool__(self) -> bool:
        return bool(self._found)

    def watch(self, block: object, section: Section) -> Witness:
        """Undo the section once ``block`` has died, unless the returned witness has died first."""
        # the callback is C code, so no signal handler can raise inside it
        witness = Witness(block, self._found.append)
        witness.section = section
        return witness

    def undo_under(self, lease: Lease) -> bool:
        """Undo at once the section under this lease, if it was interrupted and is still to be undone."""
        found = [witness for witness in self._found.copy() if witness.section.lease is lease]
        for witness in found:
            witness.section.undo()  # undo_all() will do so again, which is harmless, in case this is interrupted
        return bool(found)

    def undo_all(self) -> list[Exception]:
        """Undo each of them once; return the errors. Only for our own threads, which nothing interrupts."""
        failures: list[Exception] = []
        for witness in self._found.copy():
            try:
                witness.section.undo()
            except Exception as error:
                failures.append(error)
            with suppress(ValueError):  # another thread was faster
                self._found.remove(witness)  # only now: see undo_under()
        return failures
