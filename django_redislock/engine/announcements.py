"""What the site is told of locks, by the log, by signals and by ``on_lost``: acquired, not acquired, released, lost.

Notifiers run the site's own code (one ``on_lost``, another one receivers and logging handlers) in threads of their own:
however slow that code is, it does not delay the threads that renew leases, watch the clock or read messages.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

from django.db import close_old_connections, connections
from django.dispatch import Signal

from ..base.log import log_event
from ..base.names import named
from ..base.processes import make_thread, try_start
from ..base.steps import Steps
from ..base.times import monotonic
from ..exceptions import LockNotAcquired
from ..signals import lock_acquired, lock_lost, lock_not_acquired, lock_released, send, sending
from ..store.calls import ADOPTED, OLD_LOST, Renewed
from .lease import ADOPTED_ELSEWHERE, OLD_KEY, OVER, TAKEN, VANISHED, Lease

THREADS = 8  # at most; several, so that a receiver that hangs does not hold up the others

Job = Callable[[], object]


class Notifier:
    """Calls what it is given, in threads that end when there is nothing more to call."""

    def __init__(self) -> None:
        # where nothing may interrupt it, the watchdog appends to this directly, and calls wake() later
        self.jobs: deque[Job] = deque()
        self._mutex = threading.RLock()  # reentrant: a finalizer that runs on this thread may discover a loss
        self._threads: set[threading.Thread] = set()

    def call(self, job: Job) -> None:
        """Call ``job`` soon. What it raises is logged."""
        self.jobs.append(job)
        self.wake()

    def wake(self) -> None:
        """Start a thread if there are jobs, in case whoever added them was interrupted before it could."""
        if not self.jobs:
            return
        with self._mutex:
            # a thread whose start was interrupted may never run
            self._threads = {thread for thread in self._threads if thread.is_alive()}
            if len(self._threads) >= THREADS:
                return
            thread = make_thread(lambda me: self._live(), "redislock-notifier")
            self._threads.add(thread)
            if try_start(thread):
                return
        self._run()

    def finish(self, until: float) -> None:
        """Before the process ends, and its threads with it: wait for what is being called, until this time at most."""
        for thread in [each for each in self._threads.copy() if each.is_alive()]:
            thread.join(max(0.0, until - monotonic()))

    def log(self, level: int, event: str, **facts: Any) -> None:
        """Log ``event`` soon; see log_event()."""
        self.call(lambda: log_event(level, event, **facts))

    def _live(self) -> None:
        """Run jobs in a thread of our own, where nobody else closes connections to the database."""
        self._run(close_old_connections)
        _try(connections.close_all)

    def _run(self, before_each: Job = lambda: None) -> None:
        while True:
            with self._mutex:
                if not self.jobs:
                    self._threads.discard(threading.current_thread())
                    return
                job = self.jobs.popleft()
            _try(before_each)
            _try(job)


def _try(job: Job) -> None:
    try:
        job()
    except BaseException:
        log_event(ERROR, "notifier-failed", exc_info=True)


def tell_acquired(lease: Lease, waited: float) -> Steps[None]:
    return _tell("acquired", lock_acquired, {**lease.facts, "waited": waited})


def tell_released(lease: Lease) -> Steps[None]:
    """By its holder."""
    return _tell("released", lock_released, {**lease.facts, "held": monotonic() - lease.since})


def tell_refused(name: str, template: str, refusal: LockNotAcquired) -> Steps[None]:
    """``name``: of a lock, or of a pool of which any member would have done."""
    facts = {"template": template, "outcome": refusal.outcome, "waited": refusal.waited}
    return _tell("not-acquired", lock_not_acquired, {"name": name, **facts}, {**named(name), **facts})


def _tell(event: str, signal: Signal, facts: dict[str, Any], logged: dict[str, Any] | None = None) -> Steps[None]:
    log_event(DEBUG, event, **(logged or facts))
    if signal.receivers:
        yield sending(signal, **facts)


def reason_of(answer: Renewed) -> str:
    """Why a lease was lost, according to the answer to its renewal."""
    if answer.state == ADOPTED:
        return ADOPTED_ELSEWHERE
    if answer.state == OLD_LOST:
        return OLD_KEY
    return TAKEN if answer.held_by_other else VANISHED


def tell_lost(notifier: Notifier, lease: Lease) -> None:
    """Tell the site's code that a lease was lost; it is marked as lost already.

    ``on_lost`` may have to stop the work, so it waits for no receiver and no handler of the log: these are for
    ``notifier``.
    """
    if lease.canceller is not None:
        lease.canceller.strike()  # again, in case whoever discovered the loss was interrupted before doing so
    notifier.call(partial(_report_lost, lease))
    if lease.terms.on_lost is not None:
        try:
            lease.terms.on_lost(lease.lost_error())
        except BaseException as error:
            notifier.log(ERROR, "on-lost-failed", name=lease.name, exc_info=error)


def _report_lost(lease: Lease) -> None:
    facts, expired = {**lease.facts, "reason": lease.lost_reason}, lease.lost_reason == OVER
    log_event(INFO if expired else WARNING, "expired" if expired else "lost", **facts)
    send(lock_lost, **facts, expired=expired)
