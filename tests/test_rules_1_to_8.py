"""The rules R1 to R8 of docs/protocol.rst. Each of these tests fails when its rule is taken out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any, NamedTuple

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redislock import FairLock, Lock, LockLost, LockNotOwned, LockUnavailable, force_release, listener, scripts
from django_redislock.connection import Backend, get_backend
from django_redislock.names import make_keys
from django_redislock.steps import run
from redisserver import RedisServer, redis_server

from .processes import Worker
from .proxy import Proxy, proxy

PREFIX = "redislock{0}:"
LONG = 600.0  # seconds; a test that waits for that has failed
PATIENCE = 30  # seconds; an end for waits that a broken rule would leave without one

ACQUIRE, RELEASE = scripts._ACQUIRE.sha, scripts._RELEASE.sha

Eventually = Callable[..., Any]
Start = Callable[..., Worker]
Alias = Callable[..., str]
Hold = Callable[[Lock], Lock]
Take = Callable[..., "Taker"]

# A process that waits for one lock.
WAITS = """
from django_redislock import listener
listener.LOOK_EVERY = look_every
lock = FairLock(name, ttl=ttl, blocking_timeout=60)
say("ready")
hear()
say("got" if lock.acquire() else "left", lock.fence)
hear()
lock.release()
say("released")
hear()
"""

# A process with many threads that wait for one lock; each starts when told, takes the lock and gives it back.
CROWD = """
from django_redislock import listener
listener.LOOK_EVERY = look_every

def wait(number):
    with FairLock(name, ttl=ttl, blocking_timeout=60):
        say("got", number)

say("ready")
for number in range(count):
    hear()
    threading.Thread(target=wait, args=(number,), daemon=True).start()
threading.Event().wait()
"""


class Held(NamedTuple):
    """The value of a lock's key."""

    token: str
    channel: str
    flag: str  # c(onfirmed) or h(anded over)
    fence: int
    since: int


class Look:
    """Looks at the locks from outside, by the keys of the protocol."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def held(self, name: str) -> Held | None:
        value = self.client.get(f"{PREFIX}lock:{name}")
        if value is None:
            return None
        token, channel, flag, fence, since, _ = value.decode().split(" ", 5)
        return Held(token, channel, flag, int(fence), int(since))

    def queue(self, name: str) -> list[tuple[str, int]]:
        """Tokens and tickets, first come first."""
        rows = self.client.zrange(f"{PREFIX}queue:{name}", 0, -1, withscores=True)
        return [(token.decode(), int(ticket)) for token, ticket in rows]

    def waiting(self, name: str) -> int:
        return int(self.client.zcard(f"{PREFIX}queue:{name}"))

    def channel(self, name: str, token: str) -> str:
        """Where this waiter wants to be told; "-" when it polls."""
        return str(self.client.hget(f"{PREFIX}waiters:{name}", token).decode().split(" ")[1])

    def forget_queue(self, name: str) -> None:
        self.client.delete(f"{PREFIX}queue:{name}", f"{PREFIX}waiters:{name}")

    def expire(self, name: str) -> None:
        """The lock is gone and nobody is told."""
        assert self.client.delete(f"{PREFIX}lock:{name}")

    def receivers(self, channel: str) -> int:
        return int(self.client.execute_command("PUBSUB", "NUMSUB", channel)[1])

    def now(self) -> int:
        """The server's clock, in microseconds."""
        seconds, rest = self.client.time()
        return int(seconds) * 1_000_000 + int(rest)

    def count(self, command: str) -> int:
        return int(self.client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


class Ear:
    """Hears every wake."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.pubsub = client.pubsub(ignore_subscribe_messages=False)
        self.pubsub.psubscribe(f"{PREFIX}wake:*")
        assert self.pubsub.get_message(timeout=10)["type"] == "psubscribe"

    def heard(self) -> list[str]:
        """What was sent up to now, but for probes."""
        self.client.publish(f"{PREFIX}wake:mark", "mark")
        messages = []
        while (message := self.pubsub.get_message(timeout=10)["data"].decode()) != "mark":
            if message != "p":
                messages.append(message)
        return messages


class Taker(threading.Thread):
    """A thread that takes a lock and keeps it until it may go."""

    def __init__(self, lock: Lock, *, keep: bool = True) -> None:
        super().__init__(daemon=True)
        self.lock = lock
        self.done = threading.Event()  # acquire() has returned or raised
        self.may_go = threading.Event()
        if not keep:
            self.may_go.set()
        self.taken: bool | None = None
        self.token: str | None = None
        self.fence = 0
        self.ends = 0.0  # monotonic: end of the lease as this process sees it
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.taken = self.lock.acquire()
            self.token, self.fence = self.lock.token, self.lock.fence or 0
            self.ends = monotonic() + self.lock.remaining()
            self.done.set()
            if self.taken:
                self.may_go.wait()
                self.lock.release()
        except Exception as error:
            self.error = error
        finally:
            self.done.set()

    def result(self, within: float = 20) -> bool:
        """What acquire() answered."""
        assert self.done.wait(within), "still waiting"
        if self.error is not None:
            raise self.error
        return self.taken is True

    def go(self) -> None:
        self.may_go.set()
        self.join(20)
        assert not self.is_alive()
        assert self.error is None


@pytest.fixture
def look(client: Any) -> Look:
    return Look(client)


@pytest.fixture
def take(look: Look, eventually: Eventually) -> Iterator[Take]:
    """Start threads that take a lock; with ``queued``, go on when they stand in the queue."""
    takers: list[Taker] = []

    def take(lock: Lock, *, keep: bool = True, queued: bool = True, where: Look | None = None) -> Taker:
        where = where or look
        before = where.waiting(lock.name)
        taker = Taker(lock, keep=keep)
        takers.append(taker)
        taker.start()
        if queued:
            eventually(lambda: where.waiting(lock.name) > before)
        return taker

    yield take
    for taker in takers:
        taker.may_go.set()
    for taker in takers:
        taker.join(PATIENCE + 10)


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Acquire a lock in this thread; what is still held at the end is given back. Ask for it last."""
    locks: list[Lock] = []

    def hold(lock: Lock) -> Lock:
        assert lock.acquire()
        locks.append(lock)
        return lock

    yield hold
    for lock in locks:
        try:
            lock.release()
        except LockUnavailable:
            lock._release_later(lock._lease())
        except LockNotOwned:
            pass


@pytest.fixture
def alias(settings: Any) -> Alias:
    """Add an alias to CACHES."""

    def alias(url: str, **options: Any) -> str:
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "other": cache}
        return "other"

    return alias


@pytest.fixture
def own(alias: Alias) -> Iterator[tuple[RedisServer, str, Look]]:
    """A server of one's own, its alias, and a look at it."""
    with redis_server() as server, server.client() as client:
        yield server, alias(server.url), Look(client)


@pytest.fixture
def bad_network(server: RedisServer, alias: Alias) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the server, and the alias that goes through it."""
    with proxy(server.port) as running:
        yield running, alias(running.url)


@pytest.fixture
def muted(client: Any, server: RedisServer, alias: Alias) -> Iterator[tuple[str, str]]:
    """The URL and alias of a user without a right to any channel."""
    client.execute_command("ACL", "SETUSER", "muted", "on", ">secret", "~*", "+@all", "resetchannels")
    url = f"redis://muted:secret@127.0.0.1:{server.port}/0"
    yield url, alias(url)
    client.execute_command("ACL", "DELUSER", "muted")


def fair(name: str, **options: Any) -> FairLock:
    return FairLock(name, **{"blocking_timeout": PATIENCE, **options})


def freeze(worker: Worker) -> None:
    """SIGSTOP, and wait until it stands."""
    worker.signal(signal.SIGSTOP)
    os.waitpid(worker.pid, os.WUNTRACED)


def warm_up(using: str) -> None:
    """Let Redis and the connection know the scripts."""
    with FairLock("warm-up", using=using):
        pass


def request(backend: Backend, token: str, *, mode: str = "F", wait: str = "0", ticket: int | None = None) -> int:
    """Send the request of one whom nobody here knows: no listener, no watchdog. Answers the state."""
    keys = make_keys(backend.prefix, "seat")
    taken = run(
        scripts.acquire(
            backend, keys, "seat", token, ttl=600_000, mode=mode, wait=wait, ticket=ticket, owner="a test", until=0.0
        )
    )
    return taken.state


def listening(using: str | None, eventually: Eventually) -> listener.Listener:
    """The listener of an alias, when it stands ready."""
    ears = listener.get_listener(get_backend(using))
    ears.start()
    eventually(lambda: ears.ready)
    return ears


# -- R1 ----------------------------------------------------------------------------------------------------------------


def test_a_waiter_stopped_for_longer_than_its_handoff_lease_does_not_enter_on_the_old_wake(
    start: Start, look: Look, eventually: Eventually, hold: Hold
) -> None:
    """R1: past the deadline that the wake tells, the waiter looks again instead of entering."""
    worker = start(WAITS, name="seat", ttl=1.0, look_every=LONG)
    worker.expect("ready")
    first = hold(fair("seat"))
    worker.tell()
    eventually(lambda: look.waiting("seat"))
    freeze(worker)
    first.release()
    assert look.held("seat"), "handed over to the stopped process"
    eventually(lambda: look.held("seat") is None)
    second = hold(fair("seat"))
    fence = second.fence
    worker.signal(signal.SIGCONT)
    eventually(lambda: look.waiting("seat"))
    second.release()
    (its_fence,) = worker.expect("got")
    assert fence is not None
    assert int(its_fence) > fence


def test_a_local_lease_counts_from_the_moment_its_request_was_sent(
    bad_network: tuple[Proxy, str], client: Any, hold: Hold
) -> None:
    """R1: an answer that comes late makes the local lease shorter, never longer than the one in Redis."""
    network, using = bad_network
    warm_up(using)
    network.delay_answer(ACQUIRE, 0.5)
    lock = hold(FairLock("seat", ttl=3, auto_renew=False, using=using))
    ends = monotonic() + lock.remaining()
    assert ends <= client.pttl(f"{PREFIX}lock:seat") / 1000 + monotonic() + 0.001
    network.delay_answer("lock:seat", 0.5)
    lock.reacquire()
    ends = monotonic() + lock.remaining()
    assert ends <= client.pttl(f"{PREFIX}lock:seat") / 1000 + monotonic() + 0.001


def test_a_handed_over_lease_ends_here_no_later_than_in_redis_when_its_wake_comes_late(
    bad_network: tuple[Proxy, str], look: Look, client: Any, take: Take, hold: Hold
) -> None:
    """R1: the wake tells the server's time of the grant; the waiter's lease counts from there."""
    network, using = bad_network
    holder = hold(fair("seat"))
    waiter = take(fair("seat", ttl=3, auto_renew=False, using=using))
    late = network.delay_message(f"g {look.queue('seat')[0][0]}", 0.5)
    released = monotonic()
    holder.release()
    assert waiter.result()
    assert monotonic() - released >= 0.5, "it was the wake that told it"
    assert late.over.wait(10)
    assert waiter.ends <= client.pttl(f"{PREFIX}lock:seat") / 1000 + monotonic() + 0.001


def test_a_handed_over_lease_is_no_longer_than_it_is_when_the_clock_of_the_server_has_jumped_ahead(
    look: Look, take: Take, hold: Hold
) -> None:
    """R1: whenever the grant was made, it was not made in the future."""
    holder = hold(fair("seat"))
    waiter = take(fair("seat", ttl=3, auto_renew=False))
    look.queue("seat")
    backend = get_backend()
    assert backend.anchor
    us, sent = backend.anchor
    backend.anchor = (us - 3_600_000_000, sent)  # what the server said before it jumped
    holder.release()
    assert waiter.result()
    assert waiter.ends <= monotonic() + 3


def test_acquire_never_answers_true_when_the_lease_is_over_already(
    bad_network: tuple[Proxy, str], look: Look, hold: Hold
) -> None:
    """R1: a grant that arrives after its own end is no grant; acquire asks again."""
    network, using = bad_network
    warm_up(using)
    late = network.delay_answer(ACQUIRE, 1.3)
    lock = hold(FairLock("seat", ttl=1, auto_renew=False, using=using))
    assert lock.remaining() > 0
    assert late.over.wait(10)
    held = look.held("seat")
    assert held is not None
    assert (held.token, held.fence) == (lock.token, lock.fence)


# -- R2 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FairLock, Lock])
@pytest.mark.parametrize("by", ["acquire", "release", "withdraw", "renew", "force"])
def test_a_script_that_may_not_write_wakes_nobody(
    by: str, kind: type[Lock], own: tuple[RedisServer, str, Look], take: Take
) -> None:
    """R2: every script's first effect is a write; refused there (NOREPLICAS), it has told nobody anything."""
    _, using, look = own
    backend = get_backend(using)
    keys = make_keys(backend.prefix, "seat")
    holder, stranger = "holder-holder-holder-1", "stranger-stranger-str1"
    assert request(backend, holder) == scripts.GRANTED
    waiter = take(kind("seat", using=using, blocking_timeout=PATIENCE), where=look)
    ((token, _),) = look.queue("seat")
    calls: dict[str, Callable[[], object]] = {
        "acquire": lambda: request(backend, stranger),
        "release": lambda: run(scripts.release(backend, keys, "seat", holder)),
        "withdraw": lambda: run(scripts.release(backend, keys, "seat", stranger)),
        "renew": lambda: run(scripts.renew(backend, keys, "seat", holder, 600_000, "keep", 600_000)),
        "force": lambda: run(scripts.force(backend, keys, "seat")),
    }
    if by in ("acquire", "withdraw", "renew"):
        look.expire("seat")  # they find it free, with somebody waiting
    ear = Ear(look.client)
    if kind is Lock:  # a waiter that may still be overtaken is told to come; one of a FairLock is handed the lock
        look.client.zadd(f"{PREFIX}queue:seat", {token: look.now()})
    look.client.config_set("min-replicas-to-write", 1)
    with pytest.raises(LockUnavailable, match="Not enough good replicas"):
        calls[by]()
    assert ear.heard() == []
    assert not waiter.done.is_set()
    look.client.config_set("min-replicas-to-write", 0)
    run(scripts.force(backend, keys, "seat"))
    assert waiter.result()
    ear.pubsub.close()


@pytest.mark.parametrize("unknown", [False, True])
def test_a_holder_can_release_and_hand_over_when_redis_is_out_of_memory(
    unknown: bool, own: tuple[RedisServer, str, Look], take: Take, hold: Hold
) -> None:
    """R2: passing on is DEL, then SET: the first write of a script is one that Redis allows at its limit of memory."""
    _, using, look = own
    backend = get_backend(using)
    holder = hold(FairLock("seat", using=using))
    waiter = take(fair("seat", using=using), where=look)
    look.client.config_set("maxmemory", 1)
    with pytest.raises(LockUnavailable, match="maxmemory"):
        FairLock("other", using=using).acquire()
    keys = make_keys(backend.prefix, "seat")
    run(scripts.release(backend, keys, "seat", holder.token or "", unknown=unknown))  # what release() sends
    assert waiter.result()
    held = look.held("seat")
    assert held is not None
    assert held.fence == waiter.fence
    look.client.config_set("maxmemory", 0)


def test_a_holder_that_may_not_publish_hands_over_all_the_same(
    muted: tuple[str, str], look: Look, take: Take, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    """R2: an error of PUBLISH means "cannot tell", never 0: the waiter keeps its place and finds out by itself."""
    monkeypatch.setattr(listener, "LOOK_EVERY", 1.0)
    holder = hold(FairLock("seat", using=muted[1]))
    waiter = take(fair("seat"))
    ((token, _),) = look.queue("seat")
    holder.release()
    assert not FairLock("seat").acquire(blocking=False), "somebody overtook the waiter"
    held = look.held("seat")
    assert held is not None
    assert held.token == token
    assert waiter.result()
    assert waiter.fence == held.fence


# -- R3 ----------------------------------------------------------------------------------------------------------------


def test_a_listener_that_is_refused_for_a_moment_is_soon_woken_again(
    muted: tuple[str, str], client: Any, eventually: Eventually
) -> None:
    """R3: who may not subscribe polls; thirty seconds of that are for those whom nobody will give the right."""
    ears = listening(muted[1], eventually)
    assert ears.polled
    client.execute_command("ACL", "SETUSER", "muted", "allchannels")
    allowed = monotonic()
    eventually(lambda: ears.ready and not ears.polled)
    assert monotonic() - allowed < listener.RESUBSCRIBE_EVERY / 2


def test_a_killed_waiter_is_dropped_by_the_release_that_meets_it(
    start: Start, look: Look, take: Take, eventually: Eventually, hold: Hold
) -> None:
    """R3: 0 receivers = process gone = drop; the next living waiter has the lock when release returns."""
    worker = start(WAITS, name="seat", ttl=30.0, look_every=LONG)
    worker.expect("ready")
    holder = hold(fair("seat"))
    worker.tell()
    ((dead, _),) = eventually(lambda: look.queue("seat"))
    waiter = take(fair("seat"))
    alive = look.queue("seat")[1][0]
    channel = look.channel("seat", dead)
    worker.kill()
    eventually(lambda: look.receivers(channel) == 0)
    holder.release()
    held = look.held("seat")
    assert held is not None
    assert held.token == alive
    assert waiter.result()


@pytest.fixture(params=["no-right-to-channels", "probe-not-counted"])
def polled(request: pytest.FixtureRequest, client: Any, server: RedisServer, alias: Alias) -> Iterator[str]:
    """An alias whose waiters no message can be trusted to reach."""
    if request.param == "no-right-to-channels":
        yield request.getfixturevalue("muted")[1]
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "PROBE", ("EVAL", "redis.pcall('PUBLISH', ARGV[1], 'p') return 0", 0))
        yield alias(server.url)


def test_waiters_that_no_message_reaches_come_by_themselves_and_in_order(
    polled: str, look: Look, take: Take, hold: Hold
) -> None:
    """R3: where the probe does not count 1, waiters queue as polled, without a channel, and look by the clock."""
    holder = hold(fair("seat", using=polled))
    waiters = [take(fair("seat", using=polled), keep=False) for _ in range(4)]
    assert [look.channel("seat", token) for token, _ in look.queue("seat")] == ["-"] * 4
    holder.release()
    assert all(waiter.result() for waiter in waiters)
    fences = [waiter.fence for waiter in waiters]
    assert fences == sorted(fences)


def test_a_lock_left_free_for_a_polled_waiter_is_not_given_to_a_newcomer(
    polled: str, look: Look, take: Take, hold: Hold
) -> None:
    """R3: a polled waiter is never dropped for a 0 and never handed a grant; the lock waits for it."""
    holder = hold(fair("seat", using=polled))
    waiter = take(fair("seat", using=polled))
    ((token, ticket),) = look.queue("seat")
    holder.release()
    assert not FairLock("seat", using=polled).acquire(blocking=False)
    assert look.queue("seat") in ([(token, ticket)], [])  # in its place, or in already
    held = look.held("seat")
    assert held is None or (held.token, held.flag) == (token, "c")
    assert waiter.result()
    assert waiter.token == token


def test_a_polled_waiter_keeps_its_place_behind_a_long_holder(
    polled: str, look: Look, take: Take, eventually: Eventually, hold: Hold
) -> None:
    """R3: a polled waiter is counted out when it has not looked for four of its delays, so it must look."""
    holder = hold(fair("seat", using=polled))
    waiter = take(fair("seat", using=polled))
    ((token, _),) = look.queue("seat")

    def seen() -> int:
        return int(look.client.hget(f"{PREFIX}waiters:seat", token).split(b" ")[3])

    first = seen()
    eventually(lambda: seen() > first + 1_000_000, within=10)
    holder.release()
    assert not FairLock("seat", using=polled).acquire(blocking=False)
    assert waiter.result()


def test_a_killed_polled_waiter_is_dropped_when_it_misses_its_looks(
    start: Start,
    muted: tuple[str, str],
    look: Look,
    take: Take,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    hold: Hold,
) -> None:
    """R3: polled waiters are dropped when they have not looked for four of their delays."""
    monkeypatch.setattr(listener, "LOOK_EVERY", 0.5)
    choose = 'from django.conf import settings\nsettings.CACHES["default"]["LOCATION"] = url\n'
    worker = start(choose + WAITS, name="seat", ttl=30.0, look_every=LONG, url=muted[0])
    worker.expect("ready")
    holder = hold(fair("seat"))
    worker.tell()
    ((dead, _),) = eventually(lambda: look.queue("seat"))
    waiter = take(fair("seat"))
    assert look.channel("seat", dead) == "-"
    worker.kill()
    holder.release()
    assert waiter.result(within=10)


def test_a_polled_wait_ends_in_time_and_leaves_the_queue(polled: str, look: Look, take: Take, hold: Hold) -> None:
    """R3: a polled waiter whose time is over answers False and is in no queue."""
    hold(FairLock("seat", using=polled))
    waiter = take(FairLock("seat", using=polled, blocking_timeout=1))
    assert not waiter.result()
    assert look.waiting("seat") == 0


# -- R4 ----------------------------------------------------------------------------------------------------------------


def stuck_crowd(start: Start, look: Look, eventually: Eventually) -> Worker:
    """A process whose four waiters are the first in the queue, stopped."""
    crowd = start(CROWD, name="seat", ttl=1.0, count=4, look_every=LONG)
    crowd.expect("ready")
    for number in range(4):
        crowd.tell()
        eventually(lambda number=number: look.waiting("seat") == number + 1)
    freeze(crowd)
    return crowd


def test_a_stuck_process_with_four_waiters_costs_one_handoff_lease(
    start: Start, look: Look, take: Take, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    """R4: an unconfirmed handoff whose lease ended leaves a trace; who finds it drops every waiter of that process."""
    monkeypatch.setattr(listener, "LOOK_EVERY", 0.3)
    holder = hold(fair("seat"))
    stuck_crowd(start, look, eventually)
    waiter = take(fair("seat"))
    ear = Ear(look.client)
    holder.release()
    assert waiter.result()
    receivers = [message.split(" ")[1] for message in ear.heard() if message.startswith("g ")]
    assert len([token for token in receivers if token != waiter.token]) == 1
    ear.pubsub.close()


@pytest.mark.parametrize("busy", [True, False])
def test_the_waiters_of_a_process_that_was_stuck_come_back_with_their_tickets(
    busy: bool,
    start: Start,
    look: Look,
    take: Take,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    hold: Hold,
) -> None:
    """R4: dropped as stuck, but alive: when the process runs again, all its waiters stand where they stood."""
    monkeypatch.setattr(listener, "LOOK_EVERY", 0.3)
    holder = hold(fair("seat"))
    crowd = stuck_crowd(start, look, eventually)
    before = look.queue("seat")
    waiter = take(fair("seat"))
    holder.release()
    assert waiter.result()
    assert look.queue("seat") == []
    if not busy:
        waiter.go()
    crowd.signal(signal.SIGCONT)
    if busy:
        eventually(lambda: look.queue("seat") == before)
        waiter.go()
    # nobody has to wait for a look by the clock, which would come when the first holder's lease (30 s) would have ended
    got = [crowd.expect("got", within=15)[0] for _ in range(4)]
    assert (got if busy else sorted(got)) == ["0", "1", "2", "3"]


FORKS = """
def wait():
    FairLock(name, blocking_timeout=60).acquire()

other = FairLock("other")
other.acquire()
threading.Thread(target=wait, daemon=True).start()
say("ready")
hear()
child = os.fork()
if not child:
    wait()
    time.sleep(60)
say("child", child)
hear()
"""


def test_a_forked_child_does_not_keep_its_dead_parent_among_the_living(
    start: Start, look: Look, eventually: Eventually, hold: Hold
) -> None:
    """R4: a forked child closes the inherited socket of the listener and has a channel of its own."""
    holder = hold(fair("seat"))
    parent = start(FORKS, name="seat")
    parent.expect("ready")
    eventually(lambda: look.waiting("seat") == 1)
    parent.tell()
    child = int(parent.expect("child")[0])
    try:
        eventually(lambda: look.waiting("seat") == 2)
        tokens = [token for token, _ in look.queue("seat")]
        channels = [look.channel("seat", token) for token in tokens]
        assert channels[0] != channels[1]
        eventually(lambda: [look.receivers(channel) for channel in channels] == [1, 1])
        parent.kill()
        eventually(lambda: [look.receivers(channel) for channel in channels] == [0, 1])
        holder.release()
        held = look.held("seat")
        assert held is not None
        assert held.token == tokens[1]
    finally:
        os.kill(child, signal.SIGKILL)


# -- R5 ----------------------------------------------------------------------------------------------------------------


def test_every_process_looks_again_when_the_lease_of_the_new_holder_ends(
    start: Start, look: Look, take: Take, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    """R5: looks are due at the end of the lease of whoever holds the lock now, not of whoever held it at first."""
    monkeypatch.setattr(listener, "LOOK_EVERY", LONG)
    worker = start(WAITS, name="seat", ttl=30.0, look_every=LONG)
    worker.expect("ready")
    hold(FairLock("seat", ttl=1.5, auto_renew=False))  # never released in time
    second = take(fair("seat", ttl=1.5, auto_renew=False), queued=False)  # nor this
    eventually(lambda: look.waiting("seat") == 1 or second.taken)
    worker.tell()
    assert second.result()
    worker.expect("got", within=15)
    second.may_go.set()
    second.join(20)
    assert isinstance(second.error, LockLost)


def test_a_lock_that_vanished_is_found_long_before_the_lease_that_it_had(
    look: Look, take: Take, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    """R5: looks come at the latest every 5 s (here 0.3 s), however long the holder's lease is."""
    monkeypatch.setattr(listener, "LOOK_EVERY", 0.3)
    hold(FairLock("seat", ttl=LONG))
    waiter = take(fair("seat"))
    look.expire("seat")
    assert waiter.result(within=10)


def test_the_next_waiter_of_the_process_inherits_the_looks_of_one_that_leaves(
    look: Look, take: Take, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    """R5: looks are run on behalf of the oldest waiter of a process, and go over to the next when it leaves."""
    monkeypatch.setattr(listener, "LOOK_EVERY", 2.0)
    hold(FairLock("seat", ttl=LONG))
    leaves = take(fair("seat", blocking_timeout=1))
    stays = take(fair("seat"))
    assert not leaves.result()
    look.expire("seat")
    assert stays.result(within=10)


def test_twenty_waiters_of_one_process_look_no_more_often_than_one(
    look: Look, take: Take, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    """R5: looks are scheduled per process and name, not per waiter."""
    monkeypatch.setattr(listener, "LOOK_EVERY", 0.2)
    holder = hold(FairLock("seat", ttl=LONG))
    waiters = [take(fair("seat"), keep=False) for _ in range(20)]
    before, began = look.count("evalsha"), monotonic()
    eventually(lambda: look.count("evalsha") >= before + 8)
    assert monotonic() - began > 7 * 0.2
    holder.release()
    assert all(waiter.result() for waiter in waiters)


# -- R6 ----------------------------------------------------------------------------------------------------------------


def test_all_waiters_stand_in_the_queue_again_after_a_reconnect_in_their_order(
    look: Look, take: Take, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    """R6: every (re)subscription re-queues all waiters of the process, with token and ticket, not only the first."""
    monkeypatch.setattr(listener, "LOOK_EVERY", LONG)
    holder = hold(FairLock("seat", ttl=LONG))
    waiters = [take(fair("seat"), keep=False) for _ in range(6)]
    before = look.queue("seat")
    look.client.set(f"{PREFIX}lock:seat", "x")  # hides the holder from those who come too early
    look.forget_queue("seat")  # as those do who find 0 receivers while the connection is down
    look.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    eventually(lambda: look.queue("seat") == before)
    force_release("seat")
    assert all(waiter.result() for waiter in waiters)
    fences = [waiter.fence for waiter in waiters]
    assert fences == sorted(fences)
    with pytest.raises(LockLost):
        holder.release()


def test_a_waiter_queued_by_a_request_from_before_a_reconnect_looks_again(
    bad_network: tuple[Proxy, str],
    look: Look,
    take: Take,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    hold: Hold,
) -> None:
    """R6: "queued", said to a request that was sent under an older subscription, means another look."""
    monkeypatch.setattr(listener, "LOOK_EVERY", LONG)
    network, using = bad_network
    ears = listening(using, eventually)
    hold(FairLock("seat", ttl=LONG))
    answer = network.hold_answer("lock:seat")
    waiter = take(fair("seat", using=using), keep=False)
    assert answer.caught.wait(10)
    generation = ears.generation
    look.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    look.forget_queue("seat")
    eventually(lambda: ears.generation > generation and ears.ready)
    answer.let_go()
    eventually(lambda: look.waiting("seat") == 1)
    force_release("seat")
    assert waiter.result()


def test_a_wake_that_overtakes_the_answer_to_the_request_finds_its_waiter(
    bad_network: tuple[Proxy, str], look: Look, take: Take, eventually: Eventually, hold: Hold
) -> None:
    """R6: a waiter is known to the listener before its request is sent."""
    network, using = bad_network
    listening(using, eventually)
    holder = hold(fair("seat"))
    answer = network.hold_answer("lock:seat")
    waiter = take(fair("seat", using=using))
    assert answer.caught.wait(10)
    holder.release()
    held = look.held("seat")
    assert held is not None
    get_backend(using).execute(("PUBLISH", get_backend(using).channel, f"w {held.token} seat"))
    answer.let_go()
    assert waiter.result()
    assert waiter.fence == held.fence


def test_waiters_that_leave_while_the_listener_reconnects_are_in_no_queue(look: Look, take: Take, hold: Hold) -> None:
    """R6: re-queue and withdraw of a waiter never cross."""
    hold(FairLock("seat", ttl=LONG))
    waiters = [take(fair("seat", blocking_timeout=0.05 * (1 + number)), queued=False) for number in range(20)]
    while not all(waiter.done.is_set() for waiter in waiters):
        look.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        sleep(0.03)
    assert not any(waiter.result() for waiter in waiters)
    assert look.queue("seat") == []


# -- R7 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["F", "L"])
def test_a_lock_passed_on_to_a_waiter_that_has_left_goes_to_the_next_at_once(
    kind: str, look: Look, take: Take, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    """R7: a wake for a token that nobody here waits for is answered at once with withdraw and release."""
    monkeypatch.setattr(listener, "LOOK_EVERY", LONG)
    backend = listening(None, eventually).backend
    holder = hold(FairLock("seat", ttl=LONG))
    ghost = "ghost-ghost-ghost-ghost"
    late = 60_000_000 if kind == "L" else 0  # a Lock's waiter that stays for more than its first 100 ms
    assert request(backend, ghost, mode=kind, wait="1", ticket=look.now() - late) != scripts.GRANTED
    waiter = take(fair("seat"))
    assert look.queue("seat")[0][0] == ghost
    holder.release()
    assert waiter.result(within=10)  # the handoff to the ghost has a lease of 200 s


def test_a_withdrawal_that_could_not_be_sent_is_sent_later(
    bad_network: tuple[Proxy, str], look: Look, take: Take, eventually: Eventually, hold: Hold
) -> None:
    """R7: withdraws that could not be sent are retried in the background."""
    network, using = bad_network
    hold(FairLock("seat", ttl=LONG))
    waiter = take(fair("seat", blocking_timeout=1, using=using))
    network.cut()
    with pytest.raises(LockUnavailable):
        waiter.result()
    assert look.waiting("seat") == 1
    refused = network.refused
    eventually(lambda: network.refused >= refused + 5)  # the first tries to tell Redis in the background among them
    network.mend()
    eventually(lambda: look.waiting("seat") == 0)


def test_an_interrupted_waiter_leaves_the_queue(start: Start, look: Look, eventually: Eventually, hold: Hold) -> None:
    """R7: whatever ends a wait, Redis is told; here it is Ctrl-C."""
    code = """
lock = FairLock("seat", blocking_timeout=60)
say("ready")
hear()
try:
    lock.acquire()
except KeyboardInterrupt:
    say("interrupted")
hear()
"""
    worker = start(code)
    worker.expect("ready")
    hold(FairLock("seat"))
    worker.tell()
    eventually(lambda: look.waiting("seat") == 1)
    worker.signal(signal.SIGINT)
    worker.expect("interrupted")
    eventually(lambda: look.waiting("seat") == 0)


# -- R8 ----------------------------------------------------------------------------------------------------------------


def test_an_acquire_that_arrives_after_its_repetition_and_the_release_leaves_no_orphan(
    server: RedisServer, alias: Alias, look: Look, hold: Hold
) -> None:
    """R8: releasing a token with an acquire of unknown outcome leaves a mark that the late acquire honours."""
    with proxy(server.port) as network:
        using = alias(network.url, SOCKET_TIMEOUT=0.2)
        warm_up(using)
        late = network.hold_request("lock:seat")
        lock = hold(FairLock("seat", using=using))
        assert late.caught.is_set()
        lock.release()
        late.let_go()
        assert late.over.wait(10)
        assert look.held("seat") is None
        assert look.waiting("seat") == 0


def test_an_acquire_that_arrives_after_its_caller_gave_up_leaves_no_orphan(
    server: RedisServer, alias: Alias, look: Look, client: Any, eventually: Eventually
) -> None:
    """R8: the same for a token that was withdrawn because Redis did not answer."""
    with proxy(server.port) as network:
        using = alias(network.url, SOCKET_TIMEOUT=0.1)
        warm_up(using)
        late = [network.hold_request(ACQUIRE) for _ in range(30)]
        with pytest.raises(LockUnavailable):
            FairLock("seat", using=using).acquire(blocking=False)
        eventually(lambda: client.keys(f"{PREFIX}gone:*"))
        for trouble in late:
            trouble.let_go()
        met = [trouble for trouble in late if trouble.caught.is_set()]
        assert met
        assert all(trouble.over.wait(10) for trouble in met)
        assert look.held("seat") is None


def test_a_request_that_arrives_after_its_waiter_left_is_in_no_queue(
    server: RedisServer, alias: Alias, look: Look, eventually: Eventually, hold: Hold
) -> None:
    """R8: the mark keeps a late request out of the queue, too."""
    with proxy(server.port) as network:
        using = alias(network.url, SOCKET_TIMEOUT=0.2)
        hold(FairLock("seat", ttl=LONG))
        listening(using, eventually)
        warm_up(using)
        late = network.hold_request("lock:seat")
        assert not FairLock("seat", using=using, blocking_timeout=1).acquire()
        late.let_go()
        assert late.over.wait(10)
        assert look.waiting("seat") == 0


def test_a_release_whose_answer_was_lost_has_succeeded(bad_network: tuple[Proxy, str], look: Look, hold: Hold) -> None:
    """R8: a repeated release that finds no token within the local lease did its work the first time."""
    network, using = bad_network
    lock = hold(FairLock("seat", using=using))
    lost = network.lose_answer("lock:seat")
    lock.release()
    assert lost.over.is_set()
    assert look.held("seat") is None
    with pytest.raises(LockNotOwned):
        lock.release()


def test_a_release_that_failed_may_be_tried_again_and_then_has_succeeded(
    bad_network: tuple[Proxy, str], look: Look, hold: Hold
) -> None:
    """R8: the same when it is the caller who repeats it, after LockUnavailable."""
    network, using = bad_network
    lock = hold(FairLock("seat", using=using))
    lost = network.lose_answer("lock:seat", times=1000)
    with pytest.raises(LockUnavailable):
        lock.release()
    lost.times = 0
    assert not lock.locked()  # over a connection that works: the release below is sent once
    lock.release()
    assert look.held("seat") is None


def test_a_lock_whose_release_failed_is_not_taken_again_without_asking_redis(
    bad_network: tuple[Proxy, str], look: Look, hold: Hold
) -> None:
    """R8: the release may have run, and somebody else hold the lock; a reentrant acquire must not say it is ours."""
    network, using = bad_network
    warm_up(using)
    lock = hold(FairLock("seat", using=using, reentrant=True))
    lost = network.lose_answer("lock:seat", times=1000)
    with pytest.raises(LockUnavailable):
        lock.release()
    lost.times = 0
    hold(FairLock("seat", token="a-token-of-somebody-else"))
    assert not lock.acquire(blocking=False)


def test_who_could_not_release_a_lock_may_wait_for_it_like_anybody(
    bad_network: tuple[Proxy, str], look: Look, hold: Hold
) -> None:
    """R8: nothing renews it any more, so this is no waiting for oneself without end."""
    network, using = bad_network
    warm_up(using)
    lock = hold(FairLock("seat", using=using))
    lost = network.lose_answer("lock:seat", times=1000)
    with pytest.raises(LockUnavailable):
        lock.release()
    lost.end()
    assert lock.acquire(blocking_timeout=None)


def test_a_block_whose_end_does_not_reach_redis_frees_its_lock_when_redis_is_there_again(
    bad_network: tuple[Proxy, str], look: Look, eventually: Eventually
) -> None:
    """R8: nobody can try that release again, and the others should not have to wait for the TTL."""
    network, using = bad_network
    with pytest.raises(LockUnavailable), FairLock("seat", ttl=600, using=using):
        network.cut()
    assert look.held("seat")
    network.mend()
    eventually(lambda: not look.held("seat"))


def test_a_release_that_finds_no_token_at_its_first_try_says_that_the_lock_was_lost(look: Look, hold: Hold) -> None:
    """R8: only a repeated release may find nothing."""
    lock = hold(FairLock("seat"))
    look.expire("seat")
    with pytest.raises(LockLost):
        lock.release()


def test_a_grant_whose_answer_was_lost_is_taken_by_the_repetition(
    bad_network: tuple[Proxy, str], look: Look, hold: Hold
) -> None:
    """R8: acquire is idempotent per token: not busy because of itself."""
    network, using = bad_network
    warm_up(using)
    lost = network.lose_answer("lock:seat")
    lock = hold(FairLock("seat", blocking=False, using=using))
    assert lost.over.is_set()
    held = look.held("seat")
    assert held is not None
    assert (held.token, held.fence) == (lock.token, lock.fence)
    lock.release()
    assert look.held("seat") is None


class CountingRetry(Retry):
    """The retries of an alias, and how often they were asked."""

    asked = 0

    def call_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        CountingRetry.asked += 1
        return super().call_with_retry(*args, **kwargs)


def test_no_command_of_ours_is_repeated_by_the_retries_of_the_alias(
    server: RedisServer, alias: Alias, look: Look, take: Take, monkeypatch: pytest.MonkeyPatch, hold: Hold
) -> None:
    """R8: our connections have redis-py's retries off, whatever the alias says; ours know that they repeat."""
    monkeypatch.setattr(CountingRetry, "asked", 0)
    with proxy(server.port) as network:
        retries = {
            "retry": CountingRetry(NoBackoff(), 10),
            "retry_on_error": [redis.ConnectionError],
            "retry_on_timeout": True,
        }
        using = alias(network.url, CONNECTION_POOL_KWARGS=retries)
        lock = hold(fair("seat", using=using))
        waiter = take(fair("seat", using=using))
        lost = network.lose_answer(RELEASE)
        others = network.delay_answer(RELEASE, 0, times=1000)
        lock.release()
        assert lost.over.is_set()
        assert others.met == 1, "sent twice in all"
        assert waiter.result()
        waiter.go()
        network.cut()
        with pytest.raises(LockUnavailable):
            lock.acquire()
        assert CountingRetry.asked == 0
