"""What only the inside of the package shows, by names that outlive a rewriting of it: then this file is rewritten, and
no test. No other file of the tests may import internals, and nothing here returns an object for a test to reach into.
"""

import asyncio
import errno
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import asdict
from importlib import import_module
from inspect import signature
from operator import attrgetter
from pkgutil import resolve_name
from time import monotonic
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest.mock import Mock

import pytest
from django.test import override_settings
from redis.exceptions import InvalidResponse, MovedError, ResponseError

from django_redislock import Lock, values
from django_redislock import conf as conf_module
from django_redislock.base import pace
from django_redislock.base.names import pool_name as pool_name
from django_redislock.base.processes import PerProcess
from django_redislock.base.steps import Call, CallOut, Pause, Steps, arun, run
from django_redislock.base.times import NEVER
from django_redislock.cache_lock import CacheLock
from django_redislock.cached_values import Computation, computations
from django_redislock.conf import conf
from django_redislock.engine import acquisition, held, several
from django_redislock.engine import lease as _reasons
from django_redislock.engine import release as engine_release
from django_redislock.engine import runtime as runtime_module
from django_redislock.engine.acquisition import Frame
from django_redislock.engine.attempt import Attempt, _tell_of_limits
from django_redislock.engine.lease import Lease
from django_redislock.engine.owner import _describe_process
from django_redislock.engine.receiver import Receiver
from django_redislock.engine.runtime import runtime
from django_redislock.engine.waiters import Park, TaskWaiter
from django_redislock.engine.with_block import Finalizer
from django_redislock.inspection.lists import list_everywhere, read_matching
from django_redislock.jobs.job_lock import JobLock, Running, running_job
from django_redislock.store import calls, calls_once
from django_redislock.store import records as _keys
from django_redislock.store import scripts as _scripts
from django_redislock.store import stores as stores_module
from django_redislock.store.cluster import Cluster, Question, tag_of
from django_redislock.store.lock_store import LockStore
from django_redislock.store.loop_connections import LoopConnections
from django_redislock.store.node import Node
from django_redislock.store.retry import Roundtrip, call, try_once
from django_redislock.store.stores import get_partition, get_store, get_stores, make_store
from django_redislock.store.thread_connections import ThreadConnections
from django_redislock.store.thread_connections import surplus as _surplus
from django_redislock.store.wire import Command

T = TypeVar("T")


def _around(patch: pytest.MonkeyPatch, owner: Any, name: str, before: Any = None, after: Any = None) -> None:
    """From now on, these functions precede and follow each call of this one, and get its arguments."""
    original = getattr(owner, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        if before:
            before(*args)
        answer = original(*args, **kwargs)
        if after:
            after(*args)
        return answer

    patch.setattr(owner, name, noted)


PREFIX = "redislock{0}:"


def keys_of(name: str, prefix: str = PREFIX) -> _keys.Keys:
    return _keys.make_keys(prefix, name)


def pool_keys(pool: str, prefix: str = PREFIX) -> tuple[str, ...]:
    """Those of members, fresh, free, held, busy, took, wanted, line, waiters of the line."""
    return _keys.pool_keys(prefix, pool_name(pool))


def own_channel(using: str | None = None) -> str:
    return get_partition(using).channel


def counter_of(name: str) -> int:
    """Which of a cluster's counters of fences this lock uses."""
    return tag_of(name)


# limits that tests need shorter or longer, by their names here
_LIMITS = {
    "look_every": "engine.listener.LOOK_EVERY",  # seconds between the looks of those who wait for a name
    "after_hanging": "store.loop_connections.AFTER_HANGING",  # seconds more for a loop that has hung
    "grace": "base.times.GRACE",  # seconds past its deadline in which an answer still counts
    "listening_within": "engine.attempt.LISTENING_WITHIN",
    "message_within": "engine.receiver.MESSAGE_WITHIN",  # seconds from the first byte of a message to its last
    "reads_for": "engine.receiver.READS_FOR",  # seconds that a waiting thread reads the messages
    "confirm_after": "engine.lease.CONFIRM_AFTER",
    "idle_look": "engine.watchdog.IDLE_LOOK",
    "look_around": "engine.watchdog.LOOK_AROUND",  # seconds between looks for what was interrupted
    "idle_for_threads": "store.thread_connections.IDLE_FOR",
    "idle_for_loops": "store.loop_connections.IDLE_FOR",
    "check_idle_threads": "store.thread_connections.IDLE",
    "check_idle_loops": "store.loop_connections.IDLE",
    "patience_threads": "store.thread_connections.PATIENCE",
    "patience_loops": "store.loop_connections.PATIENCE",
    "list_batch": "store.reading.BATCH",
    "value_patience": "cached_values.PATIENCE",  # seconds for which one caller computes a value for all others
    "check_patience": "checks.server.PATIENCE",
    "no_failover_within": "store.cluster.NO_FAILOVER_WITHIN",
    "orders": "engine.order.MOST",  # pairs of locks
    "last_words": "engine.dispatch.LAST_WORDS",  # seconds that the end of a process waits for all servers
    "sit_out": "engine.listener.SIT_OUT",
    "polls_late": "base.pace.PATIENCE",  # seconds for which a waiter that polls counts as alive, at least
    "look_late": "engine.attempt.LOOK_LATE",  # seconds by which a look is late if the process stood
    "remember_for": "engine.watchdog.REMEMBER_FOR",
}


def limit(patch: pytest.MonkeyPatch | None = None, **limits: float) -> None:
    """Set limits of the package, such as ``look_every=0.2``; without ``patch``, in a test's own process, for good."""
    for name, value in limits.items():
        module, _, constant = _LIMITS[name].rpartition(".")
        (patch or pytest.MonkeyPatch()).setattr(import_module(f"django_redislock.{module}"), constant, value)


AcquireReply = calls.AcquireReply
Request = calls.LockRequest
BUSY, GRANTED, MORE, GIVEN_UP, ALREADY, REQUEUED, FULL = range(7)  # states of acquire
LOST, HELD, ADOPTED = range(3)  # of renew
NOT_HELD, RELEASED, DETACHED = range(3)  # of release
HOLDER, BEARER, WITHDRAWAL = calls.HOLDER, calls.BEARER, calls.WITHDRAWAL  # who releases
NOT_AT_ALL, QUEUED, ADOPTING = calls.NOT_AT_ALL, calls.QUEUED, calls.ADOPTING  # how to wait
SUSPENSION = calls.SUSPENSION  # what to force-release
polled = calls.polled
# by which proxies recognize requests
ACQUIRE, RELEASE, RENEW, FORCE, INFO = (
    script["key"].sha for script in (calls._ACQUIRE, calls._RELEASE, calls._RENEW, calls._FORCE, calls._INFO)
)
CHECKOUT, RELEASE_MEMBER = calls._CHECKOUT.sha, calls._RELEASE["member"].sha
ACQUIRE_PERMIT, FORCE_PERMIT = calls._ACQUIRE["permits"].sha, calls._FORCE["permits"].sha
# why a lock was lost, as LockLost.reason says it
WAS_FORCED, HAS_VANISHED, WAS_TAKEN = _reasons.FORCED, _reasons.VANISHED, _reasons.TAKEN
WAS_ADOPTED, WAS_RELEASED = _reasons.ADOPTED_ELSEWHERE, _reasons.RELEASED_ELSEWHERE
HAS_ENDED, WAS_NOT_RENEWED = _reasons.ENDED, _reasons.OVER


class Process:
    """What Redis takes for a process of its own. It has a channel, to which the test may subscribe, and no threads."""

    def __init__(self, using: str = "default", channel: str | None = None) -> None:
        self._partition = make_store(using, "redislock").partition(0)
        self._partition.channel = channel or self._partition.channel

    channel: Any = property(attrgetter("_partition.channel"))

    def request(self, id: str, *, name: str, ttl: float = 30, **more: Any) -> Request:
        """What an attempt of this process asks for."""
        return Request(*self._lock(name), id, ttl, **{"owner": "ghost", **more})

    def _lock(self, name: str) -> tuple[Any, _keys.Keys, str]:
        return self._partition, keys_of(name, self._partition.prefix), name

    def acquire(self, request: Request, wait: str = QUEUED, ticket: int | None = None) -> AcquireReply:
        """Ask for the lock: ``wait`` is NOT_AT_ALL, QUEUED, ADOPTING or polled(seconds)."""
        return run(calls.acquire(request, wait, ticket))

    def release(self, request: Request, *, may_arrive: bool = False, how: str = HOLDER) -> calls.Released:
        return run(calls.release(request, may_arrive=may_arrive, how=how))

    def renew(self, request: Request, how: str = "keep", left: float = 30, fence: int | None = None) -> calls.Renewed:
        """``how``: keep, confirm, set, detach or raise."""
        with calls_once.take_sequence(self._partition, request.name) as late:
            return run(calls.renew(request, how, left, fence, late=late))

    def force(self, name: str, highest: int | None = None, what: str = "") -> bool:
        """Release the lock whoever holds it, unless its fence is higher; whether it was held. ``what``: SUSPENSION, or
        whatever there is."""
        return run(calls.force(self._partition, name, highest, what))

    def info(self, name: str, waiters: int) -> list[Any]:
        """What Redis knows of the lock, with at most so many of its waiters; see info.lua."""
        return run(calls.info(*self._lock(name), waiters))

    def suspend(self, name: str, seconds: float, owner: str = "ghost") -> bool:
        """Grant it to nobody for so long; whether that has begun."""
        return run(calls.suspend(self._partition, name, seconds, owner))

    def highest_fence(self, met: int | None = None) -> int:
        """The highest fence that it has ``met``, in a database say."""
        self._partition.highest_fence = self._partition.highest_fence if met is None else met
        return self._partition.highest_fence

    def close(self) -> None:
        self._partition.store.close()


def own_process(using: str | None = None) -> Process:
    """This very process, calling scripts behind the back of its locks."""
    process = Process.__new__(Process)
    process._partition = get_partition(using)
    return process


def change_scripts(without: Collection[str] = (), clock: tuple[str, str] | None = None) -> ExitStack:
    """From now on, or within the block, this process's scripts leave out these rules (by their names in the scripts),
    and read the time from these two keys: seconds and microseconds."""
    text = _scripts._text
    setattr(_scripts, "_text", lambda path: _leave_out(text(path), without))  # noqa: B010
    for script in scripts().values():
        source = _scripts.assemble(script.name, script.stored)
        change_script(
            script, source if clock is None else source.replace("'TIME'", "'MGET', '{}', '{}'".format(*clock))
        )
    setattr(_scripts, "_text", text)  # noqa: B010
    back = ExitStack()
    back.callback(change_scripts)
    return back


def while_a_script_is_put_together(act: Callable[[], T]) -> T:
    """Call ``act`` while another thread puts a script together for the first time."""
    begun, done, text = threading.Event(), threading.Event(), _scripts._text

    def slow(path: str) -> str:
        if threading.current_thread() is other:
            begun.set()
            done.wait()
        return text(path)

    setattr(_scripts, "_text", slow)  # noqa: B010
    other = threading.Thread(target=lambda: _scripts.Script("probe").sha)
    other.start()
    begun.wait()
    try:
        return act()
    finally:
        done.set()
        setattr(_scripts, "_text", text)  # noqa: B010


def change_script(script: Any, source: str) -> None:
    script.source = source
    vars(script).pop("sha", None)
    assert script.sha  # it is known by that from now on


def _leave_out(text: str, without: Collection[str]) -> str:
    """A script without the rules of these names: without ``--@name`` there is no such line, and an ``if ... then`` is
    false. The names of all others may stay."""

    def part(found: re.Match[str]) -> str:
        name, rule, instead = found.groups("")
        return instead if name in without else rule

    def line(found: re.Match[str]) -> str:
        rule, name = found.groups()
        if name not in without:
            return rule
        condition = re.fullmatch(r"( *(?:else)?if ).* then", rule)
        return f"{condition[1]}false then" if condition else ""

    inner = r"((?:(?!--\[\[@).)*)"
    found = 1
    while found:  # the innermost first
        text, found = re.subn(rf"--\[\[@(?!or\])([\w-]+)\]\]{inner}(?:--\[\[@or\]\]{inner})?--\[\[@\]\]", part, text)
    return re.sub(r"(?m)^(.*?) *--@([\w-]+)$", line, text)


def note_attempts(on_end: Callable[[int | None], object], on_presumed: Callable[[bool], object]) -> None:
    """From now on, ``on_end`` gets the ticket of each attempt that ends (0: it may have queued, and does not know it;
    or it has polled for a permit), and ``on_presumed`` whether a release found nothing, but its first try may have."""

    class Noted(Attempt):
        polled = False

        def look(self, wait: str, *tried: Any, **how: Any) -> Any:
            self.polled = self.polled or wait not in (QUEUED, NOT_AT_ALL)
            return super().look(wait, *tried, **how)

        def unregister(self) -> None:
            uncertain = (self.ticket is None and self.may_arrive) or (self.polled and self.request.limit is not None)
            on_end(0 if uncertain else self.ticket)
            super().unregister()

    release = calls.release

    def noted(*args: Any, **kwargs: Any) -> Steps[calls.Released]:
        answer = yield from release(*args, **kwargs)
        on_presumed((answer.state, answer.repeated) == (NOT_HELD, True))
        return answer

    # what one command has got or released
    _around(pytest.MonkeyPatch(), acquisition.Acquisition, "prepare_first_try", lambda *_: on_end(None))
    _around(pytest.MonkeyPatch(), acquisition.Acquisition, "prepare_release", lambda *_: on_presumed(False))
    setattr(acquisition, "Attempt", Noted)  # noqa: B010
    setattr(calls, "release", noted)  # noqa: B010


def lease_of(lock: Lock) -> Lease:
    """That of this thread; else the latest one."""
    own = lock._own()
    lease = lock._latest if own is None else own.its_lease
    assert lease is not None
    return lease


def ends(lock: Lock) -> float:
    return lease_of(lock).ends


def over_by_the_clock_here(lock: Any) -> None:
    """As far as this process knows, the lease of this thread's ``cache.lock()`` has run out."""
    lock.local.held.its_lease.ends = 0.0


def leases() -> list[Lease]:
    return runtime().watchdog.leases()


def command_of_a_new_process() -> str:
    """What a process that has begun with this ``sys.argv`` says of itself where its locks have no purpose."""
    return _describe_process.__wrapped__(0)[1]


# of what was another process, see become_another_process()
_others: list[tuple[PerProcess[runtime_module.Runtime], PerProcess[dict[Any, LockStore]]]] = []


def let_go() -> None:
    """Drop locks that were not released, as if their threads had never existed; and end what was another process."""
    for one in filter(None, (runtime(), *(others.peek() for others, _ in _others))):
        for lease in one.watchdog.leases():
            one.watchdog.end(lease)
    while _others:
        _, stores = _others.pop()
        for store in list(stores.get().values()):
            store.close()


WHERE_LOCKS_ARE_ACQUIRED = (acquisition.__file__, several.__file__)
WHERE_TRANSACTIONS_BEGIN = (
    import_module("django_redislock.fencing.claim").__file__,
    import_module("django_redislock.web.locked_atomic").__file__,
)


def interrupt_ends_of_blocks(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    patch.setattr("django_redislock.engine.with_block._get_running_loop", Mock(side_effect=error))


def interrupt_next_release(patch: pytest.MonkeyPatch, error: BaseException, *, twice: bool = False) -> None:
    """As it begins; ``twice``: what then gives the lock back as well."""
    _once(patch, "Releasable.prepare_release", error)
    if twice:
        _once(patch, "abandon_lease", error)


def _once(patch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    module = "django_redislock.engine.release"
    wrapped = resolve_name(f"{module}:{name}")

    def strike(*args: Any, **kwargs: Any) -> Any:
        patch.setattr(f"{module}.{name}", wrapped)
        raise error

    patch.setattr(f"{module}.{name}", strike)


def shown_here() -> int:
    """How many acquisitions the context shows, over or not."""
    known, late = held._shown.get()
    return sum(map(len, {**known, **late}.values()))


def undo_interrupted() -> None:
    runtime().watchdog.interruptions.abandon_all()


def undo_late(patch: pytest.MonkeyPatch) -> None:
    """The threads of the package undo what was interrupted when somebody who wants the lock again has done so."""
    interruptions, asked = runtime().watchdog.interruptions, list[object]()
    undo_all = interruptions.abandon_all
    _around(patch, interruptions, "abandon_under", after=asked.append)
    patch.setattr(interruptions, "abandon_all", lambda: undo_all() if asked else [])


def renew_all(using: str | None = None) -> None:
    """Renew all leases of an alias at once, as after a reconnect."""
    runtime().watchdog.renew_all(get_partition(using))


def all_seen() -> bool:
    """Whether the renewer has looked at every lease, so that none counts as held for a moment only, and is about to
    ask Redis for none."""
    return all(lease.seen and not lease.urgent for lease in leases())


class Ears:
    """How this process hears messages for the locks of an alias, or (on a cluster) for the lock ``name``."""

    def __init__(self, using: str | None = None, name: str = "") -> None:
        self._listener: Any = runtime().listener(get_partition(using, name))
        self.start = self._listener.start  # subscribes, in the background
        self.end = self._listener.unsubscribed  # while others on the same connection go on

    channel: Any = property(attrgetter("_listener.partition.channel"))
    ready = property(attrgetter("_listener.ready"))  # subscribed, or known to have no chance
    polled = property(attrgetter("_listener.polled"))  # messages cannot be trusted to arrive, so waiters poll
    generation = property(attrgetter("_listener.generation"))  # how often it has subscribed
    heard = property(attrgetter("_listener.heard"))  # how many messages have come
    _receiver = property(attrgetter("_listener.receiver"))

    @property
    def hears(self) -> bool:
        return bool(self._listener.hears and self._receiver and self._receiver.thread.is_alive())

    @property
    def a_waiter_reads(self) -> bool:
        """Whether a thread that waits reads the messages."""
        return self._receiver is not None and self._receiver._reader not in (None, self._receiver._own)

    @property
    def port(self) -> int:
        """That of this process's end of the connection."""
        return int(self._receiver.connection._sock.getsockname()[1])

    @property
    def node(self) -> int:
        """The port of the node at which it is subscribed; 0: at none."""
        return _port_of(self._receiver.node) if self._receiver else 0

    @property
    def used_for_handovers(self) -> bool:
        """Subscribed at the node of the lock, as far as the process knows, and by what it believes itself."""
        partition = self._listener.partition
        return self.hears and partition.subscribed_at is partition.node


def _of_ears(what: str) -> Callable[..., Any]:
    return lambda using=None: getattr(Ears(using), what)


hears = _of_ears("hears")
heard = _of_ears("heard")
subscriptions = _of_ears("generation")
a_waiter_reads = _of_ears("a_waiter_reads")


def listen(using: str | None = None) -> None:
    Ears(using).start()


def cut_before_it_is_read(patch: pytest.MonkeyPatch) -> None:
    """The next connection is cut when those who wait know of it already, and nobody reads it yet."""
    first = iter([True])
    _around(patch, Receiver, "start", lambda receiver: next(first, False) and receiver.cut())


def _waiters(using: str | None = None) -> Any:
    return [one for one in Ears(using)._listener.waiters.of() if one.registered]


def waiting(using: str | None = None) -> int:
    return len(_waiters(using))


def looks_due(using: str | None = None) -> bool:
    """Whether any waiter was told something that it has not acted upon yet."""
    return any(one.look or one.grant for one in _waiters(using))


def let_them_look(using: str | None = None) -> None:
    """It is time for those who wait to look by the clock."""
    for waiter in _waiters(using):
        waiter.group.due = monotonic()
        waiter.wake()


def parked() -> bool:
    return any(isinstance(one, TaskWaiter) and one._parked for one in _waiters())


def forget_limits() -> None:
    """Log again what this process has logged once of limits that differ."""
    _tell_of_limits.cache_clear()


def after_each_call(patch: pytest.MonkeyPatch, sha: str, act: Callable[[], object]) -> None:
    def slow(partition: Any, command: Any, *args: Any, **options: Any) -> Any:
        reply = yield from call(partition, command, *args, **options)
        if sha in command:
            act()
        return reply

    def quick(partition: Any, command: Any, by: Any) -> Any:
        tried = try_once(partition, command, by)
        if sha in command:
            act()
        return tried

    patch.setattr(calls, "call", slow)
    for module in (acquisition, engine_release):
        patch.setattr(module, "try_once", quick)


def before_each_request(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Before this process asks for a lock, again or for the first time."""
    _around(patch, calls, "acquire", lambda *_: act())


def scripts() -> dict[str, Any]:
    """All Lua scripts of the package, by names of their own, with ``sha`` and ``source``."""
    pairs = [calls._ACQUIRE, calls._RELEASE, calls._RENEW, calls._FORCE, calls._INFO, calls._SUSPEND]
    alone = [calls._CHECKOUT, calls._LEAVE, calls_once._MEMBERS, values._COMPARE, values._COUNTER, calls._PROBE]
    found = {f"{script.name} {stored}": script for pair in pairs for stored, script in pair.items()}
    return found | {script.name: script for script in alone}


def put_together(patch: pytest.MonkeyPatch, text: str) -> str:
    """The script that this text becomes, in which names stand for positions."""
    read = _scripts._text
    patch.setattr(_scripts, "_text", lambda path: text if path == "made.lua" else read(path))
    return _scripts.assemble("made", "key")


def change_probe(patch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Change the text of the script that asks whether messages arrive."""
    script = copy(calls._PROBE)
    change_script(script, change(script.source))
    assert script.source != calls._PROBE.source
    patch.setattr(calls, "_PROBE", script)


def command(*words: Any, using: str | None = None) -> Any:
    """The answer to a command sent by the package's own connection (of the memory mode, too)."""
    (answer,), _ = get_partition(using).exchange([words])
    if isinstance(answer, ResponseError):
        raise answer
    return answer


class Wire:
    """Several commands in one write; they give up ``within`` so many seconds, or by the alias's timeouts."""

    def __init__(self, using: str | None = None) -> None:
        self.using = using

    def exchange(self, *commands: Command, within: float | None = None) -> list[Any]:
        return get_partition(self.using).exchange(commands, within and monotonic() + within)[0]

    async def aexchange(self, *commands: Command, within: float | None = None) -> list[Any]:
        return (await get_partition(self.using).aexchange(commands, within and monotonic() + within))[0]

    def spoil(self, how: str) -> None:
        """Do something to the only unused connection: "unasked" (an answer that nobody asked for), or "closed"."""
        (connection,) = idle(get_partition(self.using).store.threads)
        if how == "unasked":
            connection.send_command("ECHO", "of somebody else")
            assert connection.can_read(30)
        else:
            sock: Any = connection._sock
            sock.shutdown(socket.SHUT_RDWR)

    async def aspoil(self, how: str) -> None:
        (connection,) = idle(_connections(using=self.using))
        if how == "unasked":
            await connection.send_command("ECHO", "of somebody else")
            look = connection.can_read if hasattr(connection, "can_read") else connection.can_read_destructive
            while not await look():
                await asyncio.sleep(0.001)
        elif how == "closed":
            await connection.disconnect()
        else:  # "reset": unlike one that the server has closed, it is no transport any more
            transport = connection._writer.transport
            transport._fatal_error(ConnectionResetError(errno.ECONNRESET, "as the loop reads it"))
            while transport._sock is not None:
                await asyncio.sleep(0.001)


def unused_here(using: str | None = None) -> int:
    """How many unused connections this event loop has for commands; where none runs, all nodes together for threads."""
    store, loop = get_partition(using).store, asyncio._get_running_loop()
    if loop is None:
        return len(store.threads.idle)
    connections = store.connections_in(loop)
    return 0 if connections is None else len(idle(connections))


def seconds_to_keepalive() -> int:
    """After how many seconds the system asks whether the peer of our only unused connection is there; 0: never."""
    store, loop = get_store(), asyncio._get_running_loop()
    (connection,) = idle(store.threads if loop is None else _connections(loop))
    sock = connection._sock if loop is None else connection._writer.transport.get_extra_info("socket")
    asks = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return int(asks and sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))


def shown_alias(using: str | None = None) -> str:
    """How error reports show what is known of an alias."""
    return repr(get_store(using).config)


def connection_class(using: str | None = None, *, asynchronous: bool) -> type:
    node = get_partition(using).node
    return type(node.for_loops.connection(1.0)) if asynchronous else node.config.kind


def listening_connection_class(using: str | None = None) -> type:
    return type(Ears(using)._receiver.connection)


def watch_connections(using: str | None = None) -> Callable[[], tuple[int, int]]:
    """Tells how many connections the present event loops use, and how many coroutines wait for one."""
    loops = [connections for _, connections in get_partition(using).store._in_each_loop()]

    def counts() -> tuple[int, int]:
        return sum(len(each._loans) for each in loops), sum(len(queue) for each in loops for queue in each._queues)

    return counts


def loops_with_connections(using: str | None = None) -> int:
    return len(get_partition(using).store._in_each_loop())


class AskedOnce:
    """A question that begins to be asked now, once for all who wait for the answer; ``within``: for so many seconds."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._question = Question(lambda question: ask())

    def answer(self, within: float | None) -> None:
        self._question.answer(within and monotonic() + within)

    async def aanswer(self, within: float | None) -> None:
        await self._question.aanswer(within and monotonic() + within)


def change_caches_while_a_store_is_made(patch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Whoever makes a lock store next is overtaken by this change of the settings."""
    left = [change]
    _around(patch, stores_module, "make_store", after=lambda *_: left and left.pop()())


def distrust(using: str | None = None) -> None:
    partition = get_partition(using)
    partition.store.suspect(partition.node)


def surplus(stocks: Sequence[Any], bound: int, in_use: int) -> list[Any]:
    """Which of these unused connections are closed so that no more than ``bound`` remain with those in use."""
    (stock,) = stocks
    return list(_surplus(stock, bound - in_use))


def idle(connections: LoopConnections | ThreadConnections) -> list[Any]:
    return [pooled.connection for pooled in connections.idle]


def _connections(loop: asyncio.AbstractEventLoop | None = None, using: str | None = None) -> LoopConnections:
    connections = get_partition(using).store.connections_in(loop or asyncio.get_running_loop())
    assert connections is not None
    return connections


def hang_up_idle(loop: asyncio.AbstractEventLoop) -> None:
    """Close idle connections of an event loop that is not running; the package does not learn of it."""
    for connection in idle(_connections(loop)):
        loop.run_until_complete(connection.disconnect())


def drop_idle_here() -> None:
    connections = get_partition().store.threads if asyncio._get_running_loop() is None else _connections()
    connections.drop_idle()


# what awaits something, by its owner and its name: wherever a coroutine of the package may be cancelled
AWAITING: list[tuple[Any, str]] = [
    *((step, "arun") for step in (Call, CallOut, Roundtrip, Park, Pause)),
    (acquisition, "atry_once"),
    (engine_release, "atry_once"),
]


def kept_by_callers() -> dict[str, Any]:
    """What the listener, the renewer and the running event loop still keep of callers that have left."""
    partition, watchdog, waiters = get_partition(), runtime().watchdog, Ears()._listener.waiters
    known: dict[str, Any] = {
        "waiters": waiters.of(),
        "groups": dict(waiters._groups),
        "leases": leases(),
        "pending releases": set(watchdog._pending),
    }
    loop = asyncio._get_running_loop()
    connections = None if loop is None else partition.store.connections_in(loop)
    if connections is not None:
        known["tasks"] = asyncio.all_tasks() - {asyncio.current_task()}
        known["loans"] = set(connections._loans)
        known["connections beyond the bound"] = max(0, len(idle(connections)) - partition.store.bound)
    return {what: found for what, found in known.items() if found}


def finder_of_loss(lock: Lock) -> Callable[[], None]:
    """What to call to let this process find out that the lock is gone; as often as it likes."""
    lease = lease_of(lock)
    return lambda: runtime().watchdog.lose(lease, _reasons.VANISHED)


def call_soon(job: Callable[[], object]) -> None:
    """Call what is the site's own, such as a receiver of a signal, in a thread of the background."""
    runtime().notifier.call(job)


def due_in(lock: Lock) -> float:
    """In how many seconds the renewer looks at this lock."""
    return lease_of(lock).due - monotonic()


def before_next_round(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> threading.Event:
    """Let the renewer call ``act`` between waking up for a lease and looking at it; set when that round is over."""
    watchdog, work, over = runtime().watchdog, runtime().watchdog._work, threading.Event()
    left = [act]

    def late(tasks: Sequence[Any]) -> None:
        strikes = bool(left) and any(isinstance(task, Lease) for task in tasks)
        if strikes:
            left.pop()()
        work(tasks)
        if strikes:
            over.set()

    patch.setattr(watchdog, "_work", late)
    return over


def rounds_of_looks(patch: pytest.MonkeyPatch) -> list[float]:
    """When the renewer has begun to look at leases that are due, from now on."""
    watchdog, work, begun = runtime().watchdog, runtime().watchdog._work, list[float]()

    def noting(tasks: Sequence[Any]) -> None:
        if tasks:
            begun.append(monotonic())
        work(tasks)

    patch.setattr(watchdog, "_work", noting)
    return begun


def before_next_look(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let the renewer call ``act`` when it looks at a lease, once."""
    left = [act]
    _around(patch, Lease, "may_be_released", lambda *_: left and left.pop()())


def stop_renewer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime().watchdog, "_work", lambda tasks: None)


def abandon(lock: Lock, *, withdrawal: bool = False) -> None:
    lease, watchdog = lease_of(lock), runtime().watchdog
    watchdog.abandon(lease.request, may_arrive=False, how=WITHDRAWAL if withdrawal else HOLDER)
    watchdog.end(lease)


def end_process() -> None:
    runtime_module._send_pending()
    known = runtime_module._runtime.peek()
    assert known is None or not known.watchdog._pending


def break_sender(patch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """The thread that sends the next renewal dies of an error; tells whether it has ended."""
    dispatch, dying = runtime().watchdog._dispatch, list[threading.Thread]()

    def fail(*facts: object) -> None:
        patch.undo()
        dying.append(threading.current_thread())
        raise ZeroDivisionError

    patch.setattr(dispatch, "_answered", fail)
    return lambda: bool(dying) and not dying[0].is_alive()  # pytest has met its error by then


def keeps_connection_to_renew() -> bool:
    """Whether a connection is kept for the next renewals."""
    return bool(runtime().watchdog._dispatch._spare)


def become_another_process(patch: pytest.MonkeyPatch, *, finalizing: bool = False) -> None:
    """Begin anew, until the end of the test: nothing held, no threads, no connections. ``finalizing``: all others were
    stopped for good, in the middle. A test that uses the fixture ``settings`` must ask for it before ``patch``."""
    _others.append((PerProcess(runtime_module.Runtime), PerProcess(dict)))
    patch.setattr(runtime_module, "_runtime", _others[-1][0])
    patch.setattr(stores_module, "_stores", _others[-1][1])
    patch.setattr(conf_module, "_changes", -time.monotonic_ns())  # what was kept with the settings is made anew
    if finalizing:
        held = threading.Thread(target=runtime().watchdog._mutex.acquire)
        held.start()
        held.join()
        me = threading.current_thread()  # those of before still run, in truth
        for module in ("engine.watchdog", "base.processes"):
            ends = SimpleNamespace(is_finalizing=lambda: threading.current_thread() is me)
            patch.setattr(f"django_redislock.{module}.sys", ends)


def interrupt_acquisition(undo: Callable[[], object]) -> Callable[[], bool]:
    """An acquisition is interrupted whose lock is given back by ``undo``; returns whether that is over."""
    block, acquisition = Frame(), SimpleNamespace(abandon=undo)
    runtime().watchdog.ensure_runs()
    finalizer = Finalizer(block, runtime().watchdog.interruptions.note)
    finalizer.acquisition = cast("Any", acquisition)
    return lambda: not (finalizer() or runtime().watchdog.interruptions)


TROUBLES = ("cut", "cut, as ssl tells", "nonsense", "interrupted")


def trouble_reading(patch: pytest.MonkeyPatch, trouble: str, using: str | None = None) -> threading.Event:
    """Whoever reads the next message meets one of TROUBLES; set when that has happened."""
    from tests.helpers.cancelling import Interrupt  # which imports this module

    receiver, met = Ears(using)._receiver, threading.Event()
    errors: dict[str, BaseException] = {
        "cut, as ssl tells": ValueError("Read on closed or unwrapped SSL socket."),
        "nonsense": InvalidResponse("Protocol error"),  # of a TLS connection that is cut while it is read
        "interrupted": Interrupt(),
    }

    def strike(*_: object) -> None:
        if not met.is_set():
            met.set()
            if trouble.startswith("cut"):
                receiver.cut()
            if trouble in errors:
                raise errors[trouble]

    _around(patch, receiver, "_read", strike)
    return met


def interrupt_who_begins_to_read(patch: pytest.MonkeyPatch) -> threading.Event:
    """The next thread that waits and is about to read the messages is interrupted; set when that has happened."""
    from tests.helpers.cancelling import Interrupt  # which imports this module

    met = threading.Event()

    def strike(receiver: Receiver, waiter: Any) -> None:
        if receiver._reader is waiter is not receiver._own and not met.is_set():
            met.set()
            raise Interrupt

    _around(patch, Receiver, "_take", after=strike)
    return met


@contextmanager
def first_listener_held_up() -> Iterator[Callable[[threading.Thread], bool]]:
    """Nobody gets a listener meanwhile; tells of a thread whether it waits for one."""
    from tests.helpers.actors import stands_in  # which imports this module

    with runtime()._mutex:
        yield lambda thread: stands_in(thread, runtime().listener.__name__, "mutex:")


def mistrust(patch: pytest.MonkeyPatch, *, node: str | None = None, doubted: bool = False, clock: bool = True) -> None:
    """Set what is known of the server: its id, whether it may have been replaced, and what time it has."""
    known = get_partition().node
    patch.setattr(known, "id", known.id if node is None else node)
    patch.setattr(known, "suspected_at", monotonic() if doubted else known.suspected_at)
    patch.setattr(known, "anchor", known.anchor if clock else None)


def subscribe_elsewhere(patch: pytest.MonkeyPatch, using: str) -> None:
    partition = get_partition(using)
    patch.setattr(partition, "subscribed_at", Node(partition.node.config))


def confirmed_amid_messages() -> bool:
    """Whether two subscriptions are confirmed though a message for the first comes before the second."""
    answers: list[Any] = [[b"subscribe", b"a", 1], [b"message", b"a", b"p"], [b"subscribe", b"b", 2]]
    ears: list[Any] = [Ears()._listener] * 2
    receiver = Receiver(get_partition().node, ears, lambda *ended: None)
    receiver.connection = SimpleNamespace(  # type: ignore[assignment]
        connect=lambda: None, send_packed_command=lambda words: None, read_response=lambda: answers.pop(0)
    )
    return receiver.subscribe([]) == {} and not answers


def per_process(make: Callable[[], T]) -> tuple[Callable[[], T], Callable[[], T | None]]:
    """How the package keeps what each process makes for itself: returns what gets it, and what looks if it is there."""
    kept = PerProcess(make)
    return kept.get, kept.peek


def settings(**overridden: Any) -> dict[str, Any]:
    with override_settings(**overridden):
        return asdict(conf())


def values_under_way() -> int:
    return len(computations.get())


def waiting_for_values() -> int:
    """How many callers of this process wait for another one of it that computes the same value."""
    return sum(len(computation.waiters) for computation in list(computations.get().values()))


def lose_patience() -> None:
    """The time is over for which callers wait for one that computes the same value."""
    for computation in list(computations.get().values()):
        computation.begun -= computation.until - monotonic()
        computation.until = 0.0
        for waiter in list(computation.waiters):
            waiter.wake()


def joins_at_the_end(asynchronous: bool) -> bool:
    """Wait for a computation that ends just before; whether it is noticed."""
    computation = Computation()
    computation.ended = True
    steps = computation.wait(NEVER)
    asyncio.run(arun(steps)) if asynchronous else run(steps)
    return not computation.waiters


def note_loops(patch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Note the event loops that connect from now on. The result tells how many connections those that are closed have
    left open."""
    opened: list[tuple[weakref.ref[asyncio.AbstractEventLoop], weakref.ref[LoopConnections]]] = []
    until_it_ends = LockStore._until_it_ends

    def noted(store: LockStore, loop: asyncio.AbstractEventLoop, made: LoopConnections) -> Any:
        opened.append((weakref.ref(loop), weakref.ref(made)))
        return until_it_ends(store, loop, made)

    def left_open() -> int:
        known = [(loop(), connections()) for loop, connections in opened]
        closed = [their for loop, their in known if their is not None and (loop is None or loop.is_closed())]
        return sum(bool(one.is_connected) for their in closed for one in idle(their))

    patch.setattr(LockStore, "_until_it_ends", noted)
    return left_open


def note_round_trips(patch: pytest.MonkeyPatch, before: Any = None, after: Any = None) -> None:
    """Before and after each round trip of this process's threads, call these with the port of the server and the
    commands. What ``after`` raises stands for the answer."""

    def told(look: Any) -> Any:
        return look and (lambda threads, node, commands, *more: look(_port_of(node), commands))

    _around(patch, ThreadConnections, "exchange", told(before), told(after))


def note_exchanges(patch: pytest.MonkeyPatch) -> list[int]:
    """From now on, the port of the server for each round trip of this thread, and of event loops in it."""
    asked, me = list[int](), threading.current_thread()

    def note(connections: object, node: Any, *more: object) -> None:
        if threading.current_thread() is me:
            asked.append(_port_of(node))

    for kind in (ThreadConnections, LoopConnections):
        _around(patch, kind, "exchange", before=note)
    return asked


def _port_of(node: Any) -> int:
    return int(node.config.keywords.get("port", 0))


def nodes_known() -> set[int]:
    return {_port_of(node) for node in get_store().nodes}


def believe_at(name: str, port: int) -> None:
    partition = get_partition(None, name)
    store: Any = partition.store
    store._node_by_tag[partition.tag] = store._node_at(f"127.0.0.1:{port}")


def suspect(name: str | None) -> None:
    """It has had trouble with the node of this lock, if one is named, and asks where all slots are before it uses
    another lock."""
    get_store().suspect(None if name is None else get_partition(None, name).node)


def ask_cluster() -> None:
    get_store().node_of(0)


class HeldUpQuestion:
    """From now on, whoever asks the cluster where its slots are waits until ``let_go()``. ``asked``: how often that
    was; ``heard``: how many answers have come from its nodes to commands of this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked = self.heard = 0
        self._store, self._gate = get_store(), threading.Event()
        self.let_go = self._gate.set
        _around(patch, Cluster, "_ask_nodes", before=self._ask)
        _around(patch, Cluster, "may_be_replaced", after=self._hear)

    def _ask(self, cluster: Cluster) -> None:
        self.asked += cluster is self._store
        self._gate.wait(60)  # when the test has failed, nobody lets go

    def _hear(self, cluster: Cluster, *answered: object) -> None:
        self.heard += cluster is self._store


def refuse_subscription(patch: pytest.MonkeyPatch, ears: Ears, when: Callable[[int, bool], bool]) -> list[object]:
    """A node answers that the slot of ``ears`` is at another node, the next time that ``when`` is true for how many
    subscribe, and whether it is one of them. The result is filled when that has happened."""
    subscribe, listener, refused = Receiver.subscribe, ears._listener, list[object]()

    def elsewhere(receiver: Any, new: Any) -> Any:
        found = subscribe(receiver, new)
        if refused or not when(len(new), listener in new):
            return found
        refused.append(receiver)
        return {**found, listener: MovedError(f"1 127.0.0.1:{_port_of(receiver.node)}")}

    patch.setattr(Receiver, "subscribe", elsewhere)
    return refused


async def names_everywhere() -> list[str]:
    """The locks of all aliases, read by a coroutine."""
    partitions = [partition for store in get_stores() for partition in store.everywhere()]
    return sorted(lock.name for lock in await arun(read_matching(partitions, lambda name: True)))


def page(*order: str, words: str = "", using: str | None = None) -> Any:
    """The ``locks`` in this order (columns; ``-`` reverses one) that have these ``words``, out of the ``total``."""
    admin = import_module("django_redislock.admin.changelist")  # not every site of the tests has the admin
    everyone = list_everywhere(using=using)
    locks = admin.search(everyone, words)
    admin.sort(locks, order or ("name",))
    return SimpleNamespace(locks=locks, total=len(everyone))


_claim: Any = import_module("django_redislock.fencing.claim")


def on_claim(
    before: Callable[[], object] = lambda: None,
    after: Callable[[int], object] = lambda fence: None,
    patch: pytest.MonkeyPatch | None = None,
) -> None:
    """From now on, ``before()`` precedes whatever decorators and blocks claim, and ``after(fence)`` follows."""
    patch = patch or pytest.MonkeyPatch()
    _around(patch, _claim, "claim", lambda *_: before(), lambda lease, *_: after(lease.fence))


def claim_nothing() -> None:
    setattr(_claim, "claim", lambda *_, **__: None)  # noqa: B010


def put_claims_off() -> Callable[[], None]:
    """From now on, nothing is claimed before the function that this returns is called."""
    claim, owed = _claim.claim, []
    setattr(_claim, "claim", lambda lease, alias, **_: owed.append((lease, alias)))  # noqa: B010
    return lambda: claim(*owed.pop())


def will_hear_of(lock: Lock) -> bool:
    """Whether this process is told at once what happens to the lock: it listens, and has no answer to wait for by which
    it might learn the same."""
    lease = lease_of(lock)
    return hears(lock.using) and lease.seen and not lease.urgent and time.monotonic() < lease.due < lease.ends


def redis_py_lock(name: str, **options: Any) -> Any:
    """What ``cache.lock()`` makes, on the default alias though that is of another backend."""
    return CacheLock(name, **options)


def guard_programs_by(shell: str, patch: pytest.MonkeyPatch) -> None:
    """The shell that ends a program of ``redislocks run`` whose command was killed."""
    patch.setattr("django_redislock.cli.run.SHELL", shell)


def logs_of_outage(patch: pytest.MonkeyPatch, seconds: int) -> list[int]:
    """When an outage of so many seconds is logged that is met each second."""
    patch.setattr(pace, "monotonic", lambda: 0.0)
    one, logged = pace.Outage(), []
    for second in range(seconds):
        patch.setattr(pace, "monotonic", lambda second=second: float(second))
        if one.log_is_due():
            logged.append(second)
    return logged


def end_is_seen(lock: Lock) -> Callable[[], bool]:
    """Tells, in any thread, whether the renewer has come to the end of this lock's lease."""
    lease = lease_of(lock)
    return lambda: lease.due > lease.ends


# -- jobs -----------------------------------------------------------------------------------------------------------


class InsideJobLock(JobLock):
    """The lock of a kind of job."""

    def running(self, id: str) -> Running | None:
        return running_job(id)

    def queue(self, args: tuple[Any, ...], kwargs: dict[str, Any], id: str) -> bool | str | None:
        """Queue a job nowhere. Returns True if it has the lock; else the id of the job that has it, if one has."""
        found: bool | str | None = self.enqueue(args, kwargs, id, lambda taken: taken, lambda other: other)
        return found

    def asks(self, patch: pytest.MonkeyPatch, before: Callable[[], object]) -> None:
        """Do something before a run is asked for once more, for the first time."""
        asked, calls = self._asked, [before]

        def first(lock: Lock) -> Any:
            if calls:
                calls.pop()()
            return asked(lock)

        patch.setattr(self, "_asked", first)


def job_lock(function: Callable[..., Any], name: str, **options: Any) -> InsideJobLock:
    return InsideJobLock(function, signature(function), name, what="The job", **options)
