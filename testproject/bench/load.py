"""What many held locks and many waiters cost the server.

The locks are held by ``Lock`` objects. The waiters are just entries in Redis: their requests are the package's own, but
sent in batches by one process, which receives their messages and ignores them.
"""

from __future__ import annotations

import copy
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from io import StringIO
from time import monotonic
from typing import Any

from django.core.management import call_command
from redis.connection import Connection

from django_redislock import Lock
from django_redislock.store import calls
from django_redislock.store.calls import LockRequest
from django_redislock.store.lock_store import Partition
from django_redislock.store.records import make_keys
from django_redislock.store.scripts import with_source
from django_redislock.store.stores import get_partition
from django_redislock.store.wire import Command

from .contenders import OurLock
from .figures import Figures
from .report import Row
from .serverstats import Observer
from .worker import Worker
from .workers import Bench

TTL = 3600  # seconds; long enough that nothing ends or is renewed during the run
LIMIT = 1800.0  # seconds for everything but the rest
BATCH = 100  # requests in one write
FORGOTTEN_AFTER = 60.0  # seconds after which Redis forgets a queue in which nobody looks
TURNS = 10  # hand-overs of each lock
THREADS = 40  # all of them want a connection at once
RUSH = 0.5  # seconds

KINDS = (OurLock,)  # no other lock has a queue, or a list
ROWS = (
    Row("lock_bytes", "memory per held lock, bytes", "{:.0f}"),
    Row("waiter_bytes", "memory per waiter, bytes", "{:.0f}"),
    Row("queue_us", "server CPU to queue, us", "{:.1f}"),
    Row("look_us", "to look, us", "{:.1f}"),
    Row("renew_us", "to renew, us", "{:.1f}"),
    Row("handover_us", "to release and hand over, us", "{:.1f}"),
    Row("leave_us", "to leave the queue, us", "{:.1f}"),
    Row("list_seconds", "redislocks list, s", "{:.2f}"),
    Row("busy_connections", "connections of the process, busy", "{:d}"),
    Row("quiet_connections", "connections of the process, after a rest", "{:d}"),
)

Requests = Sequence[tuple[LockRequest, Command]]


async def load(
    worker: Worker, kind: type[OurLock], urls: Sequence[str], locks: int, waiters: int, names: int, seconds: float
) -> Figures:
    """Do everything once. ``seconds``: idle time at the end, in which unneeded connections are closed."""
    observer, figures = Observer(urls), Figures()
    await worker.ready()

    def cost(name: str, requests: Requests) -> list[Any]:
        """Send the requests; note the server's CPU time for each. Redis's own time for scripts would include time in
        which it had no CPU."""
        before = observer.cpu()
        answers = list(send(requests))
        figures[name] = (observer.cpu() - before) / len(answers) * 1e6 if answers else None
        return answers

    memory = observer.memory()
    held = [Lock(f"load:{number}", ttl=TTL) for number in range(locks)]
    for lock in held:
        lock.acquire()
    figures["lock_bytes"] = (observer.memory() - memory) / locks

    queues = [[request(lock.name) for _ in range(number, waiters, names)] for number, lock in enumerate(held[:names])]
    everyone = [one for queue in queues for one in queue]
    ears = listen(one.partition for one in everyone)
    memory, began = observer.memory(), monotonic()
    answers = cost("queue_us", [(one, calls.acquire_command(one, calls.QUEUED)) for one in everyone])
    figures["waiter_bytes"] = (observer.memory() - memory) / len(everyone)
    if monotonic() - began > FORGOTTEN_AFTER:
        raise RuntimeError("This machine is too slow now: the first queues were forgotten before the last had begun.")
    tickets = {one.id: answer[2] for one, answer in answers}
    cost("look_us", [(one, calls.acquire_command(one, calls.QUEUED, tickets[one.id])) for one in everyone])
    kept = [request(lock.name)._replace(id=lock.token or "") for lock in held]
    cost("renew_us", [(one, calls.renew_command(one, "keep", TTL)) for one in kept])
    for lock in held[:names]:
        lock.release()  # to the first that waits
    turns = min(TURNS, len(queues[-1]) - 1)  # the last ones of each queue keep waiting
    leaving = [queue[turn] for turn in range(turns) for queue in queues]
    cost("handover_us", [(one, calls.release_command(one, may_arrive=False)) for one in leaving])
    leaving = [one for queue in queues for one in queue[turns + 1 :]]
    how = calls.WITHDRAWAL
    cost("leave_us", [(one, calls.release_command(one, may_arrive=False, how=how)) for one in leaving])
    for ear in ears:
        ear.disconnect()

    for _ in range(2):  # the first time, it has to be imported
        output, began = StringIO(), monotonic()
        call_command("redislocks", "list", stdout=output)
    figures["list_seconds"], figures["listed"] = monotonic() - began, output.getvalue().count("\nload:")
    await worker.block(worker.start(THREADS, rush).over.wait)
    figures["busy_connections"] = observer.connections()
    await worker.sleep(seconds)
    figures["quiet_connections"] = observer.connections()
    return figures


async def rush(number: int) -> None:
    """Use a lock of one's own again and again."""
    end = monotonic() + RUSH
    while monotonic() < end:
        with Lock(f"rush:{number}"):
            pass


def request(name: str) -> LockRequest:
    partition = with_other_channel(get_partition(name=name))
    id = secrets.token_urlsafe(16)
    return LockRequest(partition, make_keys(partition.prefix, name), name, id, TTL, owner="host:4711 MainThread")


@cache
def with_other_channel(partition: Partition) -> Partition:
    """The same for waiters: on its own channel, the process would at once release locks granted to unknown waiters."""
    other = copy.copy(partition)
    other.channel = partition.channel[:-16] + "load-of-waiters-"
    return other


def listen(partitions: Iterable[Partition]) -> list[Connection]:
    """Subscribe, or the scripts would consider the waiters dead."""
    ears = []
    for partition in dict.fromkeys(partitions):
        ear = partition.node.config.connection(LIMIT)
        ear.connect()
        ear.send_command("SSUBSCRIBE" if partition.store.clustered else "SUBSCRIBE", partition.channel)
        ear.read_response()
        ears.append(ear)
    return ears


def send(requests: Requests) -> Iterator[tuple[LockRequest, Any]]:
    """Send requests; yield each with its answer."""
    parts: dict[Partition, list[tuple[LockRequest, Command]]] = defaultdict(list)
    for one, command in requests:
        parts[one.partition].append((one, command))
    for partition, part in parts.items():
        part[0] = part[0][0], with_source(part[0][1])  # which loads the script
        for start in range(0, len(part), BATCH):
            batch = part[start : start + BATCH]
            answers, _ = partition.exchange([command for _, command in batch])
            for (one, _), answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception):
                    raise answer
                yield one, answer


def measure(
    bench: Bench, *, locks: int = 10_000, waiters: int = 100_000, names: int = 1000, seconds: float = 45.0
) -> dict[str, Figures]:
    """What many locks and waiters cost the server."""
    args = (bench.urls, locks, waiters, names, seconds)
    return {key: turn.results[0] for key, [turn] in bench.fresh(1, 1, load, *args, seconds=LIMIT + seconds).items()}
