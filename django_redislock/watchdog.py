"""The watchdog: one background thread per process that renews leases, confirms handoffs and notices losses.

It only keeps time; couriers talk to Redis, with timeouts of at most a sixth of the TTL, so that a slow Redis delays
neither a second try nor the news that a lease has ended. What a leaving waiter could not tell Redis is told by it.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import math
import os
import threading
from collections import defaultdict, deque
from logging import ERROR, WARNING
from time import monotonic
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from . import scripts
from .connection import Backend, Command
from .courier import Couriers, Errand, exchange
from .herald import Herald
from .lease import ENDED, FORCED, GONE, TAKEN, Lease
from .listener import Listener, get_listener
from .log import log_event
from .names import make_keys
from .signals import lock_lost, send

CONFIRM_AFTER = 0.1  # seconds that a lock is held before it counts as a long section
FIRST_RETRY, LAST_RETRY = 0.05, 1.0
LAST_WORDS = 1.0  # seconds that the end of the process may wait for Redis
REMEMBER_FOR = 60.0  # seconds after which Redis has forgotten an abandoned waiter by itself
MANY = 1000  # entries of the agenda, before it is swept
UNRENEWED = "not renewed any more"


class Farewell(NamedTuple):
    """A release or withdraw that still has to be sent."""

    backend: Backend
    name: str
    token: str
    unknown: bool
    until: float
    held: bool  # else it is of an attempt that was given up, of which nothing need be there

    def command(self) -> Command:
        keys = make_keys(self.backend.prefix, self.name)
        return scripts.release_command(self.backend, keys, self.name, self.token, unknown=self.unknown, own=self.held)


class Watchdog:
    """See the module. All times are absolute and monotonic."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # the garbage collection may close a generator that holds a lock, under us
        self._alarm = threading.Condition(self._mutex)
        self._leases: dict[str, Lease] = {}
        self._adoptable: deque[str] = deque(maxlen=1000)
        self._agenda: list[tuple[float, int, Lease | Farewell]] = []
        self._unsaid: set[Farewell] = set()
        self._order = itertools.count()
        self._sweep_at = MANY
        self._sleeps_until = -math.inf
        self._thread: threading.Thread | None = None
        self._couriers = Couriers(self._answered, self._failed)
        self._herald = Herald(self.tell_lost)
        self._delays: dict[Backend, float] = {}

    def watch(self, lease: Lease) -> None:
        """Renew this lease from now on, and tell its holder when it is lost."""
        with self._mutex:
            before = self._leases.get(lease.token)
            if before is not None and before is not lease:  # another thread has taken it with the same token
                before.adopted = True
                before.close()
            self._leases[lease.token] = lease
            lease.watched = True
            now = monotonic()
            self._plan(now + min(CONFIRM_AFTER, (lease.ends - now) / 3), lease)

    def unwatch(self, lease: Lease) -> None:
        """Whatever is in flight for this lease does not count any more. It is known until :meth:`forget`."""
        with self._mutex:
            lease.unwatch()

    def forget(self, lease: Lease) -> None:
        """Do not know this lease any more."""
        with self._mutex:
            self._drop(lease)

    def end(self, lease: Lease, *, adoptable: bool = False) -> None:
        """The lease has ended here; ``adoptable``: its token goes on elsewhere, so late wakes must not end it."""
        with self._mutex:
            lease.close()
            self._drop(lease)
            if adoptable:
                self._adoptable.append(lease.token)

    def _drop(self, lease: Lease) -> None:
        if self._leases.get(lease.token) is lease:
            del self._leases[lease.token]

    def extended(self, lease: Lease, ends: float) -> None:
        """The holder moved the end of the lease itself."""
        with self._mutex:
            lease.ends = ends
            lease.handed = False
            if lease.watched:
                self._plan(self._next(lease), lease)

    def release(self, lease: Lease) -> None:
        """Release in the background, as often as it takes."""
        self.send_farewell(lease.backend, lease.name, lease.token, unknown=lease.unknown)

    def send_farewell(self, backend: Backend, name: str, token: str, *, unknown: bool, held: bool = True) -> None:
        """Release or withdraw ``token`` in the background, as often as it takes. Failures are logged if it was held."""
        with self._mutex:
            now = monotonic()
            farewell = Farewell(backend, name, token, unknown, now + REMEMBER_FOR, held)
            self._unsaid.add(farewell)
            self._plan(now, farewell)

    def say_farewells(self) -> None:
        """Before the process ends, and its threads with it: what they have not come to say."""
        errands: dict[Backend, list[Errand]] = defaultdict(list)
        for farewell in list(self._unsaid):
            errands[farewell.backend].append(Errand(farewell, farewell.command(), 0.0))
        for backend, batch in errands.items():
            connection = backend.connect(min(backend.timeout, LAST_WORDS))
            try:
                exchange(connection, batch)
            except Exception as error:
                if _worth_a_word(batch):
                    log_event(WARNING, "farewells-failed", alias=backend.alias, error=error)
            finally:
                connection.disconnect()

    def _plan(self, due: float, task: Lease | Farewell) -> None:
        if isinstance(task, Lease):
            task.due = due
        heapq.heappush(self._agenda, (due, next(self._order), task))
        if len(self._agenda) > self._sweep_at:
            # what was released or planned anew stays where it was until it comes up: hours, with a TTL of a day
            self._agenda = [entry for entry in self._agenda if not _is_stale(entry)]
            heapq.heapify(self._agenda)
            self._sweep_at = max(MANY, 2 * len(self._agenda))
        if due < self._sleeps_until:
            self._alarm.notify()
        elif self._thread is None:
            thread = threading.Thread(target=self._run, name="redislock-watchdog", daemon=True)
            thread.start()
            self._thread = thread

    # -- what the listener hears ------------------------------------------------------------------------------------

    def on_stray(self, backend: Backend, kind: str, token: str, name: str) -> None:
        """A message for a token that nobody here waits for."""
        lease = self._leases.get(token)
        if lease is None:
            if kind in "gw" and token not in self._adoptable:  # it has left in the meantime: pass it on at once
                self.send_farewell(backend, name, token, unknown=False)
        elif kind == "f":
            self.lose(lease, FORCED)
        elif kind == "x":
            self._adopted(lease)

    def renew_all(self, backend: Backend) -> None:
        """After a reconnect: a flush or restart is noticed at once."""
        with self._mutex:
            now = monotonic()
            for lease in self._leases.values():
                if lease.backend is backend and lease.watched:
                    lease.urgent = True
                    self._plan(now, lease)

    # -- the thread's side ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            leases, farewells = self._sleep()
            try:
                self._work(leases, farewells)
            except Exception:
                # no more threads, say; nothing may be dropped for that
                log_event(ERROR, "watchdog-failed", exc_info=True)
                with self._mutex:
                    again = monotonic() + LAST_RETRY
                    tasks: list[Lease | Farewell] = [*leases, *farewells]
                    for task in tasks:
                        self._plan(again, task)

    def _sleep(self) -> tuple[list[Lease], list[Farewell]]:
        """Wait until something is due, and take it off the agenda."""
        leases: list[Lease] = []
        farewells: list[Farewell] = []
        with self._mutex:
            while True:
                now = monotonic()
                busy = bool(self._agenda)
                while self._agenda:
                    entry = heapq.heappop(self._agenda)
                    due, _, task = entry
                    stale = _is_stale(entry)
                    if due > now and not stale:
                        heapq.heappush(self._agenda, entry)
                        break
                    if isinstance(task, Farewell):
                        farewells.append(task)
                    elif not stale:
                        leases.append(task)
                if leases or farewells:
                    return leases, farewells
                # who locks in quick succession must not wake us each time: no new lease is due before this
                idle_until = now + CONFIRM_AFTER if busy else math.inf
                self._sleeps_until = self._agenda[0][0] if self._agenda else idle_until
                self._alarm.wait(None if self._sleeps_until == math.inf else self._sleeps_until - now)
                self._sleeps_until = -math.inf

    def _work(self, leases: list[Lease], farewells: list[Farewell]) -> None:
        errands: dict[Backend, list[Errand]] = defaultdict(list)
        for farewell in farewells:
            errands[farewell.backend].append(Errand(farewell, farewell.command(), 0.0))
        for lease in leases:
            command = self._look_after(lease)
            if command is not None:
                # until the answer comes, only the end of the lease is due
                with self._mutex:
                    self._plan(lease.ends, lease)
                errands[lease.backend].append(Errand(lease, command, lease.ends))
        for backend, batch in errands.items():
            patience = min(
                (errand.task.ttl / 6 for errand in batch if isinstance(errand.task, Lease)), default=math.inf
            )
            self._couriers.send(backend, batch, max(0.05, min(backend.timeout, patience)))

    def _look_after(self, lease: Lease) -> Command | None:
        """What is to be sent for this lease now, if anything; else plan the next look."""
        now = monotonic()
        if now >= lease.ends:
            self.lose(lease, ENDED)
            return None
        alive = lease.owner.alive()
        if not lease.watched:
            return None  # released in the meantime, by an owner that may have ended since
        first, lease.seen = not lease.seen, True
        urgent, lease.urgent = lease.urgent, False
        if lease.listens:
            # held for long enough to care: hear at once when it is released by force, or Redis restarts. Each time: the
            # first time there may have been no thread to be had
            get_listener(lease.backend).start()
        if lease.renewing and not alive:
            log_event(WARNING, "owner-ended", name=lease.name, fence=lease.fence, detail=UNRENEWED)
            lease.renewing = False
        if lease.renewing and lease.max_hold is not None and now - lease.since >= lease.max_hold:
            log_event(WARNING, "max-hold", name=lease.name, fence=lease.fence, detail=UNRENEWED)
            lease.renewing = False
        if lease.renewing and (urgent or lease.handed or not first or lease.ends - now < lease.ttl / 2):
            how = "keep"
        elif lease.handed or urgent:
            how = "confirm"  # which also tells whether the lock is still there
        else:
            with self._mutex:
                self._plan(self._next(lease), lease)
            return None
        ms = lease.ttl_ms
        return scripts.renew_command(lease.backend, lease.keys, lease.name, lease.token, ms, how, ms)

    @staticmethod
    def _next(lease: Lease) -> float:
        """When to look at a lease again that was just renewed, or needs no renewal."""
        if not lease.seen:
            return min(monotonic() + CONFIRM_AFTER, lease.ends)
        if not lease.renewing:
            return lease.ends
        return min(max(lease.ends - lease.ttl * 2 / 3, monotonic() + lease.ttl / 20), lease.ends)

    # -- the couriers' side -----------------------------------------------------------------------------------------

    def _answered(self, backend: Backend, errands: list[Errand], answers: list[Any], sent: float) -> None:
        refused = [(errand, answer) for errand, answer in zip(errands, answers, strict=True) if _is_error(answer)]
        if refused:
            self._failed(backend, [errand for errand, _ in refused], refused[0][1])
        for (task, _, due), answer in zip(errands, answers, strict=True):
            if _is_error(answer):
                continue
            if isinstance(task, Lease):
                self._note(task, due, scripts.renewed(backend, answer, sent))
                continue
            self._unsaid.discard(task)
            if answer[1]:  # dead waiters remain
                self.send_farewell(backend, task.name, task.token, unknown=False)
        if not refused and self._delays.pop(backend, None) is not None:
            self.renew_all(backend)

    def _failed(self, backend: Backend, errands: list[Errand], error: Exception) -> None:
        """Plan another try."""
        delay = self._delays[backend] = min(self._delays.get(backend, FIRST_RETRY / 2) * 2, LAST_RETRY)
        with self._mutex:
            now = monotonic()
            for task, _, due in errands:
                if isinstance(task, Lease):
                    if task.watched and task.due == due:
                        self._plan(min(now + delay, task.ends), task)
                elif now < task.until and not backend.closed:
                    self._plan(now + delay, task)
                else:
                    self._unsaid.discard(task)
        if _worth_a_word(errands):
            log_event(WARNING, "renewal-failed", alias=backend.alias, tasks=len(errands), error=error)

    def _note(self, lease: Lease, due: float, renewed: scripts.Renewed) -> None:
        if renewed.state == scripts.HELD:
            with self._mutex:
                # not when it was released, or extended by its holder, while the answer was on its way
                if lease.watched and lease.due == due:
                    lease.ends = max(lease.ends, renewed.ends)
                    lease.handed = False
                    self._plan(self._next(lease), lease)
        elif renewed.state == scripts.ADOPTED:
            self._adopted(lease)
        else:
            self.lose(lease, TAKEN if renewed.taken else GONE)

    def _adopted(self, lease: Lease) -> None:
        """Another process adopted the token: the acquisition goes on, or has ended, there."""
        with self._mutex:
            if not lease.lost_reason:  # else that has been told, and stands
                lease.adopted = True
                self.end(lease)

    def lose(self, lease: Lease, reason: str) -> None:
        """The lease is lost, if it is still watched."""
        with self._mutex:
            if not lease.watched:
                return  # released in the meantime
            lease.watched = False
            self._drop(lease)
            lease.lost_reason = reason
        if lease.canceller is not None:
            lease.canceller.strike()  # at once, not behind the receivers of the signal
        self.announce(lease)

    def announce(self, lease: Lease) -> None:
        """Tell the site's code of a lease that is marked as lost, from a thread where there is anything to tell."""
        if lease.on_lost is None and not lock_lost.receivers:
            self.tell_lost(lease)
            return
        # what the site's own code does there must hold up nobody: we may be in the thread that reads for a waiter, that
        # renews, or that keeps the time
        self._herald.bring(lease)

    @staticmethod
    def tell_lost(lease: Lease) -> None:
        """Tell the site's code of a lease that is marked as lost."""
        log_event(WARNING, "lost", name=lease.name, fence=lease.fence, reason=lease.lost_reason)
        try:
            send(lock_lost, Lease, name=lease.name, fence=lease.fence, reason=lease.lost_reason)
            if lease.on_lost is not None:
                lease.on_lost(lease.lost_error())
        except BaseException:
            log_event(ERROR, "on-lost-failed", name=lease.name, exc_info=True)


def _is_stale(entry: tuple[float, int, Lease | Farewell]) -> bool:
    """Whether the lease has ended, or was planned anew."""
    due, _, task = entry
    return isinstance(task, Lease) and not (task.watched and task.due == due)


def _worth_a_word(errands: list[Errand]) -> bool:
    """Whether a failure concerns what somebody holds. Who did not get a lock has been told why."""
    return any(isinstance(errand.task, Lease) or errand.task.held for errand in errands)


def _is_error(answer: object) -> bool:
    return isinstance(answer, ResponseError)


watchdog = Watchdog()
Listener.on_stray = staticmethod(watchdog.on_stray)
Listener.on_connected = staticmethod(watchdog.renew_all)
# the child holds nothing and renews nothing
os.register_at_fork(after_in_child=watchdog.__init__)  # type: ignore[misc]
atexit.register(watchdog.say_farewells)
