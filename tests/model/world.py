"""What there is in the model: Redis, processes, clients. States are tuples; a World is one, unpacked to be changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Token = int  # a client's number; each tries once, so it has one token
Number = int  # a fence or a ticket: only their order matters


class Scene(NamedTuple):
    """Who takes part, and what goes wrong."""

    modes: str  # of each client: F(airLock) or L(ock)
    homes: tuple[int, ...]  # the process of each client
    faults: int = 1  # how many stops, deaths, broken connections and lost requests there may be
    without: str = ""  # the rule that is left out


class Lock(NamedTuple):
    """The key ``lock:<name>``."""

    token: Token
    fence: Number
    flag: str  # c(onfirmed) or h(anded over)
    fresh: bool = True  # no local clock has seen this lease end yet


class Grant(NamedTuple):
    """What a wake or an answer says of a lease, on its way to its client."""

    fence: Number
    over: bool = False  # the local deadline that can be computed from it has passed


class Message(NamedTuple):
    """A wake: ``g token ...`` (granted) or ``w token`` (look)."""

    token: Token
    grant: Grant | tuple[()] = ()


class Answer(NamedTuple):
    state: str  # granted, already, busy, requeued
    grant: Grant | tuple[()] = ()


class Client(NamedTuple):
    """One attempt to get the lock, and what follows."""

    # new; asks (its request is on the way); answered (and does not know it yet, as its process stands still); waits;
    # holds (believes its lease); lost (knows that it has ended); gone
    at: str = "new"
    ticket: Number = 0
    aged: bool = False  # 100 ms old, which matters for Lock waiters only
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
    waiters: tuple[Token, ...] = ()  # registered with the listener, oldest first
    farewells: tuple[Token, ...] = ()  # releases that are sent in the background


State = tuple[
    Lock | tuple[()], tuple[Token, ...], tuple[int, ...], tuple[Client, ...], tuple[Process, ...], Number, int
]


class Violation(Exception):
    """A promise is broken."""


class World:
    """One state, to be changed. ``queue``: the tokens by their tickets; ``marks``: the field ``!``, as processes."""

    __slots__ = ("clients", "entered", "faults", "lock", "marks", "processes", "queue", "scene")

    def __init__(self, scene: Scene, state: State | None = None) -> None:
        self.scene = scene
        if state is None:
            clients = (Client(),) * len(scene.modes)
            state = (), (), (), clients, (Process(),) * (max(scene.homes) + 1), 0, scene.faults
        self.lock, self.queue, self.marks, clients, processes, self.entered, self.faults = state
        self.clients = list(clients)
        self.processes = list(processes)

    def without(self, rule: str) -> bool:
        return self.scene.without == rule

    def client(self, token: Token, **changes: object) -> None:
        self.clients[token] = self.clients[token]._replace(**changes)  # type: ignore[arg-type]

    def process(self, number: int, **changes: object) -> None:
        self.processes[number] = self.processes[number]._replace(**changes)  # type: ignore[arg-type]

    def home(self, token: Token) -> Process:
        return self.processes[self.scene.homes[token]]

    def freeze(self) -> State:
        """The state, without what makes no difference any more; numbers become ranks, as only their order counts."""
        for token, client in enumerate(self.clients):
            if client.at == "gone" or (client.at != "asks" and self.home(token).state == "dead"):
                ticket = client.ticket if token in self.queue else 0
                self.clients[token] = Client("gone", ticket, client.aged and ticket > 0)
        if self.lock and self.lock.fresh and not self._known(self.lock.fence):
            self.lock = self.lock._replace(fresh=False)
        self._rank_tickets()
        self._rank_fences()
        return (
            self.lock, self.queue, self.marks, tuple(self.clients), tuple(self.processes), self.entered, self.faults
        )  # fmt: skip

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
            for token, client in enumerate(self.clients):
                if client.ticket:
                    self.client(token, ticket=tickets.index(client.ticket))

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
        for token, client in enumerate(self.clients):
            if client.fence:
                self.client(token, fence=fences.index(client.fence))
        self.change_grants(lambda grant: grant._replace(fence=fences.index(grant.fence)))

    def change_grants(self, change: Callable[[Grant], Grant]) -> None:
        """Wherever a grant is on its way."""
        for token, client in enumerate(self.clients):
            if client.grant:
                self.client(token, grant=change(client.grant))
            if client.answer and client.answer.grant:
                self.client(token, answer=client.answer._replace(grant=change(client.answer.grant)))
        for number, process in enumerate(self.processes):
            if any(message.grant for message in process.inbox):
                inbox = tuple(
                    message._replace(grant=change(message.grant)) if message.grant else message
                    for message in process.inbox
                )
                self.process(number, inbox=inbox)
