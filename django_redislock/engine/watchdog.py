"""The watchdog: one background thread per process that renews leases, confirms handoffs and notices losses.

It only keeps time. What is to be sent goes by the sender, with timeouts of at most a sixth of the TTL, and what is to
be told by the notifier: neither a slow Redis nor slow code of the site delays a renewal, or the news that a lease has
ended.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from logging import ERROR, WARNING
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from redis.exceptions import ClusterDownError, ResponseError

from ..log import log_event
from ..store.calls import HELD, HOLDER, WITHDRAWAL, Renewed, Wanted, left_to_release, renew_command, renewed
from ..store.keys import make_keys
from ..store.node import Node
from ..store.place import Backend
from ..store.places import all_places
from ..store.wire import wording
from .agenda import Agenda, PendingRelease, Task
from .interruptions import Interruptions, Witness
from .lease import Lease, Section
from .loss import TOLD, reason_of, tell_lost
from .notifier import Notifier
from .outage import LAST_RETRY, Outage
from .renewal import CONFIRM_AFTER, call_for, first_look, next_look
from .sender import Parcel, Sender, send_last
from .threads import make_thread, start

LAST_WORDS = 1.0  # seconds that the end of the process may wait for Redis
REMEMBER_FOR = 60.0  # seconds after which Redis has forgotten an abandoned waiter by itself
LOOK_AROUND = 1.0  # seconds between looks for sections that were interrupted
IDLE_LOOK = 5.0  # the same where nothing is held
MOST_STRAYS = 100  # messages for nobody that are answered in a second: anybody may have sent them
UNRENEWED = "no longer renewed"


class Watchdog:
    """See the module. All times are absolute and monotonic.

    ``listen`` makes the process hear of what happens to a lock of this backend.
    """

    def __init__(self, notifier: Notifier, listen: Callable[[Backend], None]) -> None:
        self._notifier = notifier
        self._listen = listen
        self._lock = threading.RLock()  # a finalizer may run on this thread and close a generator that holds a lock
        self._alarm = threading.Condition(self._lock)
        self._alone = False
        self._leases: dict[str, Lease] = {}  # by id
        self._agenda = Agenda()
        # those with a token of their own, which others may have as well, until their leases are watched
        self.attempts: WeakValueDictionary[str, object] = WeakValueDictionary()
        self._pending: set[PendingRelease] = set()
        self.interruptions: Interruptions = Interruptions()
        self._sleeps_until = -math.inf
        self._thread: threading.Thread | None = None
        self._sender = Sender(self._answered, self._failed)
        self._outages: WeakKeyDictionary[Node, Outage] = WeakKeyDictionary()
        self._trim_at = 0.0
        self._strays = 0  # up to this time (monotonic):
        self._strays_until = 0.0

    @property
    def _mutex(self) -> threading.RLock:
        if not self._alone and sys.is_finalizing():
            # a finalizer of the site's, after all other threads were stopped: our own may have been stopped inside
            self._lock = threading.RLock()
            self._alarm = threading.Condition(self._lock)
            self._alone = True
        return self._lock

    # -- for holders -------------------------------------------------------------------------------------------------

    def watch(self, lease: Lease) -> None:
        """Renew this lease from now on, and tell its holder when it is lost."""
        with self._mutex:
            lease.watched = True
            self._leases[lease.id] = lease
            if lease.wanted.token is not None:
                self.attempts.pop(lease.id, None)  # from now on, it is known by its lease
            self._plan(first_look(lease), lease)

    def unwatch(self, lease: Lease) -> None:
        """Whatever is in flight for this lease no longer counts. It is known until :meth:`forget`."""
        with self._mutex:
            lease.unwatch()

    def forget(self, lease: Lease) -> None:
        """Forget this lease."""
        with self._mutex:
            if self._leases.get(lease.id) is lease:
                del self._leases[lease.id]

    def end(self, lease: Lease) -> None:
        """The lease has ended here, and is for nobody to use."""
        with self._mutex:
            lease.close()
            self.forget(lease)

    def extended(self, lease: Lease, ends: float) -> None:
        """The holder moved the end of the lease itself."""
        with self._mutex:
            lease.handed = False
            self._move(lease, ends)

    def shortened(self, lease: Lease, ends: float) -> None:
        """The lease may end at this time already: the holder is asking Redis for that."""
        with self._mutex:
            if ends < lease.ends:
                self._move(lease, ends)

    def _move(self, lease: Lease, ends: float) -> None:
        lease.ends = ends
        if lease.watched:
            self._plan(next_look(lease), lease)

    def knows(self, id: str) -> bool:
        """Whether this acquisition is in use here, may come to be, or is being released: nobody may adopt it."""
        return id in self.attempts or id in self._leases  # in the order in which it comes by

    def leases(self) -> list[Lease]:
        """All that this process holds."""
        return list(self._leases.values())

    def release_later(self, wanted: Wanted, *, unknown: bool, how: str = HOLDER, lasts: float = 0.0) -> None:
        """Release or withdraw in the background, as often as it takes. Failures to release are logged.

        ``lasts``: seconds after which the lease has ended by itself.
        """
        with self._mutex:
            now = monotonic()
            pending = PendingRelease(wanted, unknown, now + max(lasts, REMEMBER_FOR), how)
            self._pending.add(pending)
            self._plan(now, pending)

    def undo_after(self, block: object, section: Section) -> Witness:
        """Undo the section soon after ``block`` has died, unless the witness that this returns has died before."""
        if self._thread is None:
            with self._mutex:
                self._start()
        return self.interruptions.watch(block, section)

    def send_pending(self) -> None:
        """Before the process ends, and its threads with it: what was not yet sent. Takes LAST_WORDS in all."""
        parcels: dict[Node, list[Parcel]] = defaultdict(list)
        for pending in (known := list(self._pending)):
            node = pending.wanted.backend.node_if_known
            if node is not None:
                parcels[node].append(pending.parcel())
        for node, error in send_last(parcels, LAST_WORDS):
            if any(parcel.task.matters for parcel in parcels[node]):
                log_event(WARNING, "releases-not-sent", alias=node.origin.alias, error=error)
        self._pending.difference_update(known)  # there are several ways in which a process ends: not once more

    def _plan(self, due: float, task: Task) -> None:
        if isinstance(task, Lease) and task.urgent:
            due = min(due, monotonic())  # a reconnect that came meanwhile is not put off
        self._agenda.plan(due, task)
        if not self._start() and due < self._sleeps_until:
            self._alarm.notify_all()  # one that is about to end may wait as well

    def _start(self) -> bool:
        """Start the thread, unless it runs; return whether it was started."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._sleeps_until = -math.inf
        # known before it starts: whoever is interrupted in there must not make the next one start another
        self._thread = thread = make_thread(self._run, "redislock-watchdog")
        return start(thread)  # at the end of the process, locks are held without it, and not renewed

    # -- for the listener -------------------------------------------------------------------------------------------

    def on_stray(self, backend: Backend, kind: str, id: str, name: str) -> None:
        """A message for an id that nobody here waits with."""
        lease = self._leases.get(id)
        if lease is None:
            if kind in "gw" and self._may_answer():  # it has left in the meantime
                self.pass_on(backend, id, name)
        elif kind in TOLD:
            self.lose(lease, TOLD[kind])

    def pass_on(self, backend: Backend, id: str, name: str) -> None:
        """Nobody waits with this id any more: what has been given to it, or may yet be, is for the next one."""
        left = Wanted(backend, make_keys(backend.prefix, name), name, id)
        self.release_later(left, unknown=False, how=WITHDRAWAL)

    def _may_answer(self) -> bool:
        now = monotonic()
        if now >= self._strays_until:
            self._strays, self._strays_until = 0, now + 1.0
        self._strays += 1
        return self._strays <= MOST_STRAYS

    def lose_by_id(self, id: str, reason: str) -> None:
        """The acquisition of this id is over, if it is one of this process."""
        lease = self._leases.get(id)
        if lease is not None:
            self.lose(lease, reason)

    def renew_all(self, backend: Backend) -> None:
        """After a reconnect: a flush or restart is noticed at once."""
        with self._mutex:
            now = monotonic()
            for lease in self.leases():
                if lease.backend is backend and lease.watched:
                    lease.urgent = True
                    self._plan(now, lease)

    # -- the thread's side ------------------------------------------------------------------------------------------

    def _run(self, me: threading.Thread) -> None:
        while self._thread is me:  # else its start was interrupted, and there is another one
            for error in self.interruptions.undo_all():
                self._put_off((), error)
            tasks = self._sleep(me)
            try:
                self._work(tasks)
                self._trim()
                self._notifier.wake()
            except Exception as error:
                self._put_off(tasks, error)

    def _put_off(self, tasks: Sequence[Task], error: Exception) -> None:
        """No more threads, say; nothing may be dropped for that."""
        self._notifier.log(ERROR, "watchdog-failed", exc_info=error)
        with self._mutex:
            again = monotonic() + LAST_RETRY
            for task in tasks:
                self._plan(again, task)

    def _sleep(self, me: threading.Thread) -> list[Task]:
        """Wait until something is due, and take it off the agenda; nothing where it is time to look around."""
        with self._mutex:
            while self._thread is me and not self.interruptions:
                now = monotonic()
                busy = bool(self._agenda)
                tasks = self._agenda.take_due(now)
                if tasks:
                    return tasks
                # who locks in quick succession must not wake us each time: no new lease is due before this
                idle_until = now + CONFIRM_AFTER if busy else math.inf
                due = self._agenda.next_due
                self._sleeps_until = idle_until if due is None else due
                self._sleeps_until = min(self._sleeps_until, now + (LOOK_AROUND if self._leases else IDLE_LOOK))
                told = self._alarm.wait(self._sleeps_until - now)
                self._sleeps_until = -math.inf
                if not told:
                    return []
            return []

    def _trim(self) -> None:
        """Close connections that nobody needs any more: a server has room for so many."""
        if monotonic() >= self._trim_at:
            self._trim_at = monotonic() + IDLE_LOOK
            for place in all_places():
                place.trim()

    def _work(self, tasks: Sequence[Task]) -> None:
        parcels: dict[Node, list[Parcel]] = defaultdict(list)
        for task in tasks:
            node = task.backend.node_if_known
            try:
                parcel = task.parcel() if isinstance(task, PendingRelease) else self._look_after(task)
            except Exception as error:
                self._put_off([task], error)  # and no other
                continue
            if parcel is None:
                continue
            if node is None:  # of a cluster that could never be asked
                self._again([parcel], LAST_RETRY)
            else:
                parcels[node].append(parcel)
        # C5: each node for itself, with a time limit of its own
        for node, batch in parcels.items():
            patience = min(
                (parcel.task.ttl / 6 for parcel in batch if isinstance(parcel.task, Lease)), default=math.inf
            )
            self._sender.send(node, batch, max(0.05, min(node.origin.timeout, patience)))

    def _look_after(self, lease: Lease) -> Parcel | None:
        """What is to be sent for this lease now, if anything; else plan the next look."""
        now = monotonic()
        if now >= lease.ends:
            if lease.leaving:
                with self._mutex:
                    self._plan(now + CONFIRM_AFTER, lease)
            else:
                self.lose(lease, lease.end_reason)
            return None
        released = not lease.may_be_released()
        if not lease.watched:
            return None  # released in the meantime, by an owner that may have ended since
        first, lease.seen = not lease.seen, True
        urgent, lease.urgent = lease.urgent, False
        if lease.wanted.listens:
            # held for long enough to care: hear at once when it is force-released, or Redis restarts. Each time: the
            # first time there may have been no thread to be had
            self._listen(lease.backend)
        if lease.renewing and released:
            self._notifier.log(WARNING, "owner-ended", name=lease.name, fence=lease.fence, detail=UNRENEWED)
            lease.renewing = False
        if lease.renewing and lease.max_hold is not None and now - lease.since >= lease.max_hold:
            self._notifier.log(WARNING, "max-hold", name=lease.name, fence=lease.fence, detail=UNRENEWED)
            lease.renewing = False
        how = call_for(lease, first=first, urgent=urgent)
        if not how:
            with self._mutex:
                self._plan(next_look(lease), lease)
            return None
        if lease.raising:  # with which fence?
            with self._mutex:
                self._plan(min(now + CONFIRM_AFTER, lease.ends), lease)
            return None
        lease.asked_fence = lease.fence
        command = renew_command(lease.wanted, how, lease.ttl, lease.fence)
        with self._mutex:  # until the answer comes, only the end of the lease is due
            due = lease.ends
            self._plan(due, lease)
        return Parcel(lease, command, due)

    # -- the sender's side ------------------------------------------------------------------------------------------

    def _answered(self, node: Node, parcels: list[Parcel], answers: list[Any], sent: float) -> None:
        moved: list[Parcel] = []
        refused: list[Parcel] = []
        trouble: ResponseError | None = None
        for parcel, answer in zip(parcels, answers, strict=True):
            task, _, due = parcel
            task.backend.heard_from(node)
            if isinstance(answer, ResponseError):
                if task.backend.place.redirect(task.backend, answer, node):
                    moved.append(parcel)
                else:
                    trouble = trouble or answer
                    refused.append(parcel)
                continue
            if isinstance(task, Lease):
                self._note(task, due, renewed(node, answer, sent))
                continue
            self._pending.discard(task)
            rest = left_to_release(task.wanted, answer)
            if rest is not None:
                self.release_later(rest, unknown=False, how=WITHDRAWAL)
        self._again(moved, 0.0)
        if trouble is not None:
            self._failed(node, refused, trouble)
            return
        over = self._outages.pop(node, None)
        if over is not None:
            if over.end_is_due() and not over.is_stale(node.origin.timeout):
                self._notifier.log(WARNING, "renewal-recovered", alias=node.origin.alias, outage=over.lasted)
            for backend in {parcel.task.backend for parcel in parcels}:
                self.renew_all(backend)

    def _failed(self, node: Node, parcels: list[Parcel], error: Exception) -> None:
        """Plan another try."""
        outage = self._outages.get(node)
        if outage is None or outage.is_stale(node.origin.timeout):
            outage = self._outages[node] = Outage()
        self._again(parcels, outage.fail())
        if any(parcel.task.matters for parcel in parcels) and outage.log_is_due():
            self._notifier.log(
                WARNING,
                "renewal-failed",
                alias=node.origin.alias,
                tasks=len(parcels),
                outage=outage.lasted,
                error=wording(error),
            )
        # a node of a cluster that says so may be cut off from the others, and not know who has its slots now
        if isinstance(error, ClusterDownError) or not isinstance(error, ResponseError):
            for place in {parcel.task.backend.place for parcel in parcels}:
                place.look_around(node)

    def _again(self, parcels: list[Parcel], delay: float) -> None:
        with self._mutex:
            now = monotonic()
            for task, _, due in parcels:
                if isinstance(task, Lease):
                    if task.watched and task.due == due:
                        self._plan(min(now + delay, task.ends), task)
                elif now < task.until and not task.backend.place.closed:
                    self._plan(now + delay, task)
                else:
                    self._pending.discard(task)

    def _note(self, lease: Lease, due: float, answer: Renewed) -> None:
        if answer.state == HELD:
            with self._mutex:
                # not when it was released, or extended by its holder, while the answer was on its way
                if lease.watched and lease.due == due:
                    lease.ends = max(lease.ends, answer.ends)
                    lease.handed = False
                    self._plan(next_look(lease), lease)
        elif lease.raising or lease.asked_fence != lease.fence:
            with self._mutex:  # asked with a fence that was about to change
                if lease.watched:
                    self._plan(min(monotonic() + CONFIRM_AFTER, lease.ends), lease)
        else:
            self.lose(lease, reason_of(answer))

    def lose(self, lease: Lease, reason: str, *, released: bool = False) -> None:
        """The lease is lost, if it is still watched (or ``released``: its release has found that out): say so, once."""
        jobs, job = self._notifier.jobs, partial(tell_lost, lease)
        with self._mutex:
            if lease.lost_reason or not (lease.watched or released):
                return  # told, or released in the meantime
            self.forget(lease)
            # at one stroke, without a call in which a signal handler could raise: what is marked as lost is told
            lease.watched, lease.lost_reason = False, reason
            jobs.append(job)
        if lease.canceller is not None:
            lease.canceller.strike()  # at once, not behind the receivers of the signal
        self._notifier.wake()
