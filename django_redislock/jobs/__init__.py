"""Functions and commands that run one at a time."""

from __future__ import annotations

from .locked import locked
from .locked_command import LockedCommand

__all__ = ["LockedCommand", "locked"]
