"""The listener: one background thread per process and alias that receives wakes and passes them to the waiters.

A message is a hint; the key is the truth. Every (re)subscription tells all waiters to look for themselves.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from logging import WARNING
from time import monotonic
from typing import NamedTuple

from redis.connection import Connection
from redis.exceptions import ResponseError

from .connection import Backend, pipeline
from .exceptions import LockError
from .log import log_event
from .names import TOKEN, is_asked_for
from .reader import HOT_FOR, Reader
from .scripts import CONNECTION_ERRORS, PROBE, lease_end

LOOK_EVERY = 5.0  # seconds between looks of a process at one name
RECONNECTING = 1.0  # the same while there is no subscription
JITTER = 0.05
ENDLESS = -1  # milliseconds of lease: somebody else has written the lock
BARGING = 0.1  # a Lock's head waiter may be overtaken for so long
OUTAGE = 10.0  # seconds without a connection after which waiters try for themselves, and fail
RESUBSCRIBE_EVERY = 30.0  # seconds in the end, where subscribing is refused again and again

# a grant has three numbers; the probe of R3 is none of these
_MESSAGE = re.compile(rf"(?:(g)|([wfxd])) ({TOKEN}) (?(1)(\d{{1,16}}) (\d{{1,17}}) (\d{{1,12}}) )([^\ud800-\udfff]+)")


class Grant(NamedTuple):
    """A handoff, as the wake tells it."""

    fence: int
    us: int  # server time of the grant
    lease_ms: int
    name: str  # of the lock: of a member, for one that waits for a pool


class Waiter:
    """One that waits for a lock in this process. Told from whichever thread reads, parked where it waits."""

    __slots__ = ("_listener", "due", "grant", "group", "look", "token", "told")

    def __init__(self, token: str, group: Group, listener: Listener) -> None:
        self.token = token
        self._listener = listener
        self.group = group
        self.grant: Grant | None = None
        self.look = False  # for itself
        self.due = monotonic() + RECONNECTING  # when it looks untold, where messages do not come
        self.told = False  # anything, since it parked

    def tell(self, grant: Grant | None = None) -> None:
        """The lock was handed over, or there may be something to look for."""
        if grant is None:
            self.look = True
        else:
            self.grant = grant
        self.wake()

    def wake(self) -> None: ...


class ThreadWaiter(Waiter):
    """A thread that waits."""

    __slots__ = ("_gate",)

    def __init__(self, token: str, group: Group, listener: Listener) -> None:
        super().__init__(token, group, listener)
        self._gate = threading.Lock()
        self._gate.acquire()

    def wake(self) -> None:
        self.told = True
        try:
            self._gate.release()
        except RuntimeError:
            pass  # told before, and not yet awake

    def park(self, timeout: float | None) -> None:
        """Wait in this thread until told, at most ``timeout`` seconds. The oldest of a name may read by itself."""
        reader = self._listener.reader if self.group.oldest is self else None
        if reader is not None and reader.lead(self, timeout):
            self._gate.acquire(blocking=False)
        else:
            self._gate.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX))
            if reader is not None:
                reader.unfollow(self)
        self.told = False


class TaskWaiter(Waiter):
    """A coroutine that waits in ``loop``."""

    __slots__ = ("_parked", "loop")

    def __init__(self, token: str, group: Group, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(token, group, listener)
        self.loop = loop
        self._parked: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self.told = True
        try:
            self.loop.call_soon_threadsafe(self._unpark)
        except RuntimeError:  # the loop has ended, and whoever waited in it
            self._listener.bury_all(self.loop)

    def _unpark(self) -> None:
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    async def apark(self, timeout: float | None) -> None:
        """Wait until told, at most ``timeout`` seconds."""
        # who tells us after this look reaches _unpark after we have parked: it runs in this loop
        if not self.told:
            self._parked = self.loop.create_future()
            alarm = None if timeout is None else self.loop.call_later(max(timeout, 0.0), self._unpark)
            try:
                await self._parked
            finally:
                self._parked = None
                if alarm is not None:
                    alarm.cancel()
        self.told = False


class Group:
    """The waiters of one name in this process's threads, or in one event loop, oldest first.

    The oldest looks when ``due`` (monotonic). Each loop looks for itself: another may stand still, or be gone.
    """

    __slots__ = ("due", "key", "name", "oldest", "waiters")

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None) -> None:
        self.name = name
        self.key = (name, loop)
        # both are changed under the listener's mutex. A dict would find its first slowly when many before it have left
        self.waiters: OrderedDict[str, Waiter] = OrderedDict()
        self.oldest: Waiter | None = None  # its first; read by waiters at any time
        self.due = math.inf  # until one of them has looked


class Listener:
    """See the module. ``ready``: subscribed, waiters may queue; ``polled``: messages cannot be trusted to arrive."""

    # Set by the watchdog, which knows the leases: a message for a token that nobody here waits for (kind, token,
    # name), and a connection that stands again.
    on_stray: Callable[[Backend, str, str, str], None]
    on_connected: Callable[[Backend], None]

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.ready = False
        self.polled = False
        self.generation = 0
        self.waiters: dict[str, Waiter] = {}
        self._groups: dict[tuple[str, asyncio.AbstractEventLoop | None], Group] = {}
        self._mutex = threading.RLock()  # the garbage collection may close a coroutine that waits, under us
        self._thread: threading.Thread | None = None
        self._tasks = 0  # coroutines that wait
        self._tasks_until = 0.0  # when no more of them are expected
        self._closed = threading.Event()
        self.connection: Connection | None = None
        self.reader: Reader | None = None
        backend.on_close.append(self.close)
        backend.on_loop_end.append(self.bury_all)
        if backend.closed:  # a lease of before the settings changed: nobody would close us
            self._closed.set()

    # -- the waiters' side ------------------------------------------------------------------------------------------

    def register(self, name: str, token: str, loop: asyncio.AbstractEventLoop | None = None) -> Waiter:
        """Make a waiter that wakes can reach (a coroutine in ``loop``). Must come before its request is sent."""
        with self._mutex:
            if token in self.waiters:
                raise LockError(f"This process waits for the lock {name!r} with the same token already.", name)
            group = self._groups.get((name, loop))
            if group is None:
                group = Group(name, loop)
            waiter: Waiter
            if loop is None:
                waiter = ThreadWaiter(token, group, self)
            else:
                waiter = TaskWaiter(token, group, self, loop)
                self._tasks += 1
            self.waiters[token] = group.waiters[token] = waiter
            self._groups[group.key] = group
            group.oldest = group.oldest or waiter
        return waiter

    def unregister(self, waiter: Waiter) -> None:
        """The waiter has its lock or leaves; the next one inherits its looks."""
        group = waiter.group
        heir = None
        with self._mutex:
            if self.waiters.get(waiter.token) is not waiter:
                return  # buried
            del self.waiters[waiter.token], group.waiters[waiter.token]
            if isinstance(waiter, TaskWaiter):
                self._tasks -= 1
                self._tasks_until = monotonic() + HOT_FOR
            if group.oldest is waiter:
                group.oldest = heir = next(iter(group.waiters.values()), None)
            if not group.waiters:
                del self._groups[group.key]
        if heir is not None:
            heir.wake()

    def bury_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop has ended, and whoever still waits in it cannot be told any more: pass on what may be theirs."""
        buried: list[Waiter] = []
        with self._mutex:
            for group in [group for group in self._groups.values() if group.key[1] is loop]:
                del self._groups[group.key]
                buried += group.waiters.values()
            for waiter in buried:
                del self.waiters[waiter.token]
            self._tasks -= len(buried)
        for waiter in buried:
            self.on_stray(self.backend, "g", waiter.token, waiter.group.name)

    def schedule(self, waiter: Waiter, left_ms: int, delay: float) -> None:
        """A look found the lock busy for ``left_ms`` more, or (negative) free and meant for somebody else.

        Where messages cannot be trusted, it looks again after ``delay`` seconds.
        """
        waiter.due = monotonic() + (delay if self.polled else RECONNECTING)
        wait = BARGING if left_ms < 0 else min(left_ms / 1000, LOOK_EVERY)
        if left_ms == ENDLESS:
            wait = LOOK_EVERY
        due = monotonic() + wait + random.uniform(0, JITTER)
        group = waiter.group
        # a newcomer's look may bring the next one forward, not put it off: it does not look for the others' sake
        group.due = due if group.oldest is waiter else min(group.due, due)

    def next_look(self, waiter: Waiter) -> float | None:
        """The monotonic time at which this waiter must look unasked, if it is the one who does."""
        if self.polled:
            return waiter.due
        if waiter.group.oldest is not waiter:
            return None
        return waiter.group.due if self.ready else waiter.due

    def deadline_of(self, grant: Grant) -> float:
        """The local monotonic time at which a handoff's lease must be presumed over (never too late)."""
        if self.backend.anchor is None:
            return 0.0
        us, sent = self.backend.anchor
        # when the server's clock has jumped ahead since, the grant seems to lie in the future
        return lease_end(min(sent + (grant.us - us) / 1e6, monotonic()), grant.lease_ms)

    # -- the thread's side ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread if it does not run. Returns at once; ``ready`` follows, and waiters are told."""
        if self._thread is None:
            with self._mutex:
                if self._thread is None and not self._closed.is_set():
                    thread = threading.Thread(target=self._run, name="redislock-listener", daemon=True)
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """End the thread (settings have changed)."""
        self._closed.set()
        self.ready = False
        if self._thread is not None:
            try:
                # a message ends its wait, whatever kind of connection it reads from
                self.backend.execute((*PROBE, self.backend.channel))
            except (ResponseError, *CONNECTION_ERRORS):
                self.reconnect()
        self.tell_all()

    def reconnect(self) -> None:
        """Cut the connection: wakes do not arrive on it any more."""
        if self.reader is not None and not self.backend.memory:
            self.reader.end()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except Exception as error:
                # whatever it is (no more threads for what waiters left, say): nobody would start us again
                log_event(WARNING, "listener-disconnected", alias=self.backend.alias, error=error)
                self._closed.wait(RECONNECTING)

    def _listen(self) -> None:
        """Subscribe, read, and again when the connection is lost, until closed."""
        failing_since, delay, refused = 0.0, 0.05, RECONNECTING
        while not self._closed.is_set():
            self.connection = connection = self.backend.connect(None)
            try:
                connection.connect()
                connection.send_command("SUBSCRIBE", self.backend.channel)
                connection.read_response()
                reader = Reader(connection, self._dispatch, self._threads_may_read)
                self._subscribed(polled=not self._messages_count())
                self.reader = reader  # not before all were told: nobody can wake one who reads
                failing_since, delay, refused = 0.0, 0.05, RECONNECTING
                reader.serve(self._closed)
            except ResponseError as error:
                log_event(WARNING, "not-subscribed", alias=self.backend.alias, error=error)
                self._subscribed(polled=True)
                # for a moment (BUSY, a password that is being changed), or by rights that nobody will give
                self._closed.wait(refused)
                refused = min(refused * 2, RESUBSCRIBE_EVERY)
            except Exception as error:
                self.ready = False
                if not self._closed.is_set():
                    now = monotonic()
                    failing_since = failing_since or now
                    log_event(WARNING, "listener-disconnected", alias=self.backend.alias, error=error)
                    if now - failing_since > OUTAGE:
                        self.tell_all()
                    self._closed.wait(delay * random.uniform(0.5, 1))
                    delay = min(delay * 2, 1.0)
            finally:
                self.ready = False
                self.reader = None
                connection.disconnect()

    def _threads_may_read(self) -> bool:
        """Whether waiting threads may; fakeredis has nothing that two threads could take turns to wait for."""
        return not self._tasks and not self.backend.memory and monotonic() >= self._tasks_until

    def _messages_count(self) -> bool:
        """Whether the node that runs the scripts counts this listener as a receiver; where not, we poll."""
        # not through the pool, which may have no other use in a process of coroutines, and would keep the connection
        connection = self.backend.connect(self.backend.timeout)
        try:
            (answer,) = pipeline(connection, [(*PROBE, self.backend.channel)])
        finally:
            connection.disconnect()
        if isinstance(answer, ResponseError):
            raise answer
        return answer == 1  # type: ignore[no-any-return]

    def _subscribed(self, *, polled: bool) -> None:
        self.polled = polled
        self.generation += 1
        self.ready = True
        self.tell_all()
        self.on_connected(self.backend)

    def tell_all(self, name: str | None = None) -> None:
        """All that wait here, or all that wait for ``name``: look, you may not be in the queue any more."""
        with self._mutex:
            waiters = [waiter for waiter in self.waiters.values() if name is None or waiter.group.name == name]
        for waiter in waiters:
            waiter.tell()

    def _dispatch(self, data: bytes) -> None:
        found = _MESSAGE.fullmatch(data.decode(errors="surrogateescape"))
        if found is None:
            return  # nobody of ours has sent it
        granted, told, token, fence, us, lease_ms, name = found.groups()
        kind = granted or told
        grant = Grant(int(fence), int(us), int(lease_ms), name) if granted else None
        waiter = self.waiters.get(token) if kind in "gw" else None
        if grant is not None and monotonic() >= self.deadline_of(grant):
            # this process stood still: others may have dropped all its waiters. (Of a pool's, we know only the member)
            self.tell_all(None if waiter is None else waiter.group.name)
        if kind == "d":
            self.tell_all(name)  # it was dropped, and the others of this process may have been as well
        elif waiter is not None:
            waiter.tell(grant)
        elif is_asked_for(name):
            self.on_stray(self.backend, kind, token, name)


_listeners: dict[Backend, Listener] = {}
_mutex = threading.Lock()


def get_listener(backend: Backend) -> Listener:
    """The listener of this backend; it starts when somebody has to wait, or holds for long."""
    found = _listeners.get(backend)
    if found is None:
        with _mutex:
            found = _listeners.get(backend)
            if found is None:
                found = _listeners[backend] = Listener(backend)
                backend.on_close.append(lambda: _listeners.pop(backend, None))
    return found


def _after_fork_in_child() -> None:  # pragma: no cover (runs in forked children only)
    # Close the inherited socket without a shutdown (redis-py looks at the pid): as long as it is open here, Redis
    # would count the parent as alive after its death.
    global _mutex
    _mutex = threading.Lock()
    for listener in _listeners.values():
        if listener.connection is not None:
            listener.connection.disconnect()
    _listeners.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
