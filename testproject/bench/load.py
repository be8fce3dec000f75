"""What many held locks and many waiters cost the server.

The locks are held by ``Lock`` objects. The waiters are just entries in Redis: their requests are the package's own, but
sent in batches by one process, which receives their messages and ignores them.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from statistics import median
from time import monotonic, perf_counter, process_time
from typing import Any, ClassVar

from django.core.management import call_command
from redis.connection import Connection
from redis.exceptions import NoScriptError

from django_redislock import Lock
from django_redislock.store.calls import HOLDER, QUEUED, WITHDRAWAL, LockRequest, release_command, renew_command
from django_redislock.store.lock_store import Partition
from django_redislock.store.records import make_keys
from django_redislock.store.scripts import Script, with_source
from django_redislock.store.stores import get_partition
from django_redislock.store.wire import Command

from .contenders import Entrant, OurLock
from .figures import Figures
from .report import Row
from .runners import Routine
from .serverstats import Observer
from .worker import Job, Worker
from .workers import BenchError, Workers

TTL = 3600  # seconds; long enough that nothing ends or is renewed during the run
LIMIT = 600.0  # seconds for each step
BATCH = 100  # requests in one write
FORGOTTEN_AFTER = 60.0  # seconds after which Redis forgets a queue in which nobody looks
TURNS = 10  # hand-overs of each lock
THREADS = 40  # all of them want a connection at once
RUSH = 0.5  # seconds
LISTS = 3

ROWS = (
    Row("lock_bytes", "memory per held lock, bytes", "{:.0f}"),
    Row("waiter_bytes", "memory per waiter, bytes", "{:.0f}"),
    Row("queue_us", "server CPU to queue, us", "{:.1f}"),
    Row("look_us", "to look, us", "{:.1f}"),
    Row("renew_us", "to renew, us", "{:.1f}"),
    Row("handover_us", "to release and hand over, us", "{:.1f}"),
    Row("leave_us", "to leave the queue, us", "{:.1f}"),
    Row("list_seconds", "redislocks list, s", "{:.2f}"),
    Row("list_cpu", "client CPU for that, s", "{:.2f}"),
    Row("busy_connections", "connections of the process, busy", "{:d}"),
    Row("quiet_connections", "connections of the process, after a rest", "{:d}"),
)


class Ours(Entrant):
    """The only contender: no other lock has a queue, or a list."""

    key: ClassVar[str] = OurLock.key
    on_cluster = True


KINDS = (Ours,)


class Waiting(LockRequest):
    """A waiter, with a channel of its own: on its own channel, the process would at once release locks granted to
    unknown waiters."""

    @property
    def channel(self) -> str:
        return self.partition.channel[:-16] + "load-of-waiters-"


class Scene:
    """The held locks and the waiters: ``queues`` has those of each name, in order."""

    def __init__(self, locks: int, names: int) -> None:
        self.locks = [Lock(f"load:{number}", ttl=TTL) for number in range(locks)]
        self.queues: list[list[Waiting]] = [[] for _ in range(min(names, locks))]
        self.tickets: dict[str, str] = {}  # by id
        self._acquire = Script("acquire")
        self._ears: list[Connection] = []

    def waiter(self, name: str) -> Waiting:
        partition = get_partition(name=name)
        id = secrets.token_urlsafe(16)
        return Waiting(partition, make_keys(partition.prefix, name), name, id, TTL, owner="host:4711 MainThread")

    def listen(self) -> None:
        """Subscribe, or the scripts would consider the waiters dead."""
        for channel, partition in {
            waiter.channel: waiter.partition for queue in self.queues for waiter in queue
        }.items():
            ear = partition.node.origin.connection(LIMIT)
            ear.connect()
            ear.send_command("SSUBSCRIBE" if partition.store.clustered else "SUBSCRIBE", channel)
            ear.read_response()
            self._ears.append(ear)

    def hear_no_more(self) -> None:
        for ear in self._ears:
            ear.disconnect()

    def ask(self, request: LockRequest) -> Command:
        """The request with which a waiter queues, and later looks."""
        values = {
            **request._asdict(),
            "channel": request.channel,
            "known": "0",
            "ttl": f"{TTL * 1000}",
            "wait": QUEUED,
            "ticket": self.tickets.get(request.id, ""),
            "token": "-",
            "most": "",
        }
        keys = (*request.keys.all, f"{request.partition.prefix}gone:{request.id}")
        return self._acquire.command(keys, [values[name] for name in self._acquire.args])


def send(commands: Sequence[tuple[LockRequest, Command]]) -> Iterator[tuple[LockRequest, Any]]:
    """Send requests; yield each with its answer."""
    parts: dict[Partition, list[tuple[LockRequest, Command]]] = defaultdict(list)
    for request, command in commands:
        parts[request.partition].append((request, command))
    for partition, part in parts.items():
        for start in range(0, len(part), BATCH):
            batch = part[start : start + BATCH]
            answers, _ = partition.exchange([command for _, command in batch])
            for (request, command), answer in zip(batch, answers, strict=True):
                if isinstance(answer, NoScriptError):
                    answer = partition.execute(with_source(command))
                if isinstance(answer, Exception):
                    raise answer
                yield request, answer


# -- the steps, in their order ----------------------------------------------------------------------------------------


def hold(worker: Worker, locks: int, names: int) -> Routine[None]:
    scene = Scene(locks, names)
    worker.kept.append(scene)
    yield worker.ready()
    for lock in scene.locks:
        lock.acquire()


def queue(worker: Worker, waiters: int) -> Routine[None]:
    scene = _scene(worker)
    for number in range(waiters):
        row = scene.queues[number % len(scene.queues)]
        row.append(scene.waiter(f"load:{number % len(scene.queues)}"))
    scene.listen()
    yield worker.ready()
    for request, answer in send([(request, scene.ask(request)) for row in scene.queues for request in row]):
        scene.tickets[request.id] = str(answer[2])


def look(worker: Worker) -> Routine[int]:
    scene = _scene(worker)
    commands = [(request, scene.ask(request)) for row in scene.queues for request in row]
    yield worker.ready()
    return sum(1 for _ in send(commands))


def renew(worker: Worker) -> Routine[int]:
    scene = _scene(worker)
    held = [scene.waiter(lock.name)._replace(id=lock.token or "") for lock in scene.locks]
    commands: list[tuple[LockRequest, Command]] = [(request, renew_command(request, "keep", TTL)) for request in held]
    yield worker.ready()
    return sum(answer[0] for _, answer in send(commands))


def hand_over(worker: Worker) -> Routine[int]:
    """Each holder in turn releases the lock, except for the last ones of each queue, which keep waiting."""
    scene = _scene(worker)
    for lock, _ in zip(scene.locks, scene.queues, strict=False):
        lock.release()  # to the first of them
    yield worker.ready()
    turns = min(TURNS, len(scene.queues[-1]) - 1)
    done = 0
    for _ in range(turns):
        leaving = [row.pop(0) for row in scene.queues]
        commands = [(request, release_command(request, unknown=False, how=HOLDER)) for request in leaving]
        done += sum(answer[0] for _, answer in send(commands))
    return done


def leave(worker: Worker) -> Routine[int]:
    """All waiters leave except the first of each queue, which has the lock."""
    scene = _scene(worker)
    leaving = [request for row in scene.queues for request in row[1:]]
    commands = [(request, release_command(request, unknown=False, how=WITHDRAWAL)) for request in leaving]
    yield worker.ready()
    return sum(1 for _ in send(commands))


def listing(worker: Worker) -> Routine[tuple[float, float, int]]:
    """List all locks; return seconds, CPU seconds, and how many were listed."""
    scene = _scene(worker)
    scene.hear_no_more()
    yield worker.ready()
    wall, cpu = [], []
    for _ in range(LISTS):
        output, began, worked = StringIO(), perf_counter(), process_time()
        call_command("redislocks", "list", stdout=output)
        wall.append(perf_counter() - began)
        cpu.append(process_time() - worked)
    return median(wall), median(cpu), output.getvalue().count("\nload:")


def rush(worker: Worker) -> Routine[None]:
    """Many threads at once, each using a lock of its own."""

    def acquire_and_release(number: int) -> Routine[None]:
        end = monotonic() + RUSH
        while monotonic() < end:
            with Lock(f"rush:{number}"):
                pass
        yield (int,)

    yield worker.ready()
    yield worker.runner.run_blocking, worker.runner.start(THREADS, acquire_and_release).over.wait, LIMIT


def _scene(worker: Worker) -> Scene:
    [scene] = worker.kept
    assert isinstance(scene, Scene)
    return scene


def measure(
    start_workers: Callable[[int], Workers],
    observer: Observer,
    kinds: Mapping[str, type[Ours]],
    *,
    locks: int,
    waiters: int,
    names: int,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Figures]:
    """Run all steps once. ``seconds``: idle time, in which unneeded connections are closed."""
    figures: Figures = {}
    with start_workers(1) as workers:

        def step(job: Job, *args: Any) -> Any:
            tell(job.__name__)
            [answer] = workers.call(job, *args, seconds=LIMIT, when_ready=observer.reset)
            return answer

        def server_us(calls: int) -> float | None:
            """The server's CPU time. Redis's own time for scripts would include time in which it had no CPU."""
            return observer.read().cpu / calls * 1e6 if calls else None

        memory = observer.memory()
        step(hold, locks, names)
        figures["lock_bytes"] = (observer.memory() - memory) / locks
        memory = observer.memory()
        began = monotonic()
        step(queue, waiters)
        figures["queue_us"] = server_us(waiters)
        figures["waiter_bytes"] = (observer.memory() - memory) / waiters
        if monotonic() - began > FORGOTTEN_AFTER:
            raise BenchError("This machine is too slow now: the first queues were forgotten before the last had begun.")
        for job in (look, renew, hand_over, leave):
            figures[f"{job.__name__.replace('_', '')}_us"] = server_us(step(job))
        figures["list_seconds"], figures["list_cpu"], figures["listed"] = step(listing)
        step(rush)
        figures["busy_connections"] = observer.connections()
        tell("rest")
        time.sleep(seconds)
        figures["quiet_connections"] = observer.connections()
    return dict.fromkeys(kinds, figures)
