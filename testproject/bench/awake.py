"""Keeps the CPUs awake while microseconds are measured.

Between a request and its answer an idle CPU sleeps. In a virtual machine, waking it takes longer than
the lock's own work. How long depends on the host, changes from hour to hour, and affects locks that wait longer more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker

from .workers import unreached_by_interrupts

POSSIBLE = hasattr(os, "SCHED_IDLE")  # on Linux


@contextmanager
def cpus_awake() -> Iterator[None]:
    """For the duration of a block, a process per CPU spins at the lowest priority, which yields to any other process at
    once."""
    spinners = [
        get_context("spawn").Process(target=_spin, args=(os.getpid(),), daemon=True) for _ in range(os.cpu_count() or 1)
    ]
    resource_tracker.ensure_running()  # its start unblocks SIGINT
    try:
        with unreached_by_interrupts():
            for spinner in spinners:
                spinner.start()
        yield
    finally:
        for spinner in spinners:
            if spinner.pid is not None:
                spinner.kill()
                spinner.join()


def _spin(parent: int) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        pass
