"""What can go wrong between the locks and Redis, injected into a trial: by real means where possible, else by a proxy.

Each fault is one row of the documentation's table "What happens when" (docs/faults.rst).
"""

from __future__ import annotations

import random
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from django_redis.cache import RedisCache

from redisserver import RedisServer, redis_server
from tests.helpers.ways import Sentinels

from .clock import Clock, server_with_clock
from .trial import AFTER, TTL, Trial

LONG = TTL + 0.3  # seconds: longer than any lease


class Fault(NamedTuple):
    """``strike`` injects the fault and ends it. ``two``: whether two can ever believe at once that they hold the lock.

    ``server``: a special server, made for this fault; None: any server will do.
    """

    title: str
    strike: Callable[[Trial], None]
    holder: str
    waiters: str
    two: str = "no"
    network: bool = False  # it needs a worker behind a proxy
    server: Callable[[], AbstractContextManager[RedisServer]] | None = None
    holds: Sequence[float] | None = None  # seconds; where other lengths would show less
    ttl: float | None = None  # the same; nobody is interrupted then, or there would be hardly any long sections


# -- processes ---------------------------------------------------------------------------------------------------------


def kill_process(run: Trial) -> None:
    victim = run.any(killable=True)
    run.kill(victim)
    run.add(proxied=victim.label in run.proxies)


def stop_process(run: Trial) -> None:
    victim = run.any()
    with run.trouble(victim):
        victim.signal(signal.SIGSTOP)
        run.last(LONG)
        victim.signal(signal.SIGCONT)


# -- connections and the network ---------------------------------------------------------------------------------------


def kill_connections(run: Trial) -> None:
    with run.trouble():  # a caller with a timeout of milliseconds may have no time for a third try
        for _ in range(20):
            run.redis("CLIENT", "KILL", "TYPE", "normal")
            run.last(0.05)


def kill_subscriptions(run: Trial) -> None:
    with run.trouble():
        for _ in range(10):
            run.redis("CLIENT", "KILL", "TYPE", "pubsub")
            run.last(0.1)


def delay_answers(run: Trial) -> None:
    victim = run.proxied()
    with run.trouble(victim):
        trouble = run.proxies[victim.label].delay_answer("EVALSHA", 0.3, times=10**9, every=10)
        run.last(1)
        trouble.end()


def lose_answers(run: Trial) -> None:
    victim = run.proxied()
    with run.trouble(victim):
        trouble = run.proxies[victim.label].lose_answer("EVALSHA", times=10**9, every=10)
        run.last(1)
        trouble.end()


def tear_answers(run: Trial) -> None:
    victim = run.proxied()
    with run.trouble(victim):
        trouble = run.proxies[victim.label].tear_answer("EVALSHA", times=10**9, every=10)
        run.last(1)
        trouble.end()


def partition(run: Trial) -> None:
    victim = run.proxied()
    with run.trouble(victim, after=5):  # requests that were on their way wait for their own timeout
        run.proxies[victim.label].partition()
        run.last(LONG)
        run.proxies[victim.label].heal()


def swallow_wakes(run: Trial) -> None:
    victim = run.proxied()
    with run.trouble(victim, after=TTL + AFTER):  # a handoff whose wake was swallowed is discovered when its lease ends
        trouble = run.proxies[victim.label].swallow_message("message\r\n", times=10**9)
        run.last(LONG)
        trouble.end()


# -- the server --------------------------------------------------------------------------------------------------------


def restart_empty(run: Trial) -> None:
    with run.trouble(forgets=True):
        run.server.stop()
        run.server.start()


def restart(run: Trial) -> None:
    with run.trouble():
        run.server.stop()
        run.server.start()


def restart_slowly(run: Trial) -> None:
    with run.trouble():
        # while loading, Redis answers others every two megabytes; only newer versions can be set to do so more often
        run.redis("EVAL", "for i = 1, 100 do redis.call('SET', 'page:' .. i, string.rep('x', 400000)) end", 0)
        run.redis("CONFIG", "SET", "rdbcompression", "no")
        run.client.shutdown(save=True)
        run.server.stop()
        run.server.options["key-load-delay"] = "10000"  # microseconds for each key
        run.server.start()
        del run.server.options["key-load-delay"]
        (run.server.folder / "dump.rdb").unlink()  # the next restart may be meant to be empty
        clear_pages(run)


def stop_server(run: Trial) -> None:
    assert run.server.process is not None
    with run.trouble():
        run.server.process.send_signal(signal.SIGSTOP)
        run.last(LONG)
        run.server.process.send_signal(signal.SIGCONT)


def pause_clients(run: Trial) -> None:
    with run.trouble():
        run.redis("CLIENT", "PAUSE", "1000", "ALL")
        run.last(1)


def flush(run: Trial) -> None:
    for _ in range(5):
        with run.trouble(forgets=True):
            run.redis("FLUSHALL")
        run.last(0.2)


def clear_cache(run: Trial) -> None:
    for _ in range(5):
        with run.trouble(forgets=True):
            RedisCache(run.server.url, {}).clear()
        run.last(0.2)


def flush_scripts(run: Trial) -> None:
    for _ in range(50):
        run.redis("SCRIPT", "FLUSH")
        run.last(0.02)


def evict(run: Trial) -> None:
    run.evicted = True
    with run.trouble(forgets=True):
        used = int(run.client.info("memory")["used_memory"])
        run.redis("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        # workers that have just been cut off will need some of it
        run.redis("CONFIG", "SET", "maxmemory", used + 10_000_000)
        for _ in range(10):
            run.redis("EVAL", "for i = 1, 50 do redis.call('SET', 'page:' .. ARGV[1] .. i, string.rep('x', 5e5)) end",
                      0, run.random.random())  # fmt: skip
            run.last(0.1)
        run.redis("CONFIG", "SET", "maxmemory", 0)
        run.redis("CONFIG", "SET", "maxmemory-policy", "noeviction")
        clear_pages(run)


def clear_pages(run: Trial) -> None:
    run.redis("EVAL", "for _, page in ipairs(redis.call('KEYS', 'page:*')) do redis.call('UNLINK', page) end", 0)


# -- what the server answers -------------------------------------------------------------------------------------------


def read_only(run: Trial) -> None:
    with run.trouble():
        run.redis("REPLICAOF", "127.0.0.1", "1")
        run.last(1)
        run.redis("REPLICAOF", "NO", "ONE")


def out_of_memory(run: Trial) -> None:
    with run.trouble():
        run.redis("CONFIG", "SET", "maxmemory", "1")
        run.last(1)
        run.redis("CONFIG", "SET", "maxmemory", "0")


def cannot_save(run: Trial) -> None:
    in_the_way = Path(run.server.options["dir"]) / "dump.rdb"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()
    with run.trouble():
        run.redis("CONFIG", "SET", "save", "3600 1000000000")
        run.redis("BGSAVE")
        run.until(lambda: run.client.info("persistence")["rdb_last_bgsave_status"] == "err")
        run.last(1)
        run.redis("CONFIG", "SET", "save", "")
    in_the_way.rmdir()


def new_password(run: Trial) -> None:
    # a connection that stays open: a new one would be refused, and the password could not be removed again
    with run.trouble(), run.client.client() as inside:
        inside.config_set("requirepass", "another")
        for kind in ("normal", "pubsub"):
            inside.execute_command("CLIENT", "KILL", "TYPE", kind)
        run.last(1)
        inside.config_set("requirepass", "")


def no_rights(run: Trial) -> None:
    with run.trouble():
        run.redis("ACL", "SETUSER", "default", "-eval", "-evalsha")
        run.last(1)
        run.redis("ACL", "SETUSER", "default", "+@all")


def no_channels(run: Trial) -> None:
    with run.trouble():
        run.redis("ACL", "SETUSER", "default", "resetchannels")
        run.last(1)
        run.redis("ACL", "SETUSER", "default", "allchannels")


# -- a replica ---------------------------------------------------------------------------------------------------------


class Watched(RedisServer):
    """A master with a replica, and a sentinel that promotes it."""

    def __init__(self, sentinels: Sentinels) -> None:
        self.__dict__ = sentinels.servers[0].__dict__
        self.sentinels = sentinels
        self.cache = sentinels.alias()


@contextmanager
def watched() -> Iterator[RedisServer]:
    with closing(Sentinels()) as sentinels:
        yield Watched(sentinels)


def promote(run: Trial) -> None:
    """The master dies, and its replica has received nothing for the last half second."""
    assert isinstance(run.server, Watched)
    sentinels = run.server.sentinels
    master, replica = sentinels.servers
    sentinels.replicate()
    with run.trouble(forgets=True):
        # the master has no password and refuses this one, so the link stays down
        sentinels.clients[1].config_set("masterauth", "wrong")
        sentinels.clients[1].execute_command("CLIENT", "KILL", "TYPE", "master")
        run.last(0.5)
        master.stop()
        run.until(lambda: sentinels.master() == replica.port)
        run.until(lambda: sentinels.clients[1].info("replication")["role"] == "master")
        run.moved(replica)


# -- clocks ------------------------------------------------------------------------------------------------------------


def jump_ahead(run: Trial) -> None:
    assert isinstance(run.server, Clock)
    with run.trouble(forgets=True):
        run.server.jump(3600)
        run.obtained()


def jump_back(run: Trial) -> None:
    assert isinstance(run.server, Clock)
    with run.trouble():
        run.server.jump(-3600)
        run.obtained()


def persistent() -> AbstractContextManager[RedisServer]:
    return redis_server(appendonly="yes", appendfsync="always")


YES = "yes, until told"
TOLD = "``lost`` at its next renewal or release"
REFUSED = "calls raise ``LockUnavailable``"
PATIENT = "calls wait for a second, then raise"
SIT_OUT = "wait; newcomers are refused"
LEASE_ENDS = "get it when the lease has ended"
AGAIN = "queue again at their next look"

FAULTS = [
    Fault("a process dies (``kill -9``)", kill_process, "is dead", LEASE_ENDS),
    Fault(
        "a process is paused for longer than the TTL", stop_process, "``lost``, as soon as it runs again", LEASE_ENDS
    ),
    Fault("connections are cut, again and again", kill_connections, "nothing", "nothing"),
    Fault("subscriptions are cut, again and again", kill_subscriptions, "nothing", "queue again, with their tickets"),
    Fault("answers come late by 0.3 s", delay_answers, "nothing", "nothing", network=True),
    Fault("answers are lost after the command ran", lose_answers, "nothing", "nothing", network=True),
    Fault("answers break off in the middle", tear_answers, "nothing", "nothing", network=True),
    Fault(
        "one process is cut off for longer than the TTL", partition, "``lost`` when its lease ends", LEASE_ENDS,
        network=True,
    ),
    Fault("wakes never arrive", swallow_wakes, "nothing", "look when the lease ends, and get it", network=True),
    Fault("Redis restarts with its data (AOF)", restart, "nothing", "nothing", server=persistent),
    Fault("Redis restarts, and loads for a second", restart_slowly, PATIENT, SIT_OUT),
    Fault("Redis restarts empty", restart_empty, "``lost``, when it is there again", "queue again", YES),
    Fault("Redis hangs for longer than the TTL", stop_server, "``lost`` when its lease ends", "wait"),
    Fault("``CLIENT PAUSE`` for a second", pause_clients, "calls wait", "wait"),
    Fault("``FLUSHALL``", flush, TOLD, AGAIN, YES),
    Fault("``cache.clear()``", clear_cache, TOLD, AGAIN, YES),
    Fault("``SCRIPT FLUSH``, ``NOSCRIPT``", flush_scripts, "nothing", "nothing"),
    Fault("eviction (``allkeys-lru``)", evict, TOLD, AGAIN, YES),
    Fault("``READONLY`` for a second", read_only, PATIENT, "wait"),
    Fault("``OOM`` for a second", out_of_memory, "nothing", SIT_OUT),
    Fault("``MISCONF`` for a second", cannot_save, REFUSED, SIT_OUT),
    Fault("``NOAUTH`` for a second", new_password, REFUSED, SIT_OUT),
    Fault("``NOPERM`` (scripts) for a second", no_rights, REFUSED, SIT_OUT),
    Fault("``NOPERM`` (channels) for a second", no_channels, "nothing", "look four times a second"),
    Fault(
        "Sentinel promotes a replica without the last writes", promote, "``LockUnavailable``, and then ``lost``",
        "queue again", YES, server=watched
    ),
    Fault("the server's clock jumps ahead by an hour", jump_ahead, TOLD, "get it", YES, server=server_with_clock),
    Fault("the server's clock jumps back by an hour", jump_back, "nothing", "nothing", server=server_with_clock),
]  # fmt: skip
PROCESSES = [kill_process, stop_process]
AT_ANY_TIME = [fault for fault in FAULTS if fault.server is None and fault.strike not in PROCESSES]
# faults that can happen at the same time: of processes, of one process's network, of the server
LANES = [
    PROCESSES,
    [fault.strike for fault in AT_ANY_TIME if fault.network],
    [fault.strike for fault in AT_ANY_TIME if not fault.network],
]
# afterwards the server's memory starts from empty
ANEW = [restart_empty, restart_slowly, flush, clear_cache, flush_scripts, evict]


def strike_at_random(run: Trial, rounds: int, *, rest: int) -> None:
    """Inject so many faults, one after the other, with ``rest`` sections in between, while processes are
    killed and stopped all the time."""
    over = threading.Event()
    chance = random.Random(run.random.random())

    def strike_processes() -> None:
        while not over.wait(chance.random() * 2):
            chance.choice(PROCESSES)(run)

    other = threading.Thread(target=strike_processes)
    other.start()
    try:
        for _ in range(rounds):
            fault = run.random.choice(AT_ANY_TIME)
            print(f"{monotonic():.3f} {fault.strike.__name__}", flush=True)
            fault.strike(run)
            run.entered(rest)
    finally:
        over.set()
        other.join()
    run.obtained(3)


def strike_every_second(run: Trial, seconds: float, *, spare: Collection[Callable[[Trial], None]] = ()) -> int:
    """Inject a fault each second on average, for so long; those of different lanes overlap. Return how many there
    were."""
    end = monotonic() + seconds
    failed = threading.Event()

    def strike(lane: list[Callable[[Trial], None]], chance: random.Random) -> int:
        due, struck = monotonic(), 0
        while (due := due + chance.random() * 2 * len(LANES)) < end and not failed.wait(due - monotonic()):
            fault = chance.choice([fault for fault in lane if fault not in spare])
            print(f"{monotonic():.3f} {fault.__name__}", flush=True)
            try:
                fault(run)
            except BaseException:
                # this fault may not have been ended: its error says what is wrong, errors of later faults would only
                # follow from it
                traceback.print_exc()
                failed.set()
                raise
            struck += 1
        return struck

    with ThreadPoolExecutor() as threads:
        return sum(threads.map(strike, LANES, [random.Random(run.random.random()) for _ in LANES]))
