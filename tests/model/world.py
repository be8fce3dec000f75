"""The contents of the model: Redis, processes, attempts. States are tuples; a World is one, unpacked so that it can
change."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Attempt = int  # its number
Id = int  # the id of an attempt in Redis: its number, or (without R16) that of the first attempt with its token
Number = int  # a fence or a ticket: only their order matters


class Scene(NamedTuple):
    """Which attempts take part, and what goes wrong."""

    homes: tuple[int, ...]  # the process of each attempt
    tokens: str  # the token of each attempt, a letter
    faults: int = 1  # how many stops, kills, broken connections and lost requests there may be
    without: str = ""  # the rule that is left out
    # for these, see failover.py
    lost: int | None = None  # how many writes the replica may lack when it is promoted; None: there is no failover
    clock: str = ""  # of the promoted replica: "ahead" of the old master's, or "behind"
    acknowledged: bool = False  # a grant counts only once the replica has acknowledged it
    wakes: bool = False  # the old master of a cluster was paused, and wakes up
    together: bool = False  # attempts with the same token may run at the same time
    only: str = ""  # the only kind of fault that may happen
    story: str = ""  # how the scene begins: "begin 0, serve 0"; everything that can happen after that is tried

    def id(self, attempt: Attempt) -> Id:
        return self.tokens.index(self.tokens[attempt]) if self.without == "R16" else attempt


class Lock(NamedTuple):
    """The key ``lock:<name>``."""

    id: Id
    attempt: Attempt  # the holder, which determines token and channel
    fence: Number
    flag: str  # c(onfirmed) or h(anded over)
    fresh: bool = True  # this lease has not ended by any local clock yet
    node: int = 0  # the node that wrote it last, by whose clock its lease ends
    counted: bool = True  # whether its process was subscribed there then; only if ``together`` makes that matter
    restored: bool = False  # it had already ended, but the failover has lost that


class Grant(NamedTuple):
    """A grant on its way to its attempt, in a wake or an answer."""

    fence: Number
    over: bool = False  # whether the local deadline computed from it has passed
    adopted: bool = False  # it is the lease of another attempt with the same token
    node: int = 0  # the node that made it


class Message(NamedTuple):
    """A wake: the lock was handed over."""

    id: Id
    grant: Grant
    old: bool = False  # a copy that arrives through a subscription at the old master


class Answer(NamedTuple):
    state: str  # granted, already, busy, requeued
    grant: Grant | tuple[()] = ()
    node: int = 0  # the node that answers
    sure: bool = True  # the replicas have acknowledged it, or need not


class Client(NamedTuple):
    """An attempt to acquire the lock, and what follows."""

    # new; asks (its request is on the way); answered (and does not know it yet, as its process stands still); waits;
    # holds (believes its lease); lost (knows that it has ended); gone
    at: str = "new"
    ticket: Number = 0
    queues: bool = False  # the request was sent by a subscribed process
    older: bool = False  # whether the process has subscribed anew since the request was sent
    unasked: bool = False  # whether this look was a scheduled one
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
    node: int = 0  # the node that it is subscribed at
    anchor: int = 0  # the last node whose clock it knows from an answer; only if clocks differ
    old: bool = False  # whether a subscription at the old master still exists beside the new one
    known: Number = 0  # the highest fence that it has read


class Stored(NamedTuple):
    """The data of a replica."""

    lock: Lock | tuple[()]
    queue: tuple[Id, ...]
    mark: int
    suspects: tuple[int, ...]
    last: Number


class Nodes(NamedTuple):
    """The master and its replica. There is one failover at most."""

    master: int = 0  # 1 after the failover
    replica: Stored | tuple[()] = ()  # from the moment when it gets no more writes until it is promoted
    lost: int = 0  # writes since that moment
    robbed: tuple[Number, ...] = ()  # fences of leases that have ended early while somebody still believes them
    last: Number = 0  # the key ``fence``; only if time does not make fences grow
    asleep: tuple[Id, ...] = ()  # the queue of the old master, which has not noticed the failover
    unread: tuple[Attempt, ...] = ()  # attempts whose requests it has not read yet


# lock, queue (ids by ticket), mark ('!'), suspects ('?'), attempts, processes, highest fence that entered, faults left,
# master and replica
State = tuple[
    Lock | tuple[()],
    tuple[Id, ...],
    int,
    tuple[int, ...],
    tuple[Client, ...],
    tuple[Process, ...],
    Number,
    int,
    Nodes,
]

NOBODY = -1


class Violation(Exception):
    """A guarantee is violated."""


class World:
    """One state, to be changed. ``mark``, ``suspects``: processes, as R4 notes them."""

    __slots__ = (
        "clients",
        "entered",
        "faults",
        "lock",
        "mark",
        "nodes",
        "processes",
        "queue",
        "scene",
        "suspects",
    )

    def __init__(self, scene: Scene, state: State | None = None) -> None:
        self.scene = scene
        if state is None:
            clients = (Client(),) * len(scene.homes)
            state = (), (), NOBODY, (), clients, (Process(),) * (max(scene.homes) + 1), 0, scene.faults, Nodes()
        self.lock, self.queue, self.mark, self.suspects, clients, processes, self.entered, self.faults, self.nodes = (
            state
        )
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
        """The attempts that have this id in Redis: one, unless R16 is left out."""
        return [attempt for attempt in range(len(self.clients)) if self.scene.id(attempt) == id]

    def stored(self) -> Stored:
        """The data of the master."""
        return Stored(self.lock, self.queue, self.mark, self.suspects, self.nodes.last)

    def node(self, **changes: object) -> None:
        self.nodes = self.nodes._replace(**changes)  # type: ignore[arg-type]

    def lag(self, **changes: object) -> None:
        """Change the data of the lagging replica."""
        assert self.nodes.replica
        self.node(replica=self.nodes.replica._replace(**changes))  # type: ignore[arg-type]

    def freeze(self) -> State:
        """The state without what makes no difference any more; numbers become ranks, as only their order matters."""
        replica = self.nodes.replica
        queued = {*self.queue, *replica.queue} if replica else self.queue
        for attempt, client in enumerate(self.clients):
            if client.at == "gone" or (client.at != "asks" and self.home(attempt).state == "dead"):
                ticket = client.ticket if self.scene.id(attempt) in queued else 0
                self.clients[attempt] = Client("gone", ticket)
            elif client.ticket and client.at in ("holds", "lost") and self.scene.id(attempt) not in queued:
                self.client(attempt, ticket=0)
        if self.lock and self.lock.fresh and not self.knows(self.lock.fence):
            self.lock = self.lock._replace(fresh=False)
        if replica and replica.lock and replica.lock.fresh and not self.knows(replica.lock.fence):
            self.lag(lock=replica.lock._replace(fresh=False))
        for number, process in enumerate(self.processes):
            if self.scene.lost is not None and self._is_done(number):
                self.processes[number] = Process(pending=process.pending, node=self.nodes.master, known=process.known)
        if self.nodes.robbed:
            self.node(robbed=tuple(fence for fence in self.nodes.robbed if self.knows(fence)))
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
            self.nodes,
        )

    def _is_done(self, number: int) -> bool:
        """Whether no attempt of this process acts any more, and no message will reach it."""
        if self.processes[number].state != "up" or self.processes[number].inbox:
            return False
        replica = self.nodes.replica
        known = [*self.queue, self.lock and self.lock.id]
        if replica:
            known += [*replica.queue, replica.lock and replica.lock.id]
        for attempt, client in enumerate(self.clients):
            if self.scene.homes[attempt] == number and (client.at != "gone" or self.scene.id(attempt) in known):
                return False
        return True

    def grants(self) -> list[Grant]:
        """All grants on their way."""
        grants = [client.grant for client in self.clients]
        grants += [client.answer.grant for client in self.clients if client.answer]
        grants += [message.grant for process in self.processes for message in process.inbox]
        return [grant for grant in grants if grant]

    def is_busy(self, number: int) -> bool:
        """Whether an attempt acts in this process; if not, nothing that happens to it makes a difference."""
        return self.processes[number].state == "up" and any(
            self.scene.homes[attempt] == number and client.at not in ("new", "gone")
            for attempt, client in enumerate(self.clients)
        )

    def is_busy_hearing(self) -> bool:
        """Whether unread messages come first: a running process reads them long before a lease ends; a slower one was
        stopped."""
        running = [process.state == "up" for process in self.processes]
        return any(process.inbox for process in self.processes if process.state == "up") or any(
            client.grant for attempt, client in enumerate(self.clients) if running[self.scene.homes[attempt]]
        )

    def knows(self, fence: Number) -> bool:
        """Whether any process knows by its clock when the lease with this fence ends."""
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
        nodes, replica = self.nodes, self.nodes.replica
        known = {0, self.entered, nodes.last, *nodes.robbed, *(client.fence for client in self.clients)}
        known.update(grant.fence for grant in self.grants())
        known.update(process.known for process in self.processes)
        if self.lock:
            known.add(self.lock.fence)
        if replica:
            known.add(replica.last)
            known.add(replica.lock.fence if replica.lock else 0)
        fences = sorted(known)
        if fences[-1] < len(fences):
            return
        self.entered = fences.index(self.entered)
        if self.lock:
            self.lock = self.lock._replace(fence=fences.index(self.lock.fence))
        if replica:
            lock = replica.lock and replica.lock._replace(fence=fences.index(replica.lock.fence))
            self.lag(lock=lock, last=fences.index(replica.last))
        self.node(robbed=tuple(map(fences.index, nodes.robbed)), last=fences.index(nodes.last))
        for number, process in enumerate(self.processes):
            if process.known:
                self.process(number, known=fences.index(process.known))
        for attempt, client in enumerate(self.clients):
            if client.fence:
                self.client(attempt, fence=fences.index(client.fence))
        self.change_grants(lambda grant: grant._replace(fence=fences.index(grant.fence)))

    def change_grants(self, change: Callable[[Grant], Grant]) -> None:
        """Change all grants on their way."""
        for attempt, client in enumerate(self.clients):
            if client.grant:
                self.client(attempt, grant=change(client.grant))
            if client.answer and client.answer.grant:
                self.client(attempt, answer=client.answer._replace(grant=change(client.answer.grant)))
        for number, process in enumerate(self.processes):
            if process.inbox:
                inbox = tuple(message._replace(grant=change(message.grant)) for message in process.inbox)
                self.process(number, inbox=inbox)
