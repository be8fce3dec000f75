"""With ``ALSO_LOCK``, old code and ours exclude each other, in both directions, and nothing of it stays."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.test import AsyncRequestFactory

from django_redislock import (
    Lock,
    LockNotAcquired,
    LockPool,
    LockSet,
    LockUnavailable,
    Semaphore,
    get_lock,
    list_locks,
    locked,
    locked_view,
)
from django_redislock.testing import own_locks
from tests.helpers.actors import GENEROUS, Crowd, Other, auntil, until
from tests.helpers.proxy import Proxy
from tests.helpers.state import NAME, holder, leftovers
from tests.inside import PREFIX, RELEASE, limit
from tests.lock.conftest import Block

from .conftest import Old


def test_old_code_keeps_ours_out_and_ours_old_code(crowd: Crowd, old: Old, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    theirs = old.held(NAME)
    assert me(lock, "acquire", blocking=False) is False
    assert get_lock(NAME) is None
    with pytest.raises(LockNotAcquired, match=rf"held by old code \(its key '{old.key(NAME)}'\)\.$") as caught:
        me(Lock(NAME, blocking_timeout=1), "enter")
    assert (caught.value.outcome, caught.value.busy_for) == ("timeout", None)
    assert caught.value.holder == f"old code (its key '{old.key(NAME)}')"
    assert caught.value.attempts > 1
    theirs.release()
    assert me(lock, "acquire", blocking=False) is True
    assert old.lock(NAME).acquire(blocking=False) is False
    assert client.get(old.key(NAME))
    me(lock, "release")
    assert old.is_free(NAME)
    for key in client.scan_iter("lock-signal:*"):  # python-redis-lock's stay for a second
        assert 0 < client.pttl(key) <= 1000
        client.delete(key)
    assert leftovers(client) == []


def test_ours_waits_for_old_code_and_others_wait_behind_it(
    me: Any, you: Any, old: Old, queue: Any, caplog: Any
) -> None:
    """A long wait for old code is logged."""
    theirs, lock, next_one = old.held(NAME), Lock(NAME, slow_wait=0.01), Lock(NAME)
    first = me.start(lock, "acquire")
    until(lambda: get_lock(NAME))
    second = queue(next_one, you)
    (told,) = until(lambda: [text for text in caplog.messages if "event=still-waiting" in text])
    assert f"old code (its key '{old.key(NAME)}')" in told
    assert not first.done()
    assert [info.name for info in list_locks()] == [NAME]
    theirs.release()
    assert first.result(GENEROUS) is True
    assert not old.is_free(NAME)
    me(lock, "release")
    assert second.result(GENEROUS) is True
    assert not old.is_free(NAME)
    you(next_one, "release")
    assert old.is_free(NAME)


def test_old_code_that_waits_gets_it_after_ours(
    crowd: Crowd, old: Old, other: Callable[[], Other], client: redis.Redis
) -> None:
    """Also python-redis-lock's, which without an end of its own waits for the signal alone."""
    me, lock, theirs = crowd(), Lock(NAME), old.lock(NAME)
    me(lock, "acquire")
    waiting = other().start(theirs.acquire)
    if old.kind == "python-redis-lock":
        until(lambda: client.info("clients")["blocked_clients"])
    me(lock, "release")
    assert waiting.result(GENEROUS) is True
    assert me(lock, "acquire", blocking=False) is False


def test_everything_that_is_built_on_locks_takes_it(plain: Old, cache_lock: Callable[..., Any]) -> None:
    seen: list[bool] = []
    look = locked("a")(lambda: seen.append(plain.is_free("a")))
    look()
    with LockSet("a", "b"):
        seen += [plain.is_free("a"), plain.is_free("b")]
    with cache_lock("a", timeout=10):
        seen.append(plain.is_free("a"))
    assert not any(seen)
    assert plain.is_free("a")
    theirs = plain.held("b")
    with pytest.raises(LockNotAcquired):
        LockSet("a", "b", blocking_timeout=0).__enter__()
    assert plain.is_free("a")
    theirs.release()


def test_semaphores_pools_and_own_locks_of_tests_are_unaffected(me: Any, plain: Old, client: redis.Redis) -> None:
    LockPool("accounts").assign(["alice"])
    me(Semaphore("a", limit=1), "acquire")
    assert me(LockPool("accounts"), "acquire")
    assert {key.decode().startswith(PREFIX) for key in client.scan_iter()} == {True}
    with own_locks(), Lock(NAME):
        assert plain.is_free(NAME)


def test_whoever_enters_again_shares_it(crowd: Crowd, plain: Old) -> None:
    me, lock = crowd(), Lock(NAME, reentrant=True)
    for _ in range(2):
        assert me(lock, "acquire", blocking=False) is True
    me(lock, "release")
    assert not plain.is_free(NAME)
    me(lock, "release")
    assert plain.is_free(NAME)


def test_a_section_costs_one_round_trip_more_at_each_end_and_none_where_it_is_off(
    plain: Old, settings: Any, trips: list[int], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, confirm_after=GENEROUS)  # nothing else is sent

    def section() -> int:
        trips.clear()
        with Lock(NAME):
            pass
        return len(trips)

    settings.REDISLOCK = {}
    section()  # the server learns the scripts
    off = section()
    assert leftovers(client) == []
    settings.REDISLOCK = {"ALSO_LOCK": "redis-py"}
    assert section() == off + 2
    settings.REDISLOCK = {"ALSO_LOCK": None}
    assert section() == off == 2
    theirs = plain.held(NAME)
    with Lock(NAME, blocking_timeout=0):  # it knows nothing of old code
        pass
    theirs.release()


async def never(*_: object) -> Any:
    raise AssertionError


async def enter(lock: Any) -> None:
    async with lock:
        await never()


@pytest.mark.parametrize(
    "section",
    [
        lambda: enter(Lock(NAME)),
        lambda: enter(LockSet(NAME, "order:43")),
        lambda: locked(NAME)(never)(),
        lambda: locked([NAME, "order:43"])(never)(),
        lambda: locked_view(NAME, blocking_timeout=GENEROUS)(never)(AsyncRequestFactory().get("/")),
    ],
    ids=["block", "block of a set", "decorator", "decorator with a set", "view"],
)
async def test_a_wait_that_is_cancelled_leaves_nothing_and_is_no_loss(
    section: Callable[[], Any], plain: Old, client: redis.Redis, heard: list[Any]
) -> None:
    theirs, before = plain.held(NAME), client.get(NAME)
    task = asyncio.create_task(section())
    await auntil(lambda: holder(client))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await auntil(lambda: leftovers(client) == [NAME])
    assert client.get(NAME) == before
    assert heard == []
    theirs.release()


async def test_a_section_that_is_cancelled_as_it_ends_gives_both_back(plain: Old, client: Any, network: Proxy) -> None:
    lock = Lock(NAME)
    await lock.aacquire()
    answer = network.hold_answer("\r\nfree\r\n")
    task = asyncio.create_task(lock.arelease())
    await auntil(answer.caught.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    answer.let_go()
    await auntil(lambda: leftovers(client) == [])


def test_what_could_not_be_released_is_released_in_the_background(
    me: Any, plain: Old, client: redis.Redis, network: Proxy, retry_for: Callable[[float], None]
) -> None:
    """At the end of a block, and where old code was in the way."""
    retry_for(0.0)
    me(Block(Lock(NAME), network.cut), "run")
    network.mend()
    until(lambda: leftovers(client) == [])
    theirs = plain.held(NAME)
    lost = network.lose_answer(RELEASE, times=2)  # a first one may have met a stale connection
    assert me(Lock(NAME), "acquire", blocking=False) is False
    assert lost.over.is_set()
    until(lambda: leftovers(client) == [NAME])
    theirs.release()


def test_polling_and_the_memory_mode_work(me: Any, plain: Old, settings: Any) -> None:
    settings.REDISLOCK = {"ALSO_LOCK": "redis-py", "POLL": True}
    lock, theirs = Lock(NAME), plain.held(NAME)
    with pytest.raises(LockNotAcquired, match=r"\(3 attempts\): held by old code") as caught:
        me(Lock(NAME, attempts=3), "enter")
    assert caught.value.attempts == 3  # for both
    theirs.release()
    me(lock, "acquire")
    assert not plain.is_free(NAME)
    me(lock, "release")
    lock = Lock(NAME, using="memory")
    me(lock, "acquire")
    assert plain.is_free(NAME)
    assert me(Lock(NAME, using="memory"), "acquire", blocking=False) is False
    me(lock, "release")


def test_a_key_that_is_no_lock_is_named(crowd: Crowd, plain: Old, client: redis.Redis) -> None:
    client.rpush(NAME, "something else")
    with pytest.raises(LockUnavailable, match=f"the key '{NAME}', which is a list and should be a string"):
        crowd()(Lock(NAME), "enter")
