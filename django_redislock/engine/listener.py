"""A listener: the waiters of this process for the locks of one partition, and the messages for them.

A message is a hint; the key is the truth. After each (re)subscription, all waiters are told to ask Redis.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from ..base.names import TOKEN, can_be_asked_for
from ..base.times import monotonic
from ..store.calls import ENDLESS, FREE, WITHDRAWAL, LockRequest, lease_end
from ..store.lock_store import Partition
from ..store.node import Node
from ..store.records import make_keys
from .lease import ADOPTED_ELSEWHERE, FORCED, RELEASED_ELSEWHERE
from .waiters import Grant, Loop, Waiter, Waiters
from .watchdog import Watchdog

LOOK_EVERY = 5.0  # seconds between a process's looks at one name
RECONNECTING = 1.0  # the same while there is no subscription
WATCHING = 0.1  # the same for a free lock that is reserved for a waiter who polls
JITTER = 0.05
SIT_OUT = 10.0  # seconds for which waiters go on though Redis does not answer
RECHECK_EVERY = 5.0  # seconds between looks of all waiters because of late messages, which anybody may have forged

# The first letter of a message tells a waiter that it has the lock (g) or shall look (w), or a holder why it has
# lost the lock. A grant has three numbers, and on a cluster the id of its node. The probe (R3) does not match.
LOST = {"f": FORCED, "a": ADOPTED_ELSEWHERE, "r": RELEASED_ELSEWHERE}
_GRANT = r"(\d{1,16}) (\d{1,17}) (\d{1,12})(|@[0-9a-f]{40}|@\?) "
_MESSAGE = re.compile(rf"(?:(g)|([wfar])) ({TOKEN}) (?(1){_GRANT})([^\ud800-\udfff]+)")


class Listener:
    """See the module. ``ready``: subscribed, so waiters may queue; ``polled``: messages cannot be trusted to arrive.
    ``want`` subscribes it.
    """

    def __init__(self, partition: Partition, want: Callable[[Listener], object], watchdog: Watchdog) -> None:
        self.partition: Partition = partition
        self.ready: bool = False
        self.polled: bool = False
        self.generation: int = 0
        self.heard: int = 0  # messages
        self.waiters: Waiters = Waiters()
        self.receiver: Any = None  # the Receiver by which it is subscribed
        # since when (monotonic) no waiter's question has been answered; 0: the last one was
        self._silent_since: float = 0.0
        self._told_of: float = 0.0  # the silence, by its beginning, of which all waiters were told
        self._subscribe = partial(want, self)
        self._watchdog = watchdog
        partition.on_other_node = self._subscribe  # C3: another node runs the scripts now
        partition.on_demotion = self.reconnect  # nobody else may cut what leads to a former master
        partition.store.when_closed(self.close)
        partition.store.on_loop_end.append(self.bury)

    @property
    def hears(self) -> bool:
        """Whether messages reach this process."""
        return self.ready and not self.polled

    # -- the waiters' side ------------------------------------------------------------------------------------------

    def register(self, waiter: Waiter) -> None:
        """Let wakes reach this waiter. Must be called before its request is sent."""
        waiter.due = monotonic() + RECONNECTING
        self.waiters.add(waiter)
        if (receiver := self.receiver) is not None and receiver.rests_until:
            receiver.read_for(waiter)

    def bury(self, loop: Loop) -> None:
        """The loop has ended, and its waiters with it: pass on what they may have been granted."""
        for waiter in self.waiters.discard_loop(loop):
            self._withdraw(waiter.id, waiter.name)

    def leave_queues(self) -> None:
        """Before the process ends: waiters whose event loop has stopped must get nothing that is given back now."""
        for waiter in self.waiters.of():
            if waiter.loop is not None and not waiter.loop.is_running():
                self._withdraw(waiter.id, waiter.name)  # they stay known: if the loop runs once more, they queue anew

    def schedule(self, waiter: Waiter, left: float, delay: float) -> None:
        """A look found the lock busy for ``left`` more seconds, or free but reserved for somebody else.

        Where messages cannot be trusted, the waiter looks again after ``delay`` seconds.
        """
        waiter.due = monotonic() + (delay if self.polled else RECONNECTING)
        wait = {FREE: WATCHING, ENDLESS: LOOK_EVERY}.get(left, min(left, LOOK_EVERY))
        due = monotonic() + wait + random.uniform(0, JITTER)
        group = waiter.group
        # a newcomer looks for itself alone, so its look may bring the group's next one forward, but not put it off
        group.due = due if group.oldest is waiter else min(group.due, due)

    def next_look(self, waiter: Waiter) -> float | None:
        """The monotonic time at which this waiter must look by itself; None: another one does it for the group."""
        if self.polled:
            return waiter.due
        if waiter.group.oldest is waiter:
            return waiter.group.due if self.ready else waiter.due
        return waiter.due + LOOK_EVERY - RECONNECTING if waiter.bears_token else None

    def answered(self) -> None:
        """Redis has answered a waiter."""
        self._silent_since = 0.0

    def unanswered(self) -> float:
        """A waiter's question was not answered. Return until when (monotonic) it goes on asking.

        Once that time is over, all waiters look: most only wait for a message, and would find out one after the other.
        """
        now = monotonic()
        since = self._silent_since = self._silent_since or now
        if now >= since + SIT_OUT and self._told_of != since:
            self._told_of = since
            self.tell_all()
        return since + SIT_OUT

    def tell_all(self, name: str | None = None) -> None:
        """Make all waiters look, or all that wait for ``name``: they may no longer be in the queue.

        Those still waiting for their first answer look once more when it has come.
        """
        for waiter in self.waiters.of(name):
            waiter.tell()

    def recheck(self, name: str) -> None:
        """A handoff of the lock ``name`` came after its lease: others may have dropped the waiters of this process.

        All who wait for the name look, at most once in RECHECK_EVERY seconds.
        """
        now = monotonic()
        for group in self.waiters.groups(name):
            if now >= group.recheck_from:
                group.recheck_from = now + RECHECK_EVERY
                for waiter in self.waiters.of(group.name):
                    if waiter.group is group or not waiter.registered:
                        waiter.tell()

    # -- the subscription -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Subscribe, unless that is done or under way. Returns at once; later, ``ready`` is set and waiters look."""
        if self.receiver is None:
            self._subscribe()

    def subscribed(self, receiver: Any, *, polled: bool) -> None:
        """Messages arrive by ``receiver``; None: they do not arrive."""
        self.polled = polled
        self.generation += 1
        self.partition.subscribed_at = None if receiver is None else receiver.node
        self.ready = True
        self.tell_all()
        self.receiver = receiver  # after all were told: a thread that reads is woken by messages alone
        self._watchdog.renew_all(self.partition)

    def unsubscribed(self) -> None:
        """Messages no longer arrive."""
        self.ready = False
        self.receiver = None
        self.partition.subscribed_at = None
        for waiter in self.waiters.of():
            waiter.wake()  # from now on, it looks by another clock

    def on_unsubscribed(self) -> None:
        """C3: the node has ended the subscription by itself, as it no longer has the slot."""
        self.unsubscribed()
        self._subscribe()

    def reconnect(self) -> None:
        """Cut the connection: wakes should arrive on it, and do not."""
        if (receiver := self.receiver) is not None:
            receiver.cut()

    def close(self) -> None:
        """The settings have changed."""
        self.unsubscribed()
        self.tell_all()

    def on_message(self, data: bytes, node: Node) -> Waiter | None:
        """Handle a message from ``node``; return the waiter that was told."""
        if node is not self.partition.subscribed_at:
            return None  # C3: a former master
        self.heard += 1
        found = _MESSAGE.fullmatch(data.decode(errors="surrogateescape"))
        if found is None:
            return None  # not one of our messages
        granted, told, id, fence, us, lease_ms, by, name = found.groups()
        kind = granted or told
        # C3, C7: otherwise a former master may have sent it, so the waiter looks
        trusted = granted and by == node.id != "@?" and not node.suspected_at
        waiter = self.waiters.get(id) if kind in "gw" else None
        grant = None
        if trusted:
            grant = Grant(int(fence), int(us), _end_of(node, int(us), int(lease_ms) / 1000), name)
            if monotonic() >= grant.ends:
                self.recheck(name if waiter is None else waiter.name)
        if waiter is not None:
            waiter.tell(grant)
        elif can_be_asked_for(name):
            self._tell_holder(kind, id, name)
        return waiter

    def _tell_holder(self, kind: str, id: str, name: str) -> None:
        """Nobody here waits with this id: tell the holder of its loss, or pass on what nobody waits for."""
        lease = self._watchdog.lease_of(id)
        if lease is not None:
            if kind in LOST:
                self._watchdog.lose(lease, LOST[kind])
        elif kind in "gw":
            self._withdraw(id, name)

    def _withdraw(self, id: str, name: str) -> None:
        """Nobody waits with this id any more: what it was granted, or may yet be, goes to the next waiter."""
        left = LockRequest(self.partition, make_keys(self.partition.prefix, name), name, id)
        self._watchdog.abandon(left, may_arrive=False, how=WITHDRAWAL)


def _end_of(node: Node, granted_us: int, lease: float) -> float:
    """The local monotonic time at which to presume a handoff's lease over (never too late)."""
    if node.anchor is None:
        return 0.0
    us, sent = node.anchor
    granted, now = sent + (granted_us - us) / 1e6, monotonic()
    if granted > now + 1.0:
        return 0.0  # the server's clock has jumped ahead since: nobody knows when that was
    return lease_end(min(granted, now), lease)
