"""Starting background threads, even when the interpreter is about to end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def make_thread(run: Callable[[threading.Thread], object], name: str) -> threading.Thread:
    """A background thread that calls ``run`` with itself, as current_thread() differs where gevent patched late."""
    thread = threading.Thread(target=lambda: run(thread), name=name, daemon=True)
    return thread


def start(thread: threading.Thread) -> bool:
    """Start a thread. False: the main thread has ended, after which Python 3.12 and later start no more threads.

    RuntimeError: the system allows no more threads.
    """
    if sys.is_finalizing():
        return False  # Python 3.10 and 3.11 would wait for ever for the thread to begin
    try:
        thread.start()
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error):
            raise
        return False
    return True


def try_start(thread: threading.Thread) -> bool:
    """Start a thread. False: none can be started, for whatever reason."""
    try:
        return start(thread)
    except RuntimeError:
        return False
