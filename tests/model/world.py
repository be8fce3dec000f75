"""What there is in the model: Redis, processes, attempts. States are tuples; a World is one, unpacked to be changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Attempt = int  # its number
Id = int  # by which Redis knows an attempt: its number, or (without R16) the first one with its token
Number = int  # a fence or a ticket: only their order matters


class Scene(NamedTuple):
    """Who takes part, and what goes wrong."""

    homes: tuple[int, ...]  # the process of each attempt
    tokens: str  # the token of each attempt, a letter
    faults: int = 1  # how many stops, deaths, broken connections and lost requests there may be
    without: str = ""  # the rule that is left out

    def id(self, attempt: Attempt) -> Id:
        return self.tokens.index(self.tokens[attempt]) if self.without == "R16" else attempt


class Lock(NamedTuple):
    """The key ``lock:<name>``."""

    id: Id
    attempt: Attempt  # whose it is, which tells its token and its channel
    fence: Number
    flag: str  # c(onfirmed) or h(anded over)
    fresh: bool = True  # no local clock has seen this lease end yet


class Grant(NamedTuple):
    """What a wake or an answer says of a lease, on its way to its attempt."""

    fence: Number
    over: bool = False  # the local deadline that can be computed from it has passed
    adopted: bool = False  # it is the lease of another attempt with the same token


class Message(NamedTuple):
    """A wake: the lock was handed over."""

    id: Id
    grant: Grant


class Answer(NamedTuple):
    state: str  # granted, already, busy, requeued
    grant: Grant | tuple[()] = ()


class Client(NamedTuple):
    """One attempt to get the lock, and what follows."""

    # new; asks (its request is on the way); answered (and does not know it yet, as its process stands still); waits;
    # holds (believes its lease); lost (knows that it has ended); gone
    at: str = "new"
    ticket: Number = 0
    queues: bool = False  # the request was sent by a subscribed process
    older: bool = False  # the process has subscribed anew since the request was sent
    unasked: bool = False  # this look was made by the clock alone
    answer: Answer | tuple[()] = ()
    look: bool = False  # told to look
    grant: Grant | tuple[()] = ()  # told that the lock was handed over
    fence: Number = 0


class Process(NamedTuple):
    state: str = "up"  # or stopped, dead
    # on; off: not subscribed, and it knows; cut: Redis does not count it any more; mute: Redis counts it, but what it
    # sends does not arrive
    subscribed: str = "on"
    inbox: tuple[Message, ...] = ()
    waiters: tuple[Attempt, ...] = ()  # registered with the listener, oldest first
    pending: tuple[Id, ...] = ()  # releases that are sent in the background


# lock, queue (ids by ticket), mark ('!'), suspects ('?'), attempts, processes, highest fence that entered, faults left
State = tuple[
    Lock | tuple[()],
    tuple[Id, ...],
    int,
    tuple[int, ...],
    tuple[Client, ...],
    tuple[Process, ...],
    Number,
    int,
]

NOBODY = -1


class Violation(Exception):
    """A promise is broken."""


class World:
    """One state, to be changed. ``mark``, ``suspects``: processes, as R4 notes them."""

    __slots__ = ("clients", "entered", "faults", "lock", "mark", "processes", "queue", "scene", "suspects")

    def __init__(self, scene: Scene, state: State | None = None) -> None:
        self.scene = scene
        if state is None:
            clients = (Client(),) * len(scene.homes)
            state = (), (), NOBODY, (), clients, (Process(),) * (max(scene.homes) + 1), 0, scene.faults
        self.lock, self.queue, self.mark, self.suspects, clients, processes, self.entered, self.faults = state
        self.clients = list(clients)
        self.processes = list(processes)

    def without(self, rule: str) -> bool:
        return self.scene.without == rule

    def client(self, attempt: Attempt, **changes: object) -> None:
        self.clients[attempt] = self.clients[attempt]._replace(**changes)  # type: ignore[arg-type]

    def process(self, number: int, **changes: object) -> None:
        self.processes[number] = self.processes[number]._replace(**changes)  # type: ignore[arg-type]

    def home(self, attempt: Attempt) -> Process:
        return self.processes[self.scene.homes[attempt]]

    def attempts(self, id: Id) -> list[Attempt]:
        """Those that Redis knows by this id: one, unless R16 is left out."""
        return [attempt for attempt in range(len(self.clients)) if self.scene.id(attempt) == id]

    def freeze(self) -> State:
        """The state, without what makes no difference any more; numbers become ranks, as only their order counts."""
        for attempt, client in enumerate(self.clients):
            if client.at == "gone" or (client.at != "asks" and self.home(attempt).state == "dead"):
                ticket = client.ticket if self.scene.id(attempt) in self.queue else 0
                self.clients[attempt] = Client("gone", ticket)
        if self.lock and self.lock.fresh and not self._known(self.lock.fence):
            self.lock = self.lock._replace(fresh=False)
        self._rank_tickets()
        self._rank_fences()
        return (
            self.lock,
            self.queue,
            self.mark,
            self.suspects,
            tuple(self.clients),
            tuple(self.processes),
            self.entered,
            self.faults,
        )

    def grants(self) -> list[Grant]:
        """All that are on their way."""
        grants = [client.grant for client in self.clients]
        grants += [client.answer.grant for client in self.clients if client.answer]
        grants += [message.grant for process in self.processes for message in process.inbox]
        return [grant for grant in grants if grant]

    def _known(self, fence: Number) -> bool:
        """Whether anybody can tell from a clock when the lease with this fence ends."""
        return any(client.fence == fence for client in self.clients) or any(
            grant.fence == fence and not grant.over for grant in self.grants()
        )

    def _rank_tickets(self) -> None:
        tickets = sorted({client.ticket for client in self.clients} | {0})
        if tickets[-1] >= len(tickets):
            for attempt, client in enumerate(self.clients):
                if client.ticket:
                    self.client(attempt, ticket=tickets.index(client.ticket))

    def _rank_fences(self) -> None:
        known = {0, self.entered, *(client.fence for client in self.clients)}
        known.update(grant.fence for grant in self.grants())
        if self.lock:
            known.add(self.lock.fence)
        fences = sorted(known)
        if fences[-1] < len(fences):
            return
        self.entered = fences.index(self.entered)
        if self.lock:
            self.lock = self.lock._replace(fence=fences.index(self.lock.fence))
        for attempt, client in enumerate(self.clients):
            if client.fence:
                self.client(attempt, fence=fences.index(client.fence))
        self.change_grants(lambda grant: grant._replace(fence=fences.index(grant.fence)))

    def change_grants(self, change: Callable[[Grant], Grant]) -> None:
        """Wherever a grant is on its way."""
        for attempt, client in enumerate(self.clients):
            if client.grant:
                self.client(attempt, grant=change(client.grant))
            if client.answer and client.answer.grant:
                self.client(attempt, answer=client.answer._replace(grant=change(client.answer.grant)))
        for number, process in enumerate(self.processes):
            if process.inbox:
                inbox = tuple(message._replace(grant=change(message.grant)) for message in process.inbox)
                self.process(number, inbox=inbox)
