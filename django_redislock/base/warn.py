"""Warnings that name the site's own line, however deep inside this package they arise."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

_HERE = f"{Path(__file__).parents[1]}{os.sep}"


def is_ours(frame: FrameType) -> bool:
    """Whether code of this package runs in the frame."""
    return frame.f_code.co_filename.startswith(_HERE)


def warn(text: str) -> None:
    """Warn, with the innermost line that is not ours."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)
