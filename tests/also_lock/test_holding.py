"""While our lock is held: the key of old code lives, is lost, moves and is given back with it."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redislock import Lock, LockLost, force_release, get_lock
from redisserver import RedisServer
from tests.helpers.actors import GENEROUS, Crowd, until
from tests.helpers.proxy import proxy
from tests.helpers.state import LOCK, NAME, TOKEN, count, leftovers, outlives
from tests.inside import let_go, renew_all

from .conftest import Old

GONE = r"the key of the old code \(REDISLOCK\['ALSO_LOCK'\]\) is gone, or somebody else's\.$"
Losses = list[LockLost]


@pytest.mark.complete
def test_it_is_renewed_with_ours(crowd: Crowd, old: Old) -> None:
    lock, me = Lock(NAME, ttl=3), crowd()
    me(lock, "acquire")
    until(lambda: outlives(3, NAME))
    assert not old.is_free(NAME)
    assert me.read(lambda: lock.lost) is False
    me(lock, "release")
    assert old.is_free(NAME)


def test_it_ends_no_sooner_than_ours_and_soon_after_it(crowd: Crowd, plain: Old, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME, ttl=600, auto_renew=False)
    me(lock, "acquire")
    for change in (lambda: None, lambda: me(lock, "extend", 600), lambda: me(lock, "extend", 60, replace_ttl=True)):
        change()
        theirs, ours = client.pttl(NAME), client.pttl(LOCK)
        assert ours <= theirs <= ours + 1000 * GENEROUS
    me(lock, "detach", 300)
    theirs, ours = client.pttl(NAME), client.pttl(LOCK)
    assert ours <= theirs <= 300_000


def test_a_renewal_makes_it_longer_and_not_shorter(crowd: Crowd, plain: Old, client: redis.Redis) -> None:
    """One that is late comes after an extension."""
    me, lock = crowd(), Lock(NAME, ttl=600)
    me(lock, "acquire")
    client.pexpire(NAME, 300_000)
    renew_all()
    until(lambda: client.pttl(NAME) > 300_000)
    client.pexpire(NAME, 1_200_000)
    before = count(client, "eval")
    renew_all()
    until(lambda: count(client, "eval") > before)
    assert client.pttl(NAME) > 900_000


@pytest.mark.complete
def test_a_lock_that_is_not_renewed_has_all_of_its_ttl_after_a_wait(crowd: Crowd, plain: Old, client: Any) -> None:
    """However long that was: our lock is held all the time, longer than its TTL and its max_hold."""
    theirs, losses, me = plain.held(NAME), Losses(), crowd()
    lock = Lock(NAME, ttl=3, auto_renew=False, max_hold=3, on_lost=losses.append)
    waiting = me.start(lock, "acquire")
    until(lambda: get_lock(NAME))
    until(lambda: outlives(3, NAME))
    theirs.release()
    assert waiting.result(GENEROUS) is True
    assert client.pttl(NAME) > 0
    until(lambda: get_lock(NAME) is None and plain.is_free(NAME))  # neither is renewed now
    until(lambda: losses)
    assert losses[0].reason == "its lease ended, and it was not to be renewed"


@pytest.mark.complete
@pytest.mark.parametrize("how", ["gone", "somebody else's"])
def test_without_it_ours_is_lost_at_the_next_renewal(crowd: Crowd, old: Old, client: redis.Redis, how: str) -> None:
    losses, me = Losses(), crowd()
    lock = Lock(NAME, ttl=6, on_lost=losses.append)
    me(lock, "acquire")
    client.delete(old.key(NAME))
    theirs = old.held(NAME) if how == "somebody else's" else None
    until(lambda: losses)
    assert me.read(lambda: lock.lost) is True
    with pytest.raises(LockLost, match=GONE):
        me(lock, "release")
    assert get_lock(NAME) is None
    if theirs:
        assert not old.is_free(NAME)
        theirs.release()
    assert len(losses) == 1


def test_a_release_and_an_extension_find_out_as_well(
    me: Any, plain: Old, client: redis.Redis, cache_lock: Callable[..., Any]
) -> None:
    for method, *arguments in (("release",), ("extend", 5)):
        lock = Lock(NAME, ttl=600)
        me(lock, "acquire")
        client.delete(NAME)
        with pytest.raises(LockLost, match=GONE):
            me(lock, method, *arguments)
        let_go()
        force_release(NAME)
    compatible = cache_lock(NAME, timeout=600)
    assert compatible.acquire()
    client.delete(NAME)
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        compatible.release()
    assert leftovers(client) == []


def test_a_force_release_gives_it_back(crowd: Crowd, old: Old, client: redis.Redis) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    assert force_release(NAME)
    assert old.is_free(NAME)
    theirs = old.held(NAME)
    with pytest.raises(LockLost):
        me(lock, "release")
    assert not old.is_free(NAME)  # what is old code's by now stays so
    assert force_release(NAME) is None
    assert not old.is_free(NAME)
    theirs.release()


def test_one_that_is_force_released_while_it_waits_for_old_code_raises(crowd: Crowd, plain: Old, client: Any) -> None:
    theirs, me = plain.held(NAME), crowd()
    waiting = me.start(Lock(NAME, ttl=30), "acquire")
    until(lambda: force_release(NAME))
    with pytest.raises(LockLost):
        waiting.result(GENEROUS)
    theirs.release()
    until(lambda: leftovers(client) == [])


def test_whoever_adopts_the_lock_has_it_too_and_has_lost_it_where_somebody_else_has_the_key(
    crowd: Crowd, old: Old, client: redis.Redis
) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire")
    token = me(lock, "detach", 600)
    assert not old.is_free(NAME)
    adopter = Lock(NAME, token=token, adopt=True)
    you(adopter, "acquire")
    assert not old.is_free(NAME)
    assert you(adopter, "detach", 600) == token
    client.delete(old.key(NAME))
    theirs = old.held(NAME)
    with pytest.raises(LockLost, match=GONE):
        me(Lock(NAME, token=token, adopt=True), "acquire")
    until(lambda: leftovers(client) == [old.key(NAME)])
    theirs.release()


JOB = """
from django.test import override_settings
override_settings(REDISLOCK={"ALSO_LOCK": "redis-py"}).enable()
lock = Lock(name, token=token, ttl=600)
lock.acquire()
say("held")
hear()
"""


def test_a_killed_job_that_starts_again_with_its_token_has_it_at_once(
    crowd: Crowd, plain: Old, start: Callable[..., Any]
) -> None:
    worker, me = start(JOB, name=NAME, token=TOKEN), crowd()
    worker.expect("held")
    assert not plain.is_free(NAME)
    worker.kill()
    lock = Lock(NAME, token=TOKEN, ttl=600)
    assert me(lock, "acquire", blocking_timeout=GENEROUS) is True
    me(lock, "release")
    assert plain.is_free(NAME)


def test_the_bearer_of_the_token_gives_both_back_and_extends_both(
    crowd: Crowd, old: Old, client: redis.Redis, cache_lock: Callable[..., Any]
) -> None:
    me, lock = crowd(), Lock(NAME)
    me(lock, "acquire")
    token = me(lock, "detach", 600)
    me(Lock(NAME, token=token), "release")
    assert old.is_free(NAME)
    mine, elsewhere = cache_lock(NAME, timeout=60), cache_lock(NAME, timeout=60)
    assert mine.acquire()
    elsewhere.local.token = mine.local.token
    elsewhere.extend(600)
    assert client.pttl(old.key(NAME)) > 600_000
    elsewhere.release()
    assert old.is_free(NAME)


@pytest.mark.complete
def test_it_is_renewed_before_ours_counts_as_renewed(
    plain: Old, server: RedisServer, settings: Any, crowd: Crowd
) -> None:
    """On another server, which cannot be reached for longer than the lease: lost in time by the clock here."""
    losses, me = Losses(), crowd()
    with proxy(server.port) as between:
        settings.CACHES = {**settings.CACHES, "far": {**settings.CACHES["default"], "LOCATION": between.url}}
        settings.REDISLOCK = {"ALSO_LOCK": {"kind": "redis-py", "using": "far"}}
        lock = Lock(NAME, ttl=4, on_lost=losses.append)
        me(lock, "acquire")
        answer = between.lose_answer("\r\nkeep\r\n")  # a single one is sent once more
        until(answer.over.is_set)
        until(lambda: outlives(4, NAME))
        assert me.read(lambda: lock.lost) is False
        between.cut()
        until(lambda: losses)
        assert losses[0].reason == "its lease ended before it could be renewed"
        between.mend()
        with pytest.raises(LockLost):
            me(lock, "release")
    assert plain.is_free(NAME)


def test_it_is_given_back_where_ours_is_gone(crowd: Crowd, plain: Old, client: redis.Redis) -> None:
    losses, me = Losses(), crowd()
    lock = Lock(NAME, ttl=600, on_lost=losses.append)
    me(lock, "acquire")
    client.delete(LOCK)
    renew_all()
    until(lambda: losses)
    with pytest.raises(LockLost):
        me(lock, "release")
    assert plain.is_free(NAME)
    assert len(losses) == 1
