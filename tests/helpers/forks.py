"""Forked children of a test."""

import os
import signal
import warnings
from collections.abc import Callable

from .actors import GENEROUS


def fork() -> bool:
    """Whether this is the child, which ends soon. The parent waits for its end, which must be a good one."""
    with warnings.catch_warnings():  # newer Pythons warn of the threads of the tests
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(GENEROUS)
        return True
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return False


def end_well_if(look: Callable[[], bool]) -> None:
    try:
        os._exit(0 if look() else 1)
    finally:
        os._exit(2)


def in_child(look: Callable[[], bool]) -> None:
    """A function returns True in a forked child."""
    if fork():
        end_well_if(look)
