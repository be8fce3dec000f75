"""What everything else is built on: names, times, display, logging, and steps that serve sync and async."""

import sys

# for annotations, which tools may evaluate while the site runs
if sys.version_info >= (3, 11):
    from typing import Self, Unpack
else:  # pragma: no cover
    from typing_extensions import Self, Unpack

__all__ = ["Self", "Unpack"]
