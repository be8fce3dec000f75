"""What the scripts promise, in Python: one lock and those who want it, and a clock that only goes when it is told to.

To be compared with what the scripts do on a real server (machine.py).
"""

from __future__ import annotations

from typing import NamedTuple

from django_redislock.store.calls import (
    ADOPTED,
    ADOPTING,
    ALREADY,
    BEARER,
    BUSY,
    DETACHED,
    FULL,
    GIVEN_UP,
    GRANTED,
    HELD,
    LOST,
    NOT_AT_ALL,
    NOT_HELD,
    RELEASED,
    REQUEUED,
    SEIZING,
    SUSPENSION,
    WHATEVER,
    WITHDRAWAL,
)

MS = 1000  # microseconds
MINUTE = 60_000  # ms, after which Redis forgets queues and withdrawals


class Process(NamedTuple):
    """Who calls a script, and what it says of itself."""

    channel: str  # '-': it listens to nothing
    known: int  # the highest fence that it knows


class Attempt(NamedTuple):
    id: str
    ttl: int  # ms
    token: str  # '-': none but the id
    adopts: str  # an acquisition of its own process that nobody uses any more
    most: int | None  # how many others may wait already
    owner: str


class Held(NamedTuple):
    """The lock, while somebody holds it."""

    id: str
    channel: str
    flag: str  # c(onfirmed), h(anded over and not confirmed), a(dopted), d(etached); s(uspended): nobody holds it
    fence: int
    since: int
    token: str
    owner: str
    ends: int = 0

    def text(self) -> str:
        return " ".join(map(str, self[:-1]))


class Waiter(NamedTuple):
    channel: str  # '-': it polls, and nobody can tell it anything
    ttl: int
    until: int  # it counts as alive, when it polls
    token: str
    owner: str

    def text(self) -> str:
        return " ".join(map(str, self))


class Answer(NamedTuple):
    """To an acquire."""

    state: int
    number: int  # fence or ticket
    holder: str | None = None  # value of the lock that somebody else has, or had until it was seized
    unheard: bool = False  # a handoff to the process that asks ran out, though it lives
    namesake: str = ""  # holds the lock with the token of the one who asks, and is of the same process


class Reference:
    def __init__(self, name: str, now: int, subscribed: set[str] | None = None) -> None:
        self.name = name
        self.now = now  # microseconds
        self.lock: Held | None = None
        self.queue: dict[str, int] = {}  # ids and tickets
        self.queue_ends = 0
        # what is known of those who wait, and of handoffs
        self.waiters: dict[str, Waiter] = {}
        self.waiters_end = 0
        self.handed_to = ""  # the channel to which a handoff is under way
        self.suspects: set[str] = set()  # channels that have let one run out
        self.planned: Held | None = None  # the suspension that begins when the lock is free
        self.index: int | None = None  # the end of the lease, as the list of all locks has it
        self.fence = 0
        self.gone: dict[str, int] = {}  # ids of attempts that are over, and until when that is known
        self.subscribed = subscribed or set()
        self.messages: list[tuple[str, str]] = []  # channel and text, of the last step
        self._unheard = False
        self._namesake = ""

    # -- time and accidents -------------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        self.now += ms * MS
        if self.lock and self.now >= self.lock.ends:
            self.lock = None  # the list is not told
        if self.now >= self.queue_ends:
            self.queue.clear()
        if self.now >= self.waiters_end:
            self._forget_waiters()
        self.gone = {id: ends for id, ends in self.gone.items() if ends > self.now}

    def ends(self) -> dict[str, int]:
        """When Redis forgets what by itself: microseconds by its key, without the prefix."""
        ends = {f"gone:{id}": end for id, end in self.gone.items()}
        if self.lock:
            ends[f"lock:{self.name}"] = self.lock.ends
        if self.queue:
            ends[f"queue:{self.name}"] = self.queue_ends
        if self._knows_waiters():
            ends[f"waiters:{self.name}"] = self.waiters_end
        return ends

    def evict(self, key: str) -> None:
        """Redis has no memory left, and forgets a key."""
        if key == "lock":
            self.lock = None
        elif key == "queue":
            self.queue.clear()
        elif key == "waiters":
            self._forget_waiters()
        elif key == "index":
            self.index = None
        elif key == "fence":
            self.fence = 0

    # -- the scripts --------------------------------------------------------------------------------------------------

    def acquire(self, caller: Process, attempt: Attempt, wait: str, ticket: int | None) -> Answer:
        """The first try, and every later look. ``ticket``: the place in the queue, None before one was drawn."""
        self._unheard = False
        self._namesake = ""
        held = self.lock
        if held and held.id == attempt.id:
            return Answer(ALREADY, held.fence)  # by an earlier request, or handed over
        if attempt.id in self.gone:
            return Answer(GIVEN_UP, 0)
        if held and self._may_adopt(caller, attempt, held):
            return Answer(ALREADY, self._adopt(caller, attempt, held))
        if wait == ADOPTING:
            if held:
                state = BUSY if self._bears(attempt, held) else GIVEN_UP
                return Answer(state, 0, held.text(), namesake=self._namesake)
            self._free(caller)
            return Answer(GIVEN_UP, 0, unheard=self._unheard)
        if wait == SEIZING:
            return self._seize(caller, attempt, held)
        if not held:
            if self._begin_suspension():
                held = self.lock
            elif self._pass_on(caller, attempt.id):
                self._leave(attempt.id)
                return Answer(GRANTED, self._enter(caller, attempt), unheard=self._unheard)
        state, value = BUSY, self.lock.text() if held and self.lock else None
        if wait == NOT_AT_ALL:
            ticket = ticket or 0
        elif attempt.most is not None and ticket is None and self._is_full(attempt.id, attempt.most):
            state, ticket = FULL, 0
        else:
            state = BUSY if ticket is None or attempt.id in self.queue else REQUEUED
            ticket = self._join(caller, attempt, wait, ticket)
        return Answer(state, ticket, value, unheard=self._unheard, namesake=self._namesake)

    def release(self, caller: Process, id: str, *, unknown: bool, how: str) -> int:
        """``unknown``: an acquire may still arrive; ``how``: see calls.release()."""
        held = self.lock
        mine = held is not None and held.id == id
        if held and mine and held.flag == "d" and how != BEARER:
            return DETACHED  # it is not ours any more: it waits for somebody with the token
        if unknown:
            self.gone[id] = self.now + MINUTE * MS
        if held and mine and held.flag == "a" and how == WITHDRAWAL:
            self.lock = held._replace(flag="d")  # who was about to adopt it did not come to know that
            return DETACHED
        if not held or not mine:
            self._leave(id)
            if not held:
                self._free(caller)
            return NOT_HELD
        self.lock = None
        if held.channel != caller.channel:
            self._publish(held.channel, f"r {id} {self.name}")
        self._free(caller, given_back=True)
        return RELEASED

    def renew(
        self, caller: Process, attempt: Attempt, ttl: int, how: str, ms: int, fence: int | None = None
    ) -> tuple[int, int, int]:
        """Returns state, milliseconds left of whoever holds the lock, and the fence if it was raised, else 0.

        ``fence``: of the acquisition; None: of whatever this attempt holds.
        """
        held = self.lock
        if not held:
            self._free(caller)
            return LOST, 0, 0
        if held.id != attempt.id:
            own = attempt.id if attempt.token == "-" else attempt.token
            return (ADOPTED if held.token == own else LOST), self.left(), 0
        if fence not in (None, held.fence):
            return LOST, self.left(), 0
        if held.flag == "d" and how != "detach":
            return HELD, self.left(), 0  # it came late: nobody here renews it any more
        ends = held.ends
        if held.flag == "h":
            ends = max(ends, held.since + ttl * MS)
            self.handed_to = ""
        at_least = max(ends, self.now + ms * MS)
        wanted = {"keep": at_least, "raise": at_least, "confirm": ends, "add": ends + ms * MS}
        # whoever raises the fence of what it has adopted knows that it has it
        flag = {"detach": "d", "raise": "c"}.get(how, "c" if held.flag == "h" else held.flag)
        raised = self._next_fence(caller) if how == "raise" else 0
        self._hold(held._replace(flag=flag, fence=raised or held.fence, ends=wanted.get(how, self.now + ms * MS)))
        return HELD, self.left(), raised

    def force(self, caller: Process, highest: int | None, what: str = WHATEVER) -> str | None:
        """Returns the value that the lock had, or the planned suspension that is cancelled with it.

        ``highest``: of the fences that may be released; ``what``: see calls.force().
        """
        held = self.lock
        if held and highest is not None and held.fence > highest:
            return None
        planned, self.planned = self.planned, None
        value = planned.text() if planned and planned.ends > self.now else None
        if what == SUSPENSION and held and held.flag != "s":
            return value
        self.lock = None
        if held:
            self._publish(held.channel, f"f {held.id} {self.name}")
        self._free(caller, given_back=held is not None)
        return held.text() if held else value

    def suspend(self, caller: Process, ms: int, owner: str) -> bool:
        """Returns whether it has begun: else, somebody holds the lock."""
        fence = self._next_fence(caller)
        suspension = Held("-", "-", "s", fence, self.now, "-", owner, self.now + ms * MS)
        self.planned = None
        if self.lock and self.lock.flag != "s":
            known_until = self.waiters_end if self._knows_waiters() else 0
            self.planned, self.waiters_end = suspension, max(known_until, suspension.ends)
            return False
        self._hold(suspension)
        self._tell_to_look(0)
        return True

    # -- who may have the lock ----------------------------------------------------------------------------------------

    def left(self) -> int:
        """Milliseconds; as Redis says it when nobody holds the lock."""
        return (self.lock.ends - self.now) // MS if self.lock else -2

    def in_order(self) -> list[tuple[str, int]]:
        return sorted(self.queue.items(), key=lambda item: (item[1], item[0]))

    def _may_adopt(self, caller: Process, attempt: Attempt, held: Held) -> bool:
        """Who has the token goes on with the lock where nobody is at work with it."""
        if not self._bears(attempt, held):
            return False
        if held.flag == "d":
            return True
        if held.channel == "-":
            return False  # wherever that is: nobody can find out whether it is gone
        if held.channel != caller.channel:
            return held.channel not in self.subscribed
        self._namesake = held.id  # the process knows
        return attempt.adopts == held.id

    @staticmethod
    def _bears(attempt: Attempt, held: Held) -> bool:
        return attempt.token != "-" and attempt.token == (held.id if held.token == "-" else held.token)

    def _is_full(self, id: str, most: int) -> bool:
        """Whether as many others wait as may; of those who are dead, the first hundred are dropped."""
        if len(self.queue) < most or id in self.queue:
            return False
        for other, _ in self.in_order()[:100]:
            waiter = self.waiters.get(other)
            polls = waiter is not None and waiter.channel == "-"
            if not waiter or not (self.now < waiter.until if polls else waiter.channel in self.subscribed):
                self._leave(other)
        return len(self.queue) >= most

    def _pass_on(self, caller: Process, me: str = "", *, given_back: bool = False) -> bool:
        """A free lock goes to the first in the queue who lives. True: there is none, or it is the one who asks."""
        if not given_back:
            self._suspect(caller)
        self.handed_to = ""
        for id, _ in self.in_order():
            if id == me:
                return True
            waiter = self.waiters.get(id)
            if waiter and waiter.channel == "-" and self.now < waiter.until:
                # it comes by itself; and if it does not, somebody must notice
                if not me:
                    self._tell_to_look(1)
                return False
            self._leave(id)
            if waiter and self._lives(waiter.channel, caller):
                self._hand_over(caller, id, waiter)
                return False
        self._forget_waiters()
        return True

    def _suspect(self, caller: Process) -> None:
        """The lock is free, and nobody has given it back: if it was handed over, its process stands still."""
        if self.handed_to == caller.channel:
            self._unheard = True  # it does not: it asks
        elif self.handed_to:
            self.suspects.add(self.handed_to)

    def _lives(self, channel: str, caller: Process) -> bool:
        return channel in self.subscribed and (channel == caller.channel or channel not in self.suspects)

    def _tell_to_look(self, first: int) -> None:
        """The first who can be told, from this place on: it looks after a head that polls, or a suspension."""
        for id, _ in self.in_order()[first:]:
            waiter = self.waiters.get(id)
            if waiter and waiter.channel in self.subscribed:
                self._publish(waiter.channel, f"w {id} {self.name}")
                return

    def _free(self, caller: Process, *, given_back: bool = False) -> None:
        """Nobody holds the lock, and nobody asks for it in this step."""
        if self._begin_suspension():
            if given_back:
                self.handed_to = ""
            self._tell_to_look(0)
            return
        self._pass_on(caller, given_back=given_back)
        if not self.lock:
            self.index = None

    def _begin_suspension(self) -> bool:
        """The lock is free: whether it is suspended from now on."""
        planned = self.planned
        if planned is None or planned.ends <= self.now:
            return False
        left = -(-(planned.ends - self.now) // MS)  # Redis counts in milliseconds
        self.planned = None
        self._hold(planned._replace(ends=self.now + left * MS))
        return True

    # -- how it changes hands -----------------------------------------------------------------------------------------

    def _enter(self, caller: Process, attempt: Attempt) -> int:
        return self._grant(caller, attempt.id, caller.channel, "c", attempt.ttl, attempt.token, attempt.owner)

    def _hand_over(self, caller: Process, id: str, waiter: Waiter) -> None:
        """A short lease, until the new holder is seen to live."""
        lease = min(waiter.ttl, max(3000, waiter.ttl // 3))
        self.handed_to = waiter.channel
        if lease > 50_000:  # what is known of it outlasts the lease
            self.waiters_end = max(self.waiters_end, self.now + (lease + MINUTE) * MS)
        fence = self._grant(caller, id, waiter.channel, "h", lease, waiter.token, waiter.owner)
        self._publish(waiter.channel, f"g {id} {fence} {self.now} {lease} {self.name}")

    def _adopt(self, caller: Process, attempt: Attempt, held: Held) -> int:
        """The same hold goes on elsewhere; at once, whoever waits."""
        ends, fence, since = self.now + attempt.ttl * MS, held.fence, held.since
        if held.flag != "d":  # should its holder live, its fence is an old one
            ends, fence, since = max(ends, held.ends), self._next_fence(caller), self.now
        if held.flag == "h":
            self.handed_to = ""
        note = "" if "\n" in attempt.owner else "".join(held.owner.partition("\n")[1:])
        self._leave(attempt.id)
        self._hold(Held(attempt.id, caller.channel, "a", fence, since, attempt.token, attempt.owner + note, ends))
        self._publish(held.channel, f"a {held.id} {self.name}")
        return fence

    def _seize(self, caller: Process, attempt: Attempt, held: Held | None) -> Answer:
        """Whoever holds it, and whoever waits: they go on waiting."""
        self.planned = None
        if held and held.flag == "h":
            self.handed_to = ""
        self._leave(attempt.id)
        fence = self._enter(caller, attempt)
        if held:
            self._publish(held.channel, f"f {held.id} {self.name}")
        return Answer(GRANTED, fence, held.text() if held else None)

    def _join(self, caller: Process, attempt: Attempt, wait: str, ticket: int | None) -> int:
        """Into the queue; it is forgotten a minute after the last who did so."""
        self.queue[attempt.id] = ticket = self._next_fence(caller) if ticket is None else ticket
        polls = wait.startswith("p")
        channel, until = ("-", self.now + int(wait[1:]) * MS) if polls else (caller.channel, 0)
        # whoever asks lives
        if self.handed_to == caller.channel:
            self.handed_to = ""
        if caller.channel in self.suspects:
            self.suspects.remove(caller.channel)
            self._unheard = True
        known_until = self.waiters_end if self._knows_waiters() else 0
        self.waiters[attempt.id] = Waiter(channel, attempt.ttl, until, attempt.token, attempt.owner)
        self.queue_ends = self.now + MINUTE * MS
        self.waiters_end = max(known_until, self.queue_ends)
        return ticket

    def _grant(self, caller: Process, id: str, channel: str, flag: str, lease: int, token: str, owner: str) -> int:
        fence = self._next_fence(caller)
        self._hold(Held(id, channel, flag, fence, self.now, token, owner, self.now + lease * MS))
        return fence

    def _hold(self, held: Held) -> None:
        self.lock = held
        self.index = held.ends

    def _next_fence(self, caller: Process) -> int:
        """Fences and tickets only grow."""
        self.fence = max(self.fence, caller.known, self.now - 1) + 1
        return self.fence

    def _leave(self, id: str) -> None:
        self.queue.pop(id, None)
        self.waiters.pop(id, None)

    def _knows_waiters(self) -> bool:
        return bool(self.waiters or self.handed_to or self.suspects or self.planned)

    def _forget_waiters(self) -> None:
        self.planned = None
        self.waiters.clear()
        self.handed_to = ""
        self.suspects.clear()

    def _publish(self, channel: str, text: str) -> None:
        if channel in self.subscribed:
            self.messages.append((channel, text))
