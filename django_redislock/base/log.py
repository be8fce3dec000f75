"""The one logger, ``django_redislock``, and the form of its messages: ``event=lost name="a b" fence=7 ...``.

Also warnings that name the site's own line, however deep inside this package they arise.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

logger: logging.Logger = logging.getLogger("django_redislock")

_BARE = re.compile(r"[^\s\"'=\\]+")


def log_event(level: int, event: str, /, *, exc_info: Any = None, **facts: Any) -> None:
    """Log ``event`` and its ``facts`` as key=value.

    The keys are part of the message's template, the values its arguments, so that tools which group messages by their
    template find one group per event. An exception in a filter or handler of the site ends no thread and no lock: it is
    printed to stderr, as logging does for exceptions in its own handlers.
    """
    if logger.isEnabledFor(level):
        template = " ".join([f"event={event}", *(f"{key}=%s" for key in facts)])
        try:
            logger.log(level, template, *map(in_form, facts.values()), exc_info=exc_info, stacklevel=2)
        except Exception:
            traceback.print_exc()


@contextmanager
def unprinted() -> Iterator[None]:
    """Where no logging is configured, Python prints warnings to stderr: not in this block."""
    handler = logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def in_form(value: object) -> str:
    """``value`` as it is, or as a JSON string if it contains what would end or imitate a value. Floats are seconds."""
    text = f"{value:.6f}" if isinstance(value, float) else str(value)
    if _BARE.fullmatch(text) and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


_HERE = f"{Path(__file__).parents[1]}{os.sep}"
_CONTEXTLIB = contextmanager.__code__.co_filename


def is_ours(frame: FrameType) -> bool:
    """Return whether code of this package runs in the frame."""
    return frame.f_code.co_filename.startswith(_HERE)


def warn(text: str) -> None:
    """Warn, with the innermost line that is neither ours nor of contextlib, through which our blocks end."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and (is_ours(frame) or frame.f_code.co_filename == _CONTEXTLIB):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)
