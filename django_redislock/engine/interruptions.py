"""Sections that were interrupted where nobody could give their locks back (R18): how that is noticed, and made good."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import Any

from .lease import Lease, Section


class Witness(weakref.ref[Any]):
    """Notices the end of what a ``with`` statement keeps for as long as its block runs (see with_block.py)."""

    __slots__ = ("section",)

    section: Section


class Interruptions:
    """The sections that are still to be undone."""

    def __init__(self) -> None:
        self._found: deque[Witness] = deque()

    def __bool__(self) -> bool:
        return bool(self._found)

    def watch(self, block: object, section: Section) -> Witness:
        """The section is to be undone when ``block`` has died, unless the witness that this returns has died before."""
        # the callback is C code, in which no signal handler can raise
        witness = Witness(block, self._found.append)
        witness.section = section
        return witness

    def undo_under(self, lease: Lease) -> bool:
        """Undo at once the section under this lease, if it was interrupted and is still to be undone."""
        found = [witness for witness in self._found.copy() if witness.section.lease is lease]
        for witness in found:
            witness.section.undo()  # and once more by undo_all(), which does no harm: this one may be interrupted
        return bool(found)

    def undo_all(self) -> list[Exception]:
        """Undo them, and return why some could not be: once is enough. Never interrupted: for a thread of ours."""
        failures: list[Exception] = []
        for witness in self._found.copy():
            try:
                witness.section.undo()
            except Exception as error:
                failures.append(error)
            with suppress(ValueError):  # another thread was faster
                self._found.remove(witness)  # not before: see undo_under()
        return failures
