"""What only the inside of the package shows. No other file of the tests may import internals.

Tests of promises use what users import, and see the rest through Redis and the clock. Where that is not enough, they
say here what they need, by a name that outlives a rewriting of the package: then this file is rewritten, and no test.
So nothing here returns an object of the package for a test to reach into.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from django_redislock import Lock
from django_redislock.base.names import pool_name as pool_name
from django_redislock.base.names import slot_text
from django_redislock.base.steps import Call, CallOut, Evaluate, Pause, Steps, run
from django_redislock.cache_lock import CacheLock
from django_redislock.engine import Lease, current_owner
from django_redislock.engine.acquiring import acquisition, effective_options
from django_redislock.engine.acquiring.attempt import Attempt
from django_redislock.engine.leases import lease as _reasons
from django_redislock.engine.messages.receiver import Receiver
from django_redislock.engine.messages.subscriber import RESUBSCRIBE_EVERY as RESUBSCRIBE_EVERY
from django_redislock.engine.messages.waiters import Park, TaskWaiter
from django_redislock.engine.owners.with_block import _leave
from django_redislock.engine.runtime import runtime
from django_redislock.store import calls, probe, scripts
from django_redislock.store import keys as _keys
from django_redislock.store.cluster import tag_of
from django_redislock.store.loop_connections import LoopConnections
from django_redislock.store.retry import Execute, call
from django_redislock.store.stores import get_partition, make_store
from django_redislock.store.wire import Command, exchange

# -- the names of keys -------------------------------------------------------------------------------------------------

PREFIX = "redislock{0}:"

Keys = _keys.Keys


def keys_of(name: str, prefix: str = PREFIX) -> Keys:
    """The keys of the lock ``name``."""
    return _keys.make_keys(prefix, name)


def pool_keys(pool: str, prefix: str = PREFIX) -> tuple[str, ...]:
    """The keys of the pool ``pool``: members, fresh, free, held, busy, took, wanted, line, waiters of the line."""
    return _keys.pool_keys(prefix, pool_name(pool))


def own_channel(using: str | None = None) -> str:
    """The channel on which this process hears of its locks."""
    return get_partition(using).channel


def counter_of(name: str) -> int:
    """Which of a cluster's counters of fences this lock uses."""
    return tag_of(slot_text(name))


# -- the limits that tests need shorter or longer ----------------------------------------------------------------------

# by its name here: where it stands
_LIMITS = {
    "look_every": "engine.messages.listener.LOOK_EVERY",  # seconds between the looks of those who wait for a name
    "look_jitter": "engine.messages.listener.JITTER",
    "reconnect_look": "engine.messages.listener.RECONNECTING",
    "late_look": "engine.acquiring.wait_loop.LOOK_LATE",
    "listening_within": "engine.acquiring.attempt.LISTENING_WITHIN",
    "answer_grace": "engine.acquiring.attempt.GRACE",
    "confirm_after": "engine.renewal.schedule.CONFIRM_AFTER",
    "idle_look": "engine.renewal.watchdog.IDLE_LOOK",
    "idle_for_threads": "store.thread_connections.IDLE_FOR",
    "idle_for_loops": "store.loop_connections.IDLE_FOR",
    "check_idle_threads": "store.thread_connections.IDLE",
    "check_idle_loops": "store.loop_connections.IDLE",
    "patience_threads": "store.thread_connections.PATIENCE",
    "patience_loops": "store.loop_connections.PATIENCE",
    "list_batch": "store.reading.BATCH",
    "check_patience": "checks.server.PATIENCE",
    "sit_out": "engine.acquiring.attempt.SIT_OUT",
    "sit_out_listening": "engine.messages.subscriber.SIT_OUT",
    "remember_for": "engine.renewal.watchdog.REMEMBER_FOR",
}


def limit(patch: pytest.MonkeyPatch | None = None, **limits: float) -> None:
    """Set limits of the package, such as ``look_every=0.2``; without ``patch``, in a test's own process, for good."""
    for name, value in limits.items():
        (patch or pytest.MonkeyPatch()).setattr(f"django_redislock.{_LIMITS[name]}", value)


# -- the scripts, called as another process would ----------------------------------------------------------------------

AcquireReply = calls.AcquireReply
Request = calls.LockRequest
BUSY, GRANTED, MORE, GIVEN_UP, ALREADY, REQUEUED, FULL = range(7)  # states of acquire
LOST, HELD, ADOPTED = range(3)  # of renew
NOT_HELD, RELEASED, DETACHED = range(3)  # of release
HOLDER, BEARER, WITHDRAWAL = calls.HOLDER, calls.BEARER, calls.WITHDRAWAL  # who releases
NOT_AT_ALL, QUEUED, SEIZING, ADOPTING = calls.NOT_AT_ALL, calls.QUEUED, calls.SEIZING, calls.ADOPTING  # how to wait
SUSPENSION = calls.SUSPENSION  # what to force-release
polled = calls.polled
ACQUIRE = calls._ACQUIRE["key"].sha  # by which proxies recognize requests
RELEASE = calls._RELEASE["key"].sha
RENEW = calls._RENEW["key"].sha
FORCE = calls._FORCE["key"].sha

# why a lock was lost, as LockLost.reason says it
WAS_FORCED, HAS_VANISHED, WAS_TAKEN = _reasons.FORCED, _reasons.VANISHED, _reasons.TAKEN
WAS_ADOPTED, WAS_RELEASED, HAS_ENDED, WAS_NOT_RENEWED = (
    _reasons.ADOPTED,
    _reasons.RELEASED,
    _reasons.ENDED,
    _reasons.OVER,
)


class Process:
    """What Redis takes for a process of its own. It has a channel, to which the test may subscribe, and no threads."""

    def __init__(self, using: str = "default", channel: str | None = None) -> None:
        self._partition = make_store(using, "redislock").partition(0)
        if channel is not None:
            self._partition.channel = channel

    @property
    def channel(self) -> str:
        return self._partition.channel

    def request(self, id: str, *, name: str, ttl: float = 30, **more: Any) -> Request:
        """What an attempt of this process asks for."""
        return Request(
            self._partition, keys_of(name, self._partition.prefix), name, id, ttl, **{"owner": "ghost", **more}
        )

    def acquire(self, request: Request, wait: str = QUEUED, ticket: int | None = None) -> AcquireReply:
        """Ask for the lock: ``wait`` is NOT_AT_ALL, QUEUED, SEIZING, ADOPTING or polled(seconds)."""
        return run(calls.acquire(request, wait, ticket, until=math.inf, by=None))

    def release(self, request: Request, *, unknown: bool = False, how: str = HOLDER) -> calls.Released:
        """Release it, or leave the queue."""
        return run(calls.release(request, unknown=unknown, how=how))

    def renew(self, request: Request, how: str = "keep", left: float = 30, fence: int | None = None) -> calls.Renewed:
        """``how``: keep, confirm, add, set, detach or raise."""
        return run(calls.renew(request, how, left, fence))

    def force(self, name: str, highest: int | None = None, what: str = "") -> bytes | None:
        """Release the lock whoever holds it, unless its fence is higher; the value that it had. ``what``: SUSPENSION,
        or whatever there is."""
        return run(calls.force(self._partition, keys_of(name, self._partition.prefix), name, highest, what))

    def info(self, name: str, waiters: int) -> list[Any]:
        """What Redis knows of the lock, with at most so many of its waiters; see info.lua."""
        return run(calls.info(self._partition, keys_of(name, self._partition.prefix), name, waiters))

    def suspend(self, name: str, seconds: float, owner: str = "ghost") -> bool:
        """Grant it to nobody for so long; whether that has begun."""
        return run(calls.suspend(self._partition, keys_of(name, self._partition.prefix), name, seconds, owner))

    @property
    def known_fence(self) -> int:
        """The highest fence that it has met."""
        return self._partition.highest_fence

    def know_fence(self, fence: int) -> None:
        """It has met this fence, in a database say."""
        self._partition.highest_fence = fence

    def close(self) -> None:
        self._partition.store.close()


def own_process(using: str | None = None) -> Process:
    """This very process, calling scripts behind the back of its locks."""
    process = Process.__new__(Process)
    process._partition = get_partition(using)
    return process


def change_scripts(without: Collection[str] = (), clock: tuple[str, str] | None = None) -> None:
    """From now on, this process's scripts leave out these rules (by their names in the scripts), and read the time from
    these two keys: seconds and microseconds."""
    for script in list(scripts._by_sha.values()):
        script.load(without)
        if clock is not None:
            script.source = script.source.replace("'TIME'", "'MGET', '{}', '{}'".format(*clock))
            script.register()


@contextmanager
def changed_scripts(without: Collection[str] = (), clock: tuple[str, str] | None = None) -> Iterator[None]:
    """The same for a while."""
    change_scripts(without, clock)
    try:
        yield
    finally:
        change_scripts()


def rules_in_scripts() -> set[str]:
    """The names of all rules in the scripts."""
    texts = [path.read_text() for path in Path(str(files(scripts.__package__) / "lua")).rglob("*.lua")]
    return {name for text in texts for name in re.findall(r"--(?:\[\[)?@([a-z-]+)", text)} - {"or"}


def use_tokens_as_ids() -> None:
    """From now on, this process confuses the token of an attempt with its id."""

    def confused(*args: Any, **kwargs: Any) -> Request:
        request = Request(*args, **kwargs)
        return request if request.token is None else request._replace(id=request.token, token=None)

    setattr(effective_options, "LockRequest", confused)  # noqa: B010


def note_attempts(on_end: Callable[[int | None], object], on_presumed: Callable[[bool], object]) -> None:
    """From now on, ``on_end`` gets the ticket of each attempt that ends (0: it may have queued, and does not know it),
    and ``on_presumed`` whether a release found nothing, but its first try may have."""

    class Noted(Attempt):
        def leave(self) -> None:
            on_end(0 if self.ticket is None and self.unknown else self.ticket)
            super().leave()

    release = calls.release

    def noted(*args: Any, **kwargs: Any) -> Steps[calls.Released]:
        answer = yield from release(*args, **kwargs)
        on_presumed((answer.state, answer.twice) == (NOT_HELD, True))
        return answer

    setattr(acquisition, "Attempt", Noted)  # noqa: B010
    setattr(calls, "release", noted)  # noqa: B010


# -- this process ------------------------------------------------------------------------------------------------------


def lease_of(lock: Lock) -> Lease:
    """The lease of this thread or task."""
    section = current_owner().section(lock)
    assert section is not None
    return section.held


def leases() -> list[Lease]:
    """All leases that this process renews."""
    return runtime().watchdog.leases()


def let_go() -> None:
    """Drop locks that were not released, as if their threads had never existed."""
    for lease in leases():
        runtime().watchdog.end(lease)


def pending_releases(using: str | None = None) -> int:
    """How many releases are still to be sent, on this alias or (None) on all."""
    pending = list(runtime().watchdog._pending)
    return len(pending if using is None else [one for one in pending if one.request.partition is get_partition(using)])


leave_block = _leave  # the function that ends a ``with`` block


def undo_interrupted() -> None:
    """Undo what was interrupted, as the renewer does in its next round."""
    runtime().watchdog.interruptions.undo_all()


def renew_all(using: str | None = None) -> None:
    """Renew all leases of an alias at once, as after a reconnect."""
    runtime().watchdog.renew_all(get_partition(using))


def all_seen() -> bool:
    """Whether the renewer has looked at every lease, so that it treats none as a short section."""
    return all(lease.seen for lease in leases())


def listener(using: str | None = None) -> Any:
    return runtime().listener(get_partition(using))


class Ears:
    """How this process hears messages for the locks of an alias."""

    def __init__(self, using: str | None = None) -> None:
        self._listener = listener(using)

    def start(self) -> None:
        """Subscribe, in the background."""
        self._listener.start()

    @property
    def ready(self) -> bool:
        """Subscribed, or known to have no chance."""
        return bool(self._listener.ready)

    @property
    def polled(self) -> bool:
        """Messages cannot be trusted to arrive, so waiters poll."""
        return bool(self._listener.polled)

    @property
    def generation(self) -> int:
        """How often it has subscribed."""
        return int(self._listener.generation)

    @property
    def heard(self) -> int:
        """How many messages have come."""
        return int(self._listener.heard)

    @property
    def port(self) -> int:
        """That of this process's end of the connection."""
        return int(self._listener.receiver.connection._sock.getsockname()[1])


def before_it_subscribes(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Before this process's next subscription is sent, ``act``, which may raise."""
    subscribe = Receiver.subscribe

    def held_up(receiver: Any, new: Any) -> Any:
        act()
        return subscribe(receiver, new)

    patch.setattr(Receiver, "subscribe", held_up)


def before_it_reads(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Whichever thread reads the next message calls ``act`` with the message in hand."""
    reader = reader_of(listener())
    handle = reader._handle

    def interrupted(*message: Any) -> None:
        act()
        handle(*message)

    patch.setattr(reader, "_handle", interrupted)


def clock_of_server() -> tuple[int, float] | None:
    """What this process knows of the server's clock: its microseconds, and when they were asked for."""
    return get_partition().node.anchor


def clock_has_jumped(seconds: float) -> None:
    """The server's clock has gone ahead by so much since this process asked for it."""
    us, sent = get_partition().node.anchor or (0, 0.0)
    get_partition().node.anchor = round(us - seconds * 1e6), sent


def after_each_call(patch: pytest.MonkeyPatch, sha: str, act: Callable[[], object]) -> None:
    """After each answer to the script with this hash, ``act``."""

    def slow(partition: Any, command: Any, *args: Any, **options: Any) -> Any:
        reply = yield from call(partition, command, *args, **options)
        if sha in command:
            act()
        return reply

    patch.setattr(calls, "call", slow)


def hears(using: str | None = None) -> bool:
    """Whether this process is subscribed."""
    return bool(listener(using).ready)


def listens(ears: Any) -> bool:
    """Whether this process has begun to listen for this alias."""
    subscriber = ears._want.__self__
    return bool(ears.generation or subscriber._thread or subscriber._due or subscriber._receivers)


def reader_of(ears: Any) -> Any:
    """The reader of its messages, while it is subscribed."""
    receiver = ears.receiver
    return None if receiver is None else receiver.reader


def state_of_listening() -> str:
    """For the log of a test that waits in vain."""
    ears, reader = listener(), reader_of(listener())
    subscribers = command("PUBSUB", "NUMSUB", own_channel())
    reading = None if reader is None else (reader._turn(), reader._trouble, reader._connection._sock, reader._followers)
    waiters = [(one.id, one.told) for one in ears.waiters.of(None)]
    return f"ready {ears.ready}, polled {ears.polled}, heard {ears.heard}, {subscribers=}, {reading=}, {waiters=}"


def waiting(using: str | None = None) -> int:
    """How many waiters this process has."""
    return len(listener(using).waiters.of())


def parked() -> bool:
    """Whether a coroutine is waiting to be woken."""
    return any(isinstance(one, TaskWaiter) and one._parked for one in listener().waiters.of())


def all_look(using: str | None = None) -> None:
    """Let every waiter of this process ask Redis now."""
    listener(using).tell_all()


def change_probe(patch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Change the text of the script that asks whether messages arrive."""
    script = copy(probe._PROBE)
    script.source = change(script.source)
    assert script.source != probe._PROBE.source
    script.register()
    patch.setattr(probe, "_PROBE", script)


# -- its connections ---------------------------------------------------------------------------------------------------


def command(*words: str, using: str | None = None) -> Any:
    """The answer to a command sent by the package's own connection (of the memory mode, too)."""
    given: Command = words
    return get_partition(using).execute(given)


def exchange_by(connection: Any, commands: Sequence[Command]) -> list[Any]:
    """The raw answers to these commands."""
    return exchange(connection, commands)


def idle(connections: LoopConnections) -> list[Any]:
    """Idle connections of an event loop."""
    return [connection for idle in connections._idle.values() for connection, _ in idle]


def drop_idle(loop: asyncio.AbstractEventLoop) -> None:
    """Close idle connections of an event loop that is not running, so that nothing warns when it is closed."""
    loop.call_soon(get_partition().store._loops[loop].drop_idle)
    loop.run_until_complete(asyncio.sleep(0))


def most_connections(using: str | None = None) -> int:
    """How many connections to a node this process may have for its commands."""
    return get_partition(using).store.bound


# classes whose ``arun`` awaits something: wherever a coroutine of the package may be cancelled
ASYNC_STEPS: tuple[Any, ...] = (Call, CallOut, Evaluate, Execute, Park, Pause)


def kept_by_callers() -> dict[str, Any]:
    """What the listener, the renewer and the running event loop still keep of callers that have left."""
    partition, watchdog, waiters = get_partition(), runtime().watchdog, listener().waiters
    known: dict[str, Any] = {
        "waiters": waiters.of(),
        "groups": dict(waiters._groups),
        "tasks that wait": dict(waiters._tasks),
        "leases": leases(),
        "pending releases": set(watchdog._pending),
    }
    connections = partition.store._loops.get(asyncio.get_running_loop()) if asyncio._get_running_loop() else None
    if connections is not None:
        known["tasks"] = asyncio.all_tasks() - {asyncio.current_task()}
        known["loans"] = set(connections._loans)
        known["connections beyond the bound"] = max(0, len(idle(connections)) - partition.store.bound)
    return {what: found for what, found in known.items() if found}


# -- a lock that this thread or task holds -----------------------------------------------------------------------------


def will_hear_of(lock: Lock) -> bool:
    """Whether this process is told at once what happens to the lock: it listens, and has no answer to wait for by which
    it might learn the same."""
    lease = lease_of(lock)
    return hears(lock.using) and lease.seen and not lease.urgent and time.monotonic() < lease.due < lease.ends


def end_is_seen(lock: Lock) -> Callable[[], bool]:
    """Tells, in any thread, whether the renewer has come to the end of this lock's lease."""
    lease = lease_of(lock)
    return lambda: lease.due > lease.ends


def redis_py_lock(name: str, **options: Any) -> Any:
    """What ``cache.lock()`` makes, on the default alias though that is of another backend."""
    return CacheLock(name, **options)


def inherit(lock: Lock) -> None:
    """This lock is now one that the parent of a forked child holds."""
    lease_of(lock).pid -= 1
