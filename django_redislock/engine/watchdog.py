"""The watchdog: one background thread per process that renews leases, confirms handoffs and notices losses.

It keeps time, and gives back what was interrupted. What is to be sent goes through the dispatch, with timeouts of at
most a sixth of the TTL, and what is to be told through the notifier: neither a slow Redis nor slow code of the site
delays a renewal, or the news that a lease has ended.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from logging import ERROR, WARNING
from typing import Any

from ..base.pace import LAST_RETRY
from ..base.processes import make_thread, start
from ..base.times import monotonic
from ..store import calls
from ..store.calls import LockRequest, Renewed
from ..store.lock_store import Partition
from ..store.node import Node
from ..store.stores import all_stores
from .announcements import Notifier, reason_of, tell_lost
from .dispatch import Dispatch, Following, Outgoing, Pending
from .lease import CONFIRM_AFTER, LIMITED, OLD_KEY, OVER, STOPPED, Lease
from .with_block import Interruptions

REMEMBER_FOR = 60.0  # seconds after which Redis has forgotten an abandoned waiter by itself
LOOK_AROUND = 1.0  # seconds between looks for sections that were interrupted
IDLE_LOOK = 5.0  # the same where nothing is held
TICK = 0.05  # seconds at least between looks at all leases: docs/limits.rst
UNRENEWED = "no longer renewed"

Task = Lease | Pending


class Watchdog:
    """See the module. All times are absolute and monotonic.

    ``listen`` makes the process hear of what happens to a lock of this partition.
    """

    def __init__(self, notifier: Notifier, listen: Callable[[Partition], None]) -> None:
        self._notifier = notifier
        self.alarms: Notifier = Notifier()  # what is lost, and may have to be stopped: behind nothing else
        self._listen = listen
        self._lock = threading.RLock()  # a finalizer may run on this thread and close a generator that holds a lock
        self._changed = threading.Condition(self._lock)
        self._alone = False
        self._leases: dict[str, Lease] = {}  # by id
        self._used = False  # something was watched or planned since the thread went to sleep
        self._pending: dict[Pending, None] = {}  # a set, in order
        self.interruptions: Interruptions = Interruptions()
        self._sleeps_until = -math.inf
        self._thread: threading.Thread | None = None
        self.runs: bool = False  # is_alive() takes three calls
        self._dispatch = Dispatch(notifier, self._answered, self._again, self.renew_all)
        self._trim_at = 0.0

    @property
    def _mutex(self) -> threading.RLock:
        if not self._alone and sys.is_finalizing():
            # a finalizer of the site's, after all other threads were stopped: our own may have been stopped inside
            self._lock = threading.RLock()
            self._changed = threading.Condition(self._lock)
            self._alone = True
        return self._lock

    # -- for holders -------------------------------------------------------------------------------------------------

    def watch(self, lease: Lease) -> None:
        """Renew this lease from now on, and tell its holder when it is lost."""
        lease.watched = True
        # as Lease.next_check() says, which would be one call more for each lock. Most are released before that
        lease.due = due = lease.since + min(CONFIRM_AFTER, (lease.ends - lease.since) / 3)
        self._leases[lease.id] = lease
        self._used = True  # after the lease is known, and before this looks how long the thread sleeps: see _sleep()
        if due < self._sleeps_until or not self.runs:
            with self._mutex:
                self._wake_for(due)

    def unwatch(self, lease: Lease) -> None:
        """Stop renewing this lease, and ignore answers still on their way. It stays known until :meth:`forget`."""
        with self._mutex:
            lease.watched = False
            if lease.canceller is not None:
                lease.canceller.end()

    def forget(self, lease: Lease) -> None:
        """Forget this lease: messages no longer concern it."""
        self._leases.pop(lease.id, None)

    def end(self, lease: Lease) -> None:
        """The lease has ended here, and is for nobody to use."""
        lease.closed = True
        if lease.watched or lease.canceller is not None:
            self.unwatch(lease)
        self._leases.pop(lease.id, None)  # as forget() does, which would be one call more for each lock

    def moved(self, lease: Lease, how: str, left: float, answer: Renewed) -> None:
        """The end of the lease was moved; see Lease.moved()."""
        with self._mutex:
            lease.moved(how, left, answer)
            self._plan_next(lease)

    def shortened(self, lease: Lease, ends: float) -> None:
        """The lease may end at this time already: the holder is asking Redis for that."""
        with self._mutex:
            lease.ends = min(lease.ends, ends - lease.early_by)
            self._plan_next(lease)  # also so that no answer on its way counts

    def _plan_next(self, lease: Lease) -> None:
        if lease.watched:
            self._plan(lease.next_check(), lease)

    def leases(self) -> list[Lease]:
        """All that this process holds."""
        return list(self._leases.values())

    def abandon(self, request: LockRequest, *, may_arrive: bool, how: str = calls.HOLDER, lasts: float = 0.0) -> None:
        """Release or withdraw in the background, as often as it takes. Failures to release are logged.

        ``may_arrive``: a request to acquire may still arrive; so its id is marked as gone (R8; see release_command()).
        ``lasts``: seconds after which the lease has ended.
        """
        with self._mutex:
            now = monotonic()
            until = now + max(lasts, REMEMBER_FOR + (request.ttl if may_arrive else 0.0))  # that may begin a lease
            tasks, old = list[Pending](), request.old
            if old is not None:
                tasks.append(Pending(old.partition, partial(old.command, "free"), until, False, now))
            command = partial(calls.release_command, request, may_arrive=may_arrive, how=how)
            # a withdrawal concerns nothing that was held, and its caller has had an error
            tasks.append(Pending(request.partition, command, until, how != calls.WITHDRAWAL, now, request))
            for task in tasks:
                self._pending[task] = None
                with suppress(RuntimeError):  # no thread can be started now: the next one sends it, or the end
                    self._plan(now, task)

    def ensure_runs(self) -> None:
        """Be there to abandon what is interrupted from now on."""
        with self._mutex:
            self._start()

    def send_pending(self) -> None:
        """Send what was not sent yet, before the process ends, and its threads with it. Takes LAST_WORDS (dispatch.py).

        It also releases what no coroutine will: some servers stop their event loop in the middle of requests.
        """
        self._abandon_interrupted()
        for stranded in [one for lease in self.leases() for one in lease.shares if one.stranded]:
            stranded.lease.lost_reason = STOPPED  # for ``lost``, in case its loop runs once more
            stranded.abandon()
        known = list(self._pending)
        self._dispatch.send_last([pending.outgoing() for pending in known])
        for pending in known:  # there are several ways in which a process ends: not once more
            self._pending.pop(pending, None)

    def _plan(self, due: float, task: Task) -> None:
        if isinstance(task, Lease) and task.urgent:
            due = min(due, monotonic())  # a reconnect that came meanwhile is not put off
        task.due = due
        self._used = True
        self._wake_for(due)

    def _wake_for(self, due: float) -> None:
        if (self.runs or not self._start()) and due < self._sleeps_until:
            self._changed.notify_all()  # one that is about to end may wait as well

    def _start(self) -> bool:
        """Start the thread, unless it runs; return whether it was started."""
        if self.runs or (self._thread is not None and self._thread.is_alive()):
            return False
        self._sleeps_until = -math.inf
        # known before it starts: an interruption in there must not make the next caller start another
        self._thread = thread = make_thread(self._run, "redislock-watchdog")
        return start(thread)  # at the end of the process, locks are held without it, and not renewed

    # -- for what is heard elsewhere ---------------------------------------------------------------------------------

    def lease_of(self, id: str) -> Lease | None:
        """The lease of this id, if the lock is held here, or being released."""
        return self._leases.get(id)

    def renew_all(self, partition: Partition) -> None:
        """After each subscription, and when a node answers again: a flush or restart is noticed at once."""
        with self._mutex:
            now = monotonic()
            for lease in self.leases():
                if lease.partition is partition and lease.watched:
                    lease.urgent = True
                    self._plan(now, lease)

    # -- the thread's side ------------------------------------------------------------------------------------------

    def _run(self, me: threading.Thread) -> None:
        tasks: list[Task] = []
        try:
            while self._thread is me:  # else its start was interrupted, and there is another one
                self.runs = True
                self._abandon_interrupted()
                tasks = self._sleep(me, rests=bool(tasks))
                try:
                    self._work(tasks)
                    self._trim()
                    self.alarms.wake()
                    self._notifier.wake()
                except Exception as error:
                    self._put_off(tasks, error)
        finally:
            self.runs = False  # where another one has taken over, is_alive() says so until its next turn

    def _abandon_interrupted(self) -> None:
        for error in self.interruptions.abandon_all():
            self._put_off((), error)

    def _put_off(self, tasks: Sequence[Task], error: Exception) -> None:
        """No more threads, say; nothing may be dropped for that."""
        self._notifier.log(ERROR, "watchdog-failed", exc_info=error)
        with self._mutex:
            again = monotonic() + LAST_RETRY
            for task in tasks:
                self._plan(again, task)

    def _sleep(self, me: threading.Thread, *, rests: bool) -> list[Task]:
        """Rest, and wait until something is due; return that, or nothing where it is time to look around."""
        with self._mutex:
            if rests:
                self._changed.wait(TICK)  # all are looked at each time: nobody ends this rest, see _wake_for()
            while self._thread is me and not self.interruptions:
                self._sleeps_until = math.inf  # before this looks: a lease that it has not seen wakes it
                planned: list[Task] = [*(lease for lease in self.leases() if lease.watched), *self._pending]
                now = monotonic()
                if tasks := [task for task in planned if task.due <= now]:
                    self._sleeps_until = -math.inf
                    return tasks
                until = min((task.due for task in planned), default=math.inf)
                until = min(max(until, now + TICK), now + (LOOK_AROUND if self._leases else IDLE_LOOK))
                # after all that: a finalizer may have run on this thread, which nobody wakes
                used, self._used = self._used, False
                if used:  # locks in quick succession must not wake this thread each time: none is due sooner than that
                    until = min(until, now + CONFIRM_AFTER)
                self._sleeps_until = until
                told = self._changed.wait(until - now)
                self._sleeps_until = -math.inf
                if not told:
                    return []
            return []

    def _trim(self) -> None:
        """Close connections that nobody needs any more: a server has room for so many."""
        if monotonic() >= self._trim_at:
            self._trim_at = monotonic() + IDLE_LOOK
            for store in all_stores():
                store.trim()

    def _work(self, tasks: Sequence[Task]) -> None:
        batch: list[Outgoing] = []
        for task in tasks:
            try:
                outgoing = self._look_after(task) if isinstance(task, Lease) else task.outgoing()
            except Exception as error:
                self._put_off([task], error)  # and no other
                continue
            if outgoing is not None:
                batch.append(outgoing)
        self._dispatch.send(batch)

    def _look_after(self, lease: Lease) -> Outgoing | None:
        """Return what is to be sent for this lease now, if anything; else plan the next look."""
        now = monotonic()
        if lease.changing:  # the answer to that counts for more than the clock. Later, ask in any case
            lease.urgent, lease.seen = False, True
            with self._mutex:
                self._plan(now + CONFIRM_AFTER, lease)
            return None
        if now >= lease.ends:
            self.lose(lease, lease.end_reason)
            return None
        released = not lease.may_be_released()
        if not lease.watched:
            return None  # released in the meantime, by whoever may have ended since
        first, lease.seen = not lease.seen, True
        urgent, lease.urgent = lease.urgent, False
        if lease.request.listens:
            # held for long enough to care: hear at once when it is force-released, or Redis restarts. Each time: the
            # first time there may have been no thread to be had
            self._listen(lease.partition)
        if lease.renewing and released:
            if not first:  # else it was acquired and dropped, to end by itself
                self._notifier.log(WARNING, "owner-ended", name=lease.name, fence=lease.fence, detail=UNRENEWED)
            lease.stop_renewing(OVER)
        if lease.renewing and lease.terms.max_hold is not None and now - lease.since >= lease.terms.max_hold:
            self._notifier.log(WARNING, "max-hold", name=lease.name, fence=lease.fence, detail=UNRENEWED)
            lease.stop_renewing(LIMITED)
        how = lease.question(first=first, urgent=urgent)
        if not how:
            with self._mutex:
                self._plan_next(lease)
            return None
        command = calls.renew_command(lease.request, how, lease.ttl, lease.fence, lease.late)
        with self._mutex:  # until the answer comes, only wake up for the end of the lease
            due = lease.ends
            self._plan(due, lease)
        # what moves no end needs nobody to acknowledge it
        return Outgoing(lease, command, due, how, lease.request.replicas if how == "keep" else 0)

    # -- what comes of what was sent ---------------------------------------------------------------------------------

    def _answered(self, outgoing: Outgoing, answer: Any, node: Node, sent: float) -> None:
        task = outgoing.task
        if isinstance(task, Lease):
            found, old = calls.renewed(node, answer, sent), task.request.old
            if old is None or not old.held or found.state != calls.HELD:
                self._note(task, outgoing, found)
            else:  # only then does it count
                command = old.command("keep", answer[2] / 1000)
                self._dispatch.send([Outgoing(Following(task, old, found), command, outgoing.stamp, outgoing.how)])
            return
        if isinstance(task, Following):
            if answer:
                self._note(task.lease, outgoing, task.answer)
            else:
                self.lose(task.lease, OLD_KEY)
            return
        self._pending.pop(task, None)
        if task.request is not None and (rest := calls.left_to_release(task.request, answer)) is not None:
            self.abandon(rest, may_arrive=False, how=calls.WITHDRAWAL)

    def _again(self, batch: list[Outgoing], delay: float) -> None:
        with self._mutex:
            now = monotonic()
            for task, *_ in batch:
                task = task.lease if isinstance(task, Following) else task  # both once more
                if isinstance(task, Lease):
                    self._plan(min(now + delay, task.due), task)  # without effect if the lease has ended
                elif now < task.until and not task.partition.store.closed:
                    self._plan(now + delay, task)
                else:
                    self._pending.pop(task, None)

    def _note(self, lease: Lease, outgoing: Outgoing, answer: Renewed) -> None:
        if answer.state == calls.HELD:
            with self._mutex:
                # not when it was released, or extended by its holder, while the answer was on its way
                if lease.watched and lease.due == outgoing.stamp:
                    self.moved(lease, outgoing.how, lease.ttl, answer)
        elif lease.changing:
            with self._mutex:  # asked while it is being detached
                self._plan(min(monotonic() + CONFIRM_AFTER, lease.ends), lease)
        else:
            # once its time is over, it is no loss of another kind that Redis does not know it any more
            self.lose(lease, lease.end_reason if monotonic() >= lease.ends else reason_of(answer))

    def lose(self, lease: Lease, reason: str, *, released: bool = False) -> None:
        """The lease is lost, if it is still watched (or ``released``: its release has found that out): say so, once."""
        if not lease.renewing and monotonic() >= lease.ends:
            reason = lease.end_reason  # whatever has found out first
        jobs, job = self.alarms.jobs, partial(tell_lost, self._notifier, lease)
        with self._mutex:
            if lease.lost_reason or not (lease.watched or released):
                return  # told, or released in the meantime
            self.forget(lease)
            # without a call in between, in which a signal handler could raise: a loss that is marked is told
            lease.watched, lease.lost_reason = False, reason
            jobs.append(job)
        if lease.canceller is not None:
            lease.canceller.strike()  # at once, not behind the receivers of the signal
        self.alarms.wake()
        if lease.may_arrive and reason != OLD_KEY and monotonic() < lease.ends:  # else it may be held in Redis still
            self.abandon(lease.request, may_arrive=True, how=calls.WITHDRAWAL)
