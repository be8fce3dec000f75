"""A Redis user who may do what the README's line allows: all works, nothing else is tried, and none is too much."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.checks import run_checks
from django.core.management import call_command

import django_redislock
from django_redislock import (
    ConditionalValue,
    Counter,
    FairLock,
    Lock,
    LockLost,
    LockPool,
    LockUnavailable,
    force_release,
    get_lock,
    list_locks,
)
from django_redislock.cachelock import CacheLock
from django_redislock.connection import get_backend
from django_redislock.listener import get_listener
from django_redislock.listing import read_page
from redisserver import RedisServer

from .actors import GENEROUS, Other
from .processes import Worker

README = Path(django_redislock.__file__).parent.parent / "README.rst"
SECRET = "s3cret"

_line = re.search(r"^    ACL SETUSER locks .*(?:\n        .*)*", README.read_text("utf-8"), re.M)
assert _line is not None
RULES = _line.group().split()[3:]
COMMANDS = [rule[1:] for rule in RULES if rule.startswith("+")]
DATABASE = 3


def give(client: redis.Redis, *rules: str) -> None:
    """Let these be the rights of the user."""
    client.execute_command("ACL", "SETUSER", "locks", "reset", *rules)
    client.execute_command("ACL", "LOG", "RESET")


def refused(client: redis.Redis) -> list[tuple[str, str]]:
    """(why, what) of all that was refused. What redis-py says of itself, from 7.2 on, is none of our business."""
    entries: Any = client.acl_log()
    found = [(str(entry["reason"]), str(entry["object"])) for entry in entries]
    return [entry for entry in found if not entry[1].startswith("client")]


@pytest.fixture
def root(own: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """The administrator of a server whose locks are those of the narrow user, here and in workers."""
    with own.client(db=DATABASE) as client:
        location = f"redis://locks:{SECRET}@127.0.0.1:{own.port}/{DATABASE}"
        give(client, *RULES)
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": location}}
        monkeypatch.setenv("REDISLOCK_TEST_URL", location)
        yield client


Eventually = Callable[..., Any]


def hand_over(kind: type[Lock], client: redis.Redis, eventually: Eventually, **options: Any) -> None:
    """Wait for a lock in another thread, and get it."""
    holder, waiter = kind("stock", **options), Other()
    holder.acquire()

    def wait() -> None:
        with kind("stock", blocking_timeout=GENEROUS, **options):
            pass

    future = waiter.start(wait)
    eventually(lambda: client.zcard("redislock{0}:queue:stock") or future.done())
    assert len(get_lock("stock").queue) == 1  # type: ignore[union-attr]
    holder.release()
    future.result(GENEROUS)
    waiter.end()


async def _coroutines() -> None:
    async with FairLock("async", note="a coroutine's") as lock:
        await lock.aextend(5)
        assert await lock.aowned()
        waiting = asyncio.ensure_future(FairLock("async").aacquire(blocking_timeout=0.1))
        assert not await waiting
    assert not await lock.alocked()


def locks(client: redis.Redis, eventually: Eventually) -> None:
    with Lock("a", reentrant=True) as lock:
        lock.extend(5)
        lock.reacquire()
        lock.status()
        with lock:
            assert [each.name for each in list_locks()] == ["a"]
            assert read_page(order=["waiters"]).total == 1
    for _ in range(24):  # now and then, one sweeps the index
        with Lock("a"):
            pass
    asyncio.run(_coroutines())
    for kind in (Lock, FairLock):
        hand_over(kind, client, eventually)
        hand_over(kind, client, eventually, wait="poll")


def moved(client: redis.Redis, eventually: Eventually) -> None:
    lock = Lock("moved")
    lock.acquire()
    token = lock.detach()
    adopted = Lock("moved", token=token)
    adopted.acquire()
    force_release("moved")
    eventually(lambda: adopted.lost)
    lock.acquire()
    thief = Lock("moved")
    other = Other()
    other(thief.seize)
    eventually(lambda: lock.lost)
    other(thief.release)
    other.end()


def renewed(client: redis.Redis, eventually: Eventually) -> None:
    with Lock("renewed", ttl=1) as lock:
        ends = lock.remaining()
        eventually(lambda: client.pttl("redislock{0}:lock:renewed") > 1000 * ends - 900)
        eventually(lambda: lock._lease().seen)


def pools(client: redis.Redis, eventually: Eventually) -> None:
    pool = LockPool("accounts")
    pool.assign(["alice", "bob"])
    pool.extend(["carol"])
    pool.shrink(["carol", "bob"])
    assert (pool.keys(), len(pool), "alice" in pool) == (["alice"], 1, True)
    other = Other()
    with pool.acquire() as member:
        future = other.start(lambda: pool.acquire(fair=True, blocking_timeout=GENEROUS).release())
        eventually(lambda: client.zcard("redislock{0}:queue:pool:accounts:") or future.done())
        assert pool.info().waiters == 1
        member.extend(5)
    future.result(GENEROUS)
    other.end()


def values(client: redis.Redis, eventually: Eventually) -> None:
    counter = Counter("hits")
    assert (counter.incr(ttl=60), counter.get(), counter.reset()) == (1, 1, 1)
    high = ConditionalValue("high")
    assert (high.setgt(1), high.setgt(2, ttl=60), high.get(), high.deleq(2)) == (True, True, 2, True)


def as_before(client: redis.Redis, eventually: Eventually) -> None:
    with CacheLock("as-before", timeout=10) as lock:
        lock.extend(5)
        assert lock.owned()


def the_command(client: redis.Redis, eventually: Eventually) -> None:
    LockPool("seats").assign(["1"])
    lock = Lock("held")
    lock.acquire()
    call_command("redislocks", "list")
    call_command("redislocks", "show", "held")
    call_command("redislocks", "clear", "--all", "--noinput")
    with pytest.raises(LockLost):
        lock.release()
    call_command("redislocks", "pool", "seats")
    call_command("redislocks", "run", "program", "--", sys.executable, "-c", "")


def foreign(client: redis.Redis, eventually: Eventually) -> None:
    client.rpush("redislock{0}:queue:foreign", "x")
    with pytest.raises(LockUnavailable, match="which is a list"):
        Lock("foreign").acquire()


FEATURES = [locks, moved, renewed, pools, values, as_before, the_command, foreign]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.__name__)
def test_the_narrow_user_can_do_it_and_is_refused_nothing(
    feature: Callable[..., None], root: redis.Redis, eventually: Eventually
) -> None:
    feature(root, eventually)
    assert refused(root) == []
    keys: Any = root.keys("*")
    assert all(key.startswith(b"redislock{0}:") for key in keys)


def test_processes_wait_for_each_other(root: redis.Redis, start: Callable[..., Worker], eventually: Eventually) -> None:
    code = """
with FairLock("stock", blocking_timeout=30) as lock:
    say("got", lock.fence)
    hear()
say("done")
"""
    workers = []
    for place in range(3):
        workers.append(start(code))
        if place == 0:
            workers[0].expect("got")
        eventually(lambda place=place: root.zcard("redislock{0}:queue:stock") == place)
    for worker in workers[1:]:
        workers[0].tell()
        workers[0].expect("done")
        worker.expect("got", within=2.5)  # nobody has looked by the clock
        workers.pop(0)
    workers[0].tell()
    workers[0].expect("done")
    assert refused(root) == []


def test_the_listener_is_subscribed_and_polls_nothing(root: redis.Redis, eventually: Eventually) -> None:
    hand_over(FairLock, root, eventually)
    listener = get_listener(get_backend())
    assert (listener.ready, listener.polled) == (True, False)
    assert refused(root) == []


def test_the_deploy_checks_need_one_right_more_and_say_so(root: redis.Redis) -> None:
    def ids() -> list[str]:
        found = run_checks(include_deployment_checks=True)
        return [str(each.id) for each in found if str(each.id).startswith("django_redislock.")]

    assert "django_redislock.W004" in ids()
    assert [what for _, what in refused(root)] == ["info"]
    give(root, *RULES, "+info")
    assert {"django_redislock.W004", "django_redislock.W006"}.isdisjoint(ids())
    assert refused(root) == []


def test_every_right_is_used(root: redis.Redis, eventually: Eventually) -> None:
    root.config_resetstat()
    for feature in FEATURES:
        feature(root, eventually)
    stats = root.info("commandstats")
    used = {name.removeprefix("cmdstat_").partition("|")[0] for name in stats}
    assert {command.partition("|")[0] for command in COMMANDS} <= used


@pytest.mark.parametrize("command", COMMANDS)
def test_one_right_less_is_refused_to_somebody(command: str, root: redis.Redis, settings: Any) -> None:
    give(root, *(rule for rule in RULES if rule != f"+{command}"))
    settings.CACHES = {**settings.CACHES}
    done = threading.Event()

    def quick(*args: Any, **kwargs: Any) -> Any:
        done.wait(0.2)
        return True

    for feature in FEATURES:
        try:
            feature(root, quick)
        except Exception:
            pass
        if refused(root):
            break
    assert {what.partition("|")[0] for _, what in refused(root)} == {command.partition("|")[0]}


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule[0] in "~&"])
def test_another_prefix_is_refused(rule: str, root: redis.Redis, settings: Any) -> None:
    give(root, *(other for other in RULES if other != rule), rule.replace("redislock", "others"))
    settings.CACHES = {**settings.CACHES}
    if rule[0] == "~":
        with pytest.raises(LockUnavailable):
            Lock("a").acquire()
    else:
        assert Lock("a").acquire()
        assert not Other()(lambda: Lock("a").acquire(blocking_timeout=0.5))
    assert {why for why, _ in refused(root)} == {"key" if rule[0] == "~" else "channel"}
