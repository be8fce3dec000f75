"""What the scripts promise, in Python: one lock with its queue, and a clock that only goes when it is told to.

Written from docs/protocol.rst, to be compared with what the scripts do on a real server (test_machine.py).
"""

from __future__ import annotations

from typing import NamedTuple

from django_redislock.scripts import ADOPTED, ALREADY, BUSY, GONE, GRANTED, HELD, LOST, REQUEUED

MS = 1000  # microseconds
FORGOTTEN_AFTER = 60_000 * MS  # queues, and tokens that are gone
IMPATIENT_FOR = 100 * MS  # how long the head of the queue may be overtaken, if it is a Lock


class Held(NamedTuple):
    token: str
    channel: str
    flag: str  # c(onfirmed) or h(anded over)
    fence: int
    since: int
    owner: str
    ends: int

    def text(self) -> str:
        return f"{self.token} {self.channel} {self.flag} {self.fence} {self.since} {self.owner}"


class Entry(NamedTuple):
    mode: str
    channel: str  # '-': polled
    ttl: int
    till: int  # it counts as alive, when polled
    owner: str

    def text(self) -> str:
        return f"{self.mode} {self.channel} {self.ttl} {self.till} {self.owner}"


class Caller(NamedTuple):
    """Who calls a script: its channel, and the highest fence that it knows."""

    channel: str
    known: int


class Reference:
    def __init__(self, name: str, now: int) -> None:
        self.name = name
        self.now = now  # microseconds
        self.lock: Held | None = None
        self.queue: dict[str, int] = {}
        self.entries: dict[str, Entry] = {}
        self.handed_to = ""  # the channel of the last handoff; '': none, '-': it is confirmed
        self.suspects: list[str] = []
        self.queue_ends = 0
        self.index: int | None = None
        self.fence = 0
        self.gone: dict[str, int] = {}
        self.subscribed: set[str] = set()
        self.messages: list[tuple[str, str]] = []  # channel and text, of the last step

    # -- time -------------------------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        self.now += ms * MS
        if self.lock and self.now >= self.lock.ends:
            self.lock = None
        if self.now >= self.queue_ends:
            self.queue.clear()
            self._forget_waiters()
        self.gone = {token: ends for token, ends in self.gone.items() if ends > self.now}

    def soon_over(self, ms: int, margin: int) -> int:
        """How many milliseconds more than ``ms`` have to go by, so that no key has less than ``margin`` left."""
        ends = [self.queue_ends, *self.gone.values(), *([self.lock.ends] if self.lock else [])]
        more = 0
        for left in sorted((end - self.now) // MS for end in ends):
            if ms + more < left < ms + more + margin:
                more = left - ms + 1
        return more

    # -- the scripts --------------------------------------------------------------------------------------------------

    def acquire(
        self, caller: Caller, token: str, mode: str, wait: str, ttl: int, ticket: int | None, owner: str
    ) -> tuple[int, int]:
        """Answers state, and fence or ticket."""
        if self.lock and self.lock.token == token:
            if self.lock.channel != caller.channel:
                self._publish(self.lock.channel, f"x {token} {self.name}")
                if self.lock.flag == "h":
                    self._confirm(forget=True)
                ends = max(self.lock.ends, self.now + ttl * MS)
                self.lock = self.lock._replace(channel=caller.channel, flag="c", owner=owner)
                self._lease(ends)
            return ALREADY, self.lock.fence
        if not self.lock:
            if token in self.gone:
                return GONE, 0
            if not self.queue or self._pass_on(caller, token, mode):
                self._drop(token)
                return GRANTED, self._grant(caller, token, caller.channel, "c", ttl, owner)
        if wait == "0" or token in self.gone:
            return BUSY, ticket or 0
        requeued = ticket is not None and token not in self.queue
        if ticket is None:
            ticket = self._next_fence(caller)
        polled = wait.startswith("p")
        self.queue[token] = ticket
        self.entries[token] = Entry(
            mode, "-" if polled else caller.channel, ttl, self.now + int(wait[1:]) * MS if polled else 0, owner
        )
        self.queue_ends = self.now + FORGOTTEN_AFTER
        if self.handed_to == caller.channel:
            self.handed_to = "-"
        self.suspects = [channel for channel in self.suspects if channel != caller.channel]
        return (REQUEUED if requeued else BUSY), ticket

    def release(self, caller: Caller, token: str, *, unknown: bool) -> bool:
        """Answers whether the token had the lock."""
        held = self.lock
        mine = held is not None and held.token == token
        alive = ""
        trace = False
        if held is not None and mine:
            trace = held.flag == "h" or held.channel != caller.channel
            if held.channel != caller.channel:
                alive = held.channel
                self._publish(held.channel, f"x {token} {self.name}")
            self.lock = None
        if unknown:
            self.gone[token] = self.now + FORGOTTEN_AFTER
        if not mine:
            self._drop(token)
        if self.lock:
            return False
        if not self.queue:
            self.index = None
            if trace:
                self._forget_waiters()
        else:
            self._pass_on(caller, alive=alive)
        return mine

    def renew(self, caller: Caller, token: str, ttl: int, how: str, ms: int) -> tuple[int, int]:
        """Answers state and milliseconds left, of whoever holds the lock."""
        if not self.lock:
            self._free()
            self._pass_on(caller)
            return LOST, 0
        if self.lock.token != token:
            return LOST, self.left()
        if self.lock.channel != caller.channel:
            return ADOPTED, 0
        ends = self.lock.ends
        if self.lock.flag == "h":
            ends = max(ends, self.lock.since + ttl * MS)
            self._confirm()
            self.lock = self.lock._replace(flag="c")
        wanted = {"keep": max(ends, self.now + ms * MS), "add": ends + ms * MS, "set": self.now + ms * MS}
        self._lease(wanted.get(how, ends))
        return HELD, self.left()

    def force(self, caller: Caller, fence: int | None) -> str | None:
        """Answers the value that the lock had."""
        held = self.lock
        if held and fence is not None and held.fence > fence:
            return None
        self._free()
        if held:
            self._publish(held.channel, f"f {held.token} {self.name}")
        self._pass_on(caller, alive=held.channel if held else "")
        return held.text() if held else None

    # -- what they share ----------------------------------------------------------------------------------------------

    def left(self) -> int:
        return (self.lock.ends - self.now) // MS if self.lock else -2

    def marks(self) -> list[str]:
        """The field ``!`` of the waiters: where the last handoff went, then the suspects."""
        return [self.handed_to or "-", *self.suspects]

    def in_order(self) -> list[tuple[str, int]]:
        return sorted(self.queue.items(), key=lambda item: (item[1], item[0]))

    def _pass_on(self, caller: Caller, me: str = "", my_mode: str = "", alive: str = "") -> bool:
        """A free lock goes to the first in the queue who lives. True: to whoever asks."""
        suspects = [channel for channel in [self.handed_to, *self.suspects] if channel not in ("", "-")]
        suspects = [channel for channel in suspects if channel not in (caller.channel, alive)]
        for token, ticket in self.in_order():
            if token == me:
                return True
            mode, channel, ttl, till, owner = self.entries[token]
            patient = mode == "F" or not 0 <= self.now - ticket < IMPATIENT_FOR
            if my_mode == "L" and not patient:
                return True
            if channel == "-":
                if self.now < till:
                    self._leave_free(suspects)
                    if not me:
                        self._set_watch()
                    return False
            elif channel in suspects:
                pass
            elif channel in self.subscribed:
                if patient:
                    self._drop(token)
                    self.handed_to, self.suspects = channel, suspects
                    lease = min(ttl, max(3000, ttl // 3))
                    fence = self._grant(caller, token, channel, "h", lease, owner)
                    self._publish(channel, f"g {token} {fence} {self.now} {lease} {self.name}")
                else:
                    self._leave_free(suspects)
                    self._publish(channel, f"w {token} {self.name}")
                return False
            elif not patient:
                self._leave_free(suspects)  # it was published before it was found dead
            self._drop(token)
        self._forget_waiters()
        self._free()
        return True

    def _leave_free(self, suspects: list[str]) -> None:
        self._free()
        self.handed_to, self.suspects = "-", suspects

    def _set_watch(self) -> None:
        """Behind a polled head: the first who can be told."""
        for token, _ in self.in_order()[1:]:
            channel = self.entries[token].channel
            if channel != "-":
                self._publish(channel, f"w {token} {self.name}")
                if channel in self.subscribed:
                    return

    def _next_fence(self, caller: Caller) -> int:
        self.fence = max(self.fence, caller.known, self.now - 1) + 1
        return self.fence

    def _grant(self, caller: Caller, token: str, channel: str, flag: str, lease: int, owner: str) -> int:
        fence = self._next_fence(caller)
        self.lock = Held(token, channel, flag, fence, self.now, owner, 0)
        self._lease(self.now + lease * MS)
        return fence

    def _lease(self, ends: int) -> None:
        assert self.lock
        self.lock = self.lock._replace(ends=ends)
        self.index = ends

    def _free(self) -> None:
        self.lock = None
        self.index = None

    def _confirm(self, *, forget: bool = False) -> None:
        if forget:
            self.handed_to, self.suspects = "", []
        elif self.handed_to:
            self.handed_to = "-"

    def _drop(self, token: str) -> None:
        self.queue.pop(token, None)
        self.entries.pop(token, None)

    def _forget_waiters(self) -> None:
        self.entries.clear()
        self.handed_to, self.suspects = "", []

    def _publish(self, channel: str, text: str) -> None:
        if channel in self.subscribed:
            self.messages.append((channel, text))
