"""The contents of the model: Redis, processes, attempts. States are tuples; a World is one that can change."""

from collections.abc import Callable
from typing import Any, NamedTuple

Attempt = int  # its number
Id = int  # the id of an attempt in Redis: its number, or (without R16) that of the first attempt with its token
Number = int  # a fence or a ticket: only their order matters

NOBODY = -1


class Scene(NamedTuple):
    """Which attempts take part, and what goes wrong."""

    homes: tuple[int, ...]  # the process of each attempt
    tokens: str  # the token of each attempt, a letter
    faults: int = 1  # how many stops, kills, broken connections and lost requests there may be
    without: str = ""  # the rule that is left out
    limit: int = 1  # how many may hold it at once; more than one: it is a semaphore, without failovers
    limits: str = ""  # of each attempt, a digit, where they differ: ``limit`` is the largest
    lost: int | None = None  # how many writes the replica may lack when it is promoted; None: there is no failover
    clock: str = ""  # of the promoted replica: "ahead" of the old master's, or "behind"
    acknowledged: bool = False  # a grant counts only once the replica has acknowledged it
    wakes: bool = False  # the old master of a cluster was paused, and wakes up
    together: bool = False  # attempts with the same token may run at the same time
    only: str = ""  # the only kind of fault that may happen
    story: str = ""  # how the scene begins: "begin 0, serve 0"; everything that can happen after that is tried

    def limit_of(self, attempt: Attempt) -> int:
        return int(self.limits[attempt]) if self.limits else self.limit

    def id(self, attempt: Attempt) -> Id:
        return self.tokens.index(self.tokens[attempt]) if self.without == "R16" else attempt


HELD = "begin 0, serve 0, begin 1, serve 1, begin 2, serve 2"  # one attempt holds the lock, and two wait
MOVED = f"{HELD}, fail_over 0, moved 1, subscribe 1"  # then process 1 finds the new master
CUT = f"{HELD}, cut 1"  # then Redis takes process 1 for dead
STORIES = {
    "held": HELD,
    "left": f"{HELD}, leave 0",
    "moved": MOVED,
    "woken": f"{MOVED}, leave 0",
    "cut": CUT,
    # process 0 has not read the message about a handoff that is lost
    "told": f"{CUT}, fall_behind 0, leave 0, stop 0, fail_over 0",
    # an answer has arrived, and is not read yet
    "late": "begin 0, begin 1, serve 1, begin 2, stop 1, serve 2",
}


def read_scene(words: list[str]) -> Scene:
    homes, tokens, faults, *rest = words
    given: dict[str, Any] = dict((word if "=" in word else f"without={word}").split("=") for word in rest)
    story = given.pop("story", "")
    limits = given.pop("limits", "")
    given = {field: int(value) if value.isdigit() else value for field, value in given.items()}
    if limits:
        given |= {"limits": limits, "limit": max(map(int, limits))}
    return Scene(tuple(map(int, homes)), tokens, int(faults), story=STORIES.get(story, story), **given)


class Lock(NamedTuple):
    """The key ``lock:<name>``."""

    id: Id
    attempt: Attempt  # the holder, which determines token and channel
    fence: Number
    flag: str  # c(onfirmed), h(anded over) or a(dopted)
    fresh: bool = True  # this lease has not ended by any local clock yet
    node: int = 0  # the node that wrote it last, by whose clock its lease ends
    counted: bool = True  # whether its process was subscribed there then; only if ``together`` makes that matter
    restored: bool = False  # it had already ended, but the failover has lost that
    marked: bool = False  # of a semaphore: its process has not asked since it was handed over, field '!<id>'


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
    known: Number = 0  # the highest fence that it has read; only if time does not make fences grow


class Stored(NamedTuple):
    lock: Lock | tuple[()]
    queue: tuple[Id, ...]  # by ticket
    mark: int  # field '!': the process of a handoff that is not confirmed
    suspects: tuple[int, ...]  # field '?'
    last: Number = 0  # the key ``fence``; only if time does not make fences grow
    others: tuple[Lock, ...] = ()  # of a semaphore, the permits behind the first one, which is ``lock``
    limit: int = 0  # field ':', if it is there; only if limits differ
    asked: int = 0  # what it should be: the limit that an attempt has asked for last


class Nodes(NamedTuple):
    """The master and its replica. There is one failover at most."""

    master: int = 0  # 1 after the failover
    replica: Stored | tuple[()] = ()  # from the moment when it gets no more writes until it is promoted
    lost: int = 0  # writes since that moment
    robbed: tuple[Number, ...] = ()  # fences of leases that have ended early while somebody still believes them
    asleep: tuple[Id, ...] = ()  # the queue of the old master, which has not noticed the failover
    unread: tuple[Attempt, ...] = ()  # attempts whose requests it has not read yet


# the data of the master; attempts, processes, the highest fence that entered, faults left, master and replica
State = tuple[Stored, tuple[Client, ...], tuple[Process, ...], Number, int, Nodes]


class Violation(Exception):
    """A guarantee is violated."""


class World:
    def __init__(self, scene: Scene, state: State | None = None) -> None:
        self.scene = scene
        if state is None:
            processes = (Process(),) * (max(scene.homes) + 1)
            state = Stored((), (), NOBODY, ()), (Client(),) * len(scene.homes), processes, 0, scene.faults, Nodes()
        stored, clients, processes, self.entered, self.faults, self.nodes = state
        self.read(stored)
        self.clients, self.processes = list(clients), list(processes)

    def read(self, stored: Stored) -> None:
        """These are the data of the master now."""
        self.lock, self.queue, self.mark, self.suspects, self.last, self.others, self.limit, self.asked = stored

    def without(self, rule: str) -> bool:
        return self.scene.without == rule

    def client(self, attempt: Attempt, **changes: object) -> bool:  # True, as actions
        self.clients[attempt] = self.clients[attempt]._replace(**changes)  # type: ignore[arg-type]
        return True

    def process(self, number: int, **changes: object) -> bool:
        self.processes[number] = self.processes[number]._replace(**changes)  # type: ignore[arg-type]
        return True

    def node(self, **changes: object) -> bool:
        self.nodes = self.nodes._replace(**changes)  # type: ignore[arg-type]
        return True

    def home(self, attempt: Attempt) -> Process:
        return self.processes[self.scene.homes[attempt]]

    def attempts(self, id: Id) -> list[Attempt]:
        """The attempts that have this id in Redis: one, unless R16 is left out."""
        return [attempt for attempt in range(len(self.clients)) if self.scene.id(attempt) == id]

    def stored(self) -> Stored:
        return Stored(self.lock, self.queue, self.mark, self.suspects, self.last, self.others, self.limit, self.asked)

    def permits(self) -> tuple[Lock, ...]:
        """What is held, by fence; of a lock, at most one."""
        return (self.lock, *self.others) if self.lock else ()

    def free(self, limit: int = 0) -> int:
        """How many are to be had, by this limit or the one that is stored; 1 where nobody has said it."""
        limit = limit or (self.limit or 1 if self.scene.limits else self.scene.limit)
        return max(0, limit - len(self.permits()))

    def held_by(self, id: Id) -> Lock | tuple[()]:
        return next((lock for lock in self.permits() if lock.id == id), ())

    def put(self, lock: Lock) -> None:
        """Write what this id holds."""
        granted = not self.held_by(lock.id)
        self.take(lock.id)
        self._keep(sorted((*self.permits(), lock), key=lambda one: one.fence))
        if granted and len(self.permits()) > (self.asked or self.scene.limit):
            raise Violation(f"too many: {lock.attempt} is granted what nobody has left")

    def take(self, id: Id) -> None:
        self._keep([lock for lock in self.permits() if lock.id != id])

    def _keep(self, permits: list[Lock]) -> None:
        self.lock, self.others = (permits[0], tuple(permits[1:])) if permits else ((), ())

    def freeze(self) -> State:
        """The state without what makes no difference any more; numbers become ranks, as only their order matters."""
        queued = {*self.queue, *(self.nodes.replica.queue if self.nodes.replica else ())}
        for attempt, client in enumerate(self.clients):
            ticket = client.ticket if self.scene.id(attempt) in queued else 0
            if client.at == "gone" or (client.at != "asks" and self.home(attempt).state == "dead"):
                self.clients[attempt] = Client("gone", ticket)
            elif client.at in ("holds", "lost") and client.ticket != ticket:
                self.client(attempt, ticket=ticket)
        self.change_locks(lambda lock: lock if self.knows(lock.fence) else lock._replace(fresh=False))
        if self.nodes.robbed:
            self.node(robbed=tuple(filter(self.knows, self.nodes.robbed)))
        tickets = sorted({client.ticket for client in self.clients} | {0})
        known = [self.last, *(process.known for process in self.processes)]
        known += [self.nodes.replica.last] if self.nodes.replica else []
        fences = sorted({0, self.entered, *self.nodes.robbed, *self.fences(), *known})
        if tickets[-1] >= len(tickets) or fences[-1] >= len(fences):
            self.entered, self.last = fences.index(self.entered), fences.index(self.last)
            self.node(robbed=tuple(map(fences.index, self.nodes.robbed)))
            self.change_locks(lambda lock: lock._replace(fence=fences.index(lock.fence)))
            self.change_grants(lambda grant: grant._replace(fence=fences.index(grant.fence)))
            if self.nodes.replica:
                self.node(replica=self.nodes.replica._replace(last=fences.index(self.nodes.replica.last)))
            for number, process in enumerate(self.processes):
                if process.known:
                    self.process(number, known=fences.index(process.known))
            for attempt, client in enumerate(self.clients):
                if client.ticket or client.fence:
                    self.client(attempt, ticket=tickets.index(client.ticket), fence=fences.index(client.fence))
        return self.state()

    def state(self) -> State:
        return self.stored(), tuple(self.clients), tuple(self.processes), self.entered, self.faults, self.nodes

    def grants(self) -> list[Grant]:
        grants = [client.grant for client in self.clients]
        grants += [client.answer.grant for client in self.clients if client.answer]
        grants += [message.grant for process in self.processes for message in process.inbox]
        return [grant for grant in grants if grant]

    def fences(self) -> list[Number]:
        """Those of all locks, holders and grants."""
        locks = [*self.permits(), self.nodes.replica and self.nodes.replica.lock]
        return [one.fence for one in (*self.grants(), *locks) if one] + [client.fence for client in self.clients]

    def change_locks(self, change: Callable[[Lock], Lock]) -> None:
        self._keep([change(lock) for lock in self.permits()])
        replica = self.nodes.replica
        if replica and replica.lock:
            self.node(replica=replica._replace(lock=change(replica.lock)))

    def change_grants(self, change: Callable[[Grant], Grant]) -> None:
        for attempt, client in enumerate(self.clients):
            if client.answer and client.answer.grant:
                self.client(attempt, answer=client.answer._replace(grant=change(client.answer.grant)))
            if client.grant:
                self.client(attempt, grant=change(client.grant))
        for number, process in enumerate(self.processes):
            if process.inbox:
                inbox = tuple(message._replace(grant=change(message.grant)) for message in process.inbox)
                self.process(number, inbox=inbox)

    def is_busy(self, number: int) -> bool:
        """Whether an attempt acts in this process; if not, nothing that happens to it makes a difference."""
        acting = (self.scene.homes[one] for one, client in enumerate(self.clients) if client.at not in ("new", "gone"))
        return self.processes[number].state == "up" and number in acting

    def is_busy_hearing(self) -> bool:
        """Whether unread messages come first: a running process reads them long before a lease ends."""
        told = (self.home(attempt) for attempt, client in enumerate(self.clients) if client.grant)
        return any(process.state == "up" for process in (*told, *filter(lambda one: one.inbox, self.processes)))

    def knows(self, fence: Number) -> bool:
        """Whether any process knows by its clock when the lease with this fence ends."""
        return any(client.fence == fence for client in self.clients) or any(
            grant.fence == fence and not grant.over for grant in self.grants()
        )
