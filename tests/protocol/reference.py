"""What the scripts must do, in Python: one lock, the attempts to acquire it, and a clock that is moved by hand."""

from typing import NamedTuple

from tests import inside

MS = 1000  # microseconds
MINUTE = 60_000  # ms after which Redis forgets queues and withdrawals


class Process(NamedTuple):
    """The caller of a script, and what it says of itself."""

    channel: str  # '-': it is not subscribed
    known: int  # the highest fence it knows
    own: str = ""  # its channel, also while it is not subscribed


class Attempt(NamedTuple):
    id: str
    ttl: int  # ms
    token: str  # '-': no token except the id
    most: int | None  # how many others may be waiting
    owner: str


class Held(NamedTuple):
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
    channel: str  # '-': it polls, and cannot be told anything
    ttl: int
    until: int  # when it polls: until when it counts as alive
    token: str
    owner: str

    def text(self) -> str:
        return " ".join(map(str, self))


class Answer(NamedTuple):
    state: int
    number: int  # fence or ticket
    holder: str | None = None  # the value of a lock that somebody else holds
    unheard: bool = False  # a handoff to the calling process was not confirmed in time, although the process is alive


class Reference:
    def __init__(self, name: str, now: int, subscribed: set[str] | None = None) -> None:
        self.name = name
        self.now = now  # microseconds
        self.lock: Held | None = None
        self.queue: dict[str, int] = {}  # ids and tickets
        self.queue_ends = 0
        # what is known of waiters, and of handoffs
        self.waiters: dict[str, Waiter] = {}
        self.waiters_end = 0
        self.handed_to = ""  # the channel of an unconfirmed handoff
        self.suspects: set[str] = set()  # channels that did not confirm a handoff in time
        self.planned: Held | None = None  # the suspension that begins when the lock is free
        self.index: int | None = None  # the end of the lease in the list of all locks
        self.fence = 0
        self.gone: dict[str, int] = {}  # ids of attempts that are over, and until when Redis remembers that
        self.subscribed = set() if subscribed is None else subscribed
        self.messages: list[tuple[str, str]] = []  # channel and text of the messages of the last step
        self._unheard = False

    def advance(self, ms: int) -> None:
        self.now += ms * MS
        if self.lock and self.now >= self.lock.ends:
            self.lock = None  # the list of all locks is not updated
        if self.now >= self.queue_ends:
            self.queue.clear()
        if self.now >= self.waiters_end:
            self._forget_waiters()
        self.gone = {id: ends for id, ends in self.gone.items() if ends > self.now}

    def ends(self) -> dict[str, int]:
        """When each key expires: microseconds by key, without the prefix."""
        ends = {f"gone:{id}": end for id, end in self.gone.items()}
        if self.lock:
            ends[f"lock:{self.name}"] = self.lock.ends
        if self.queue:
            ends[f"queue:{self.name}"] = self.queue_ends
        if known_until := self._waiters_known_until():
            ends[f"waiters:{self.name}"] = known_until
        return ends

    def evict(self, key: str) -> None:
        if key == "queue":
            self.queue.clear()
        elif key == "waiters":
            self._forget_waiters()
        else:
            setattr(self, key, 0 if key == "fence" else None)

    def acquire(self, caller: Process, attempt: Attempt, wait: str, ticket: int | None) -> Answer:
        """The first try, and every later look. ``ticket``: the place in the queue, or None before one was drawn."""
        self._unheard, held = False, self.lock
        if held and held.id == attempt.id:
            return Answer(inside.ALREADY, held.fence)  # granted to an earlier request, or handed over
        if attempt.id in self.gone:
            return Answer(inside.GIVEN_UP, 0)
        if held and self._may_adopt(caller, attempt, held):
            return Answer(inside.ALREADY, self._adopt(caller, attempt, held))
        if wait == inside.ADOPTING:
            if held:
                state = inside.BUSY if self._bears(attempt, held) else inside.GIVEN_UP
                return Answer(state, 0, held.text())
            self._free(caller)
            return Answer(inside.GIVEN_UP, 0, unheard=self._unheard)
        if not held:
            if self._begin_suspension():
                held = self.lock
            elif self._grant_next(caller, attempt.id):
                self._leave(attempt.id)
                fence = self._grant(caller, attempt.id, caller.channel, "c", attempt.ttl, attempt.token, attempt.owner)
                return Answer(inside.GRANTED, fence, unheard=self._unheard)
        state, value = inside.BUSY, self.lock.text() if held and self.lock else None
        if wait == inside.NOT_AT_ALL:
            ticket = ticket or 0
        elif attempt.most is not None and ticket is None and self._is_full(attempt.id, attempt.most):
            state, ticket = inside.FULL, 0
        else:
            state = inside.BUSY if ticket is None or attempt.id in self.queue else inside.REQUEUED
            ticket = self._join(caller, attempt, wait, ticket)
        return Answer(state, ticket, value, unheard=self._unheard)

    def release(self, caller: Process, id: str, *, may_arrive: bool, how: str) -> int:
        """``may_arrive``: an acquire may still arrive; ``how``: see calls.release()."""
        held = self.lock
        mine = held is not None and held.id == id
        if held and mine and held.flag == "d" and how != inside.BEARER:
            return inside.DETACHED  # no longer ours: it waits for somebody with the token
        if may_arrive:
            self.gone[id] = self.now + MINUTE * MS
        if held and mine and held.flag == "a" and how == inside.WITHDRAWAL:
            self.lock = held._replace(flag="d")  # the attempt that was about to adopt it never learned that it had
            return inside.DETACHED
        if not held or not mine:
            self._leave(id)
            if not held:
                self._free(caller)
            return inside.NOT_HELD
        self.lock = None
        if held.channel != caller.channel:
            self._publish(held.channel, f"r {id} {self.name}")
        self._free(caller, given_back=True)
        return inside.RELEASED

    def renew(
        self, caller: Process, attempt: Attempt, ttl: int, how: str, ms: int, fence: int | None = None
    ) -> tuple[int, int]:
        """Returns state, and the holder's milliseconds left.

        ``fence``: of the acquisition; None: whatever this attempt holds.
        """
        held = self.lock
        if not held:
            self._free(caller)
            return inside.LOST, 0
        if held.id != attempt.id:
            own = attempt.id if attempt.token == "-" else attempt.token
            return (inside.ADOPTED if held.token == own else inside.LOST), self.left()
        if fence not in (None, held.fence):
            return inside.LOST, self.left()
        if held.flag == "d" and how != "detach":
            return inside.HELD, self.left()  # a late request: nobody here renews this lock any more
        before, ends = self.left(), held.ends
        if held.flag == "h":
            ends = max(ends, held.since + ttl * MS)
            self.handed_to = ""
        at_least = max(ends, self.now + ms * MS)
        wanted = {"keep": at_least, "confirm": ends, "note": ends}
        flag = "d" if how == "detach" else "c" if held.flag == "h" else held.flag
        if how == "note":
            self._next_fence(caller)
        self._hold(held._replace(flag=flag, ends=wanted.get(how, self.now + ms * MS)))
        if self.left() < before:
            self._tell_to_look(0)
        return inside.HELD, self.left()

    def force(self, caller: Process, highest: int | None, what: str = "") -> bool:
        """Returns whether the lock was held, or a suspension planned, which is cancelled with it.

        ``highest``: the highest fence that may be released; ``what``: see calls.force().
        """
        held = self.lock
        if held and highest is not None and held.fence > highest:
            return False
        planned, self.planned = self.planned, None
        was_planned = planned is not None and planned.ends > self.now
        if what == inside.SUSPENSION and held and held.flag != "s":
            return was_planned
        self.lock = None
        if held:
            self._publish(held.channel, f"f {held.id} {self.name}")
        self._free(caller, given_back=held is not None)
        return held is not None or was_planned

    def suspend(self, caller: Process, ms: int, owner: str) -> bool:
        """Returns whether the suspension has begun; if not, somebody holds the lock."""
        fence = self._next_fence(caller)
        suspension = Held("-", "-", "s", fence, self.now, "-", owner, self.now + ms * MS)
        self.planned = None
        if self.lock and self.lock.flag != "s":
            self.waiters_end = max(self._waiters_known_until(), suspension.ends)
            self.planned = suspension
            return False
        self._hold(suspension)
        self._tell_to_look(0)
        return True

    def left(self) -> int:
        """Milliseconds left, as PTTL returns them, also when nobody holds the lock."""
        return (self.lock.ends - self.now) // MS if self.lock else -2

    def in_order(self) -> list[tuple[str, int]]:
        return sorted(self.queue.items(), key=lambda item: (item[1], item[0]))

    def _may_adopt(self, caller: Process, attempt: Attempt, held: Held) -> bool:
        """An attempt with the same token adopts the lock if nobody is using it."""
        if not self._bears(attempt, held):
            return False
        if held.flag == "d":
            return True
        if held.channel == "-":
            return False  # wherever its process is: nobody can find out whether it is gone
        return held.channel != caller.own and held.channel not in self.subscribed

    @staticmethod
    def _bears(attempt: Attempt, held: Held) -> bool:
        return attempt.token != "-" and attempt.token == (held.id if held.token == "-" else held.token)

    def _is_full(self, id: str, most: int) -> bool:
        """Whether the queue is full. Of the dead waiters, the first hundred are dropped."""
        if len(self.queue) < most or id in self.queue:
            return False
        for other, _ in self.in_order()[:100]:
            waiter = self.waiters.get(other)
            polls = waiter is not None and waiter.channel == "-"
            if not waiter or not (self.now < waiter.until if polls else waiter.channel in self.subscribed):
                self._leave(other)
        return len(self.queue) >= most

    def _grant_next(self, caller: Process, me: str = "", *, given_back: bool = False) -> bool:
        """Grant a free lock to the first live waiter. True: there is none, or it is the caller."""
        if self.handed_to == caller.channel:
            self._unheard = self._unheard or not given_back  # it let a lease end, and is not stuck, as it is calling
        elif self.handed_to and not given_back:
            self.suspects.add(self.handed_to)
        self.handed_to = ""
        for id, _ in self.in_order():
            if id == me:
                return True
            waiter = self.waiters.get(id)
            if waiter and waiter.channel == "-" and self.now < waiter.until:
                # it comes by itself; if it does not, somebody must notice
                if not me:
                    self._tell_to_look(1)
                return False
            self._leave(id)
            mine = waiter is not None and waiter.channel == caller.channel
            if waiter and waiter.channel in self.subscribed and (mine or waiter.channel not in self.suspects):
                self._hand_over(caller, id, waiter)
                return False
        self._forget_waiters()
        return True

    def _tell_to_look(self, first: int) -> None:
        """Tell the first waiter from this place on that can be told: it watches a polling head of the queue, or
        the end of another lease."""
        for id, _ in self.in_order()[first:]:
            waiter = self.waiters.get(id)
            if waiter and waiter.channel in self.subscribed:
                self._publish(waiter.channel, f"w {id} {self.name}")
                return

    def _free(self, caller: Process, *, given_back: bool = False) -> None:
        """The lock becomes free, and nobody asks for it in this step."""
        if self._begin_suspension():
            if given_back:
                self.handed_to = ""
            self._tell_to_look(0)
            return
        self._grant_next(caller, given_back=given_back)
        if not self.lock:
            self.index = None

    def _begin_suspension(self) -> bool:
        planned = self.planned
        if planned is None or planned.ends <= self.now:
            return False
        left = -(-(planned.ends - self.now) // MS)  # Redis counts in milliseconds
        self.planned = None
        self._hold(planned._replace(ends=self.now + left * MS))
        return True

    def _hand_over(self, caller: Process, id: str, waiter: Waiter) -> None:
        """Grant a short lease, until the new holder shows that it is alive."""
        lease = min(waiter.ttl, max(3000, waiter.ttl // 3))
        self.handed_to = waiter.channel
        if lease > 50_000:  # Redis must remember it for longer than the lease
            self.waiters_end = max(self.waiters_end, self.now + (lease + MINUTE) * MS)
        fence = self._grant(caller, id, waiter.channel, "h", lease, waiter.token, waiter.owner)
        self._publish(waiter.channel, f"g {id} {fence} {self.now} {lease} {self.name}")

    def _adopt(self, caller: Process, attempt: Attempt, held: Held) -> int:
        """The same hold continues elsewhere, at once, whoever waits."""
        ends, fence, since = self.now + attempt.ttl * MS, held.fence, held.since
        if held.flag != "d":  # if its holder is alive after all, that has an old fence
            ends, fence, since = max(ends, held.ends), self._next_fence(caller), self.now
        if held.flag == "h":
            self.handed_to = ""
        note = "" if "\n" in attempt.owner else "".join(held.owner.partition("\n")[1:])
        self._leave(attempt.id)
        self._hold(Held(attempt.id, caller.channel, "a", fence, since, attempt.token, attempt.owner + note, ends))
        self._publish(held.channel, f"a {held.id} {self.name}")
        return fence

    def _join(self, caller: Process, attempt: Attempt, wait: str, ticket: int | None) -> int:
        """Join the queue, which expires a minute after the last join."""
        drawn = self._next_fence(caller) if ticket is None else ticket
        ticket = self.queue.setdefault(attempt.id, drawn)  # that of before, if its answer was lost
        polls = wait.startswith("p")
        channel, until = ("-", self.now + int(wait[1:]) * MS) if polls else (caller.channel, 0)
        # a caller is alive
        if self.handed_to == caller.channel:
            self.handed_to = ""
        if caller.channel in self.suspects:
            self.suspects.remove(caller.channel)
            self._unheard = True
        known_until = self._waiters_known_until()
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
        self.fence = max(self.fence, caller.known, self.now - 1) + 1
        return self.fence

    def _leave(self, id: str) -> None:
        self.queue.pop(id, None)
        self.waiters.pop(id, None)

    def _waiters_known_until(self) -> int:
        return self.waiters_end if self.waiters or self.handed_to or self.suspects or self.planned else 0

    def _forget_waiters(self) -> None:
        self.planned = None
        self.waiters.clear()
        self.handed_to = ""
        self.suspects.clear()

    def _publish(self, channel: str, text: str) -> None:
        if channel in self.subscribed:
            self.messages.append((channel, text))
