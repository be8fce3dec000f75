"""What others have written under our keys: a clear error that names it, and never two holders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

import django_redislock
from django_redislock import (
    ConditionalValue,
    Counter,
    Lock,
    LockError,
    LockNotAcquired,
    LockPool,
    LockUnavailable,
    force_release,
)
from tests.helpers.actors import GENEROUS, Crowd
from tests.helpers.state import FENCE, LOCK, NAME, QUEUE, TOKEN, WAITERS
from tests.inside import PREFIX, command

from .conftest import Eventually

POOL = "pool:accounts:"
MEMBER = f"{POOL}alice"
TYPES = ["string", "list", "hash", "zset"]


def put(client: redis.Redis, key: str, kind: str) -> None:
    """Write something of this Redis type, at once: a renewal in between would write the key anew."""
    with client.pipeline() as at_once:
        at_once.delete(key)
        writes: dict[str, Callable[[], Any]] = {
            "string": lambda: at_once.set(key, "foreign"),
            "list": lambda: at_once.rpush(key, "foreign"),
            "hash": lambda: at_once.hset(key, "foreign", "1"),
            "zset": lambda: at_once.zadd(key, {"foreign": 1}),
        }
        writes[kind]()
        at_once.execute()


OURS = {
    f"lock:{NAME}": "string",
    f"queue:{NAME}": "zset",
    f"waiters:{NAME}": "hash",
    "index": "zset",
    "fence": "string",
}


def wrong(**keys: str) -> list[tuple[str, str]]:
    """Every wrong type of these keys; each is given with the type that it should have."""
    return [(f"{PREFIX}{key}", kind) for key, ours in keys.items() for kind in TYPES if kind != ours]


def key_of(value: Any) -> str:
    return str(value).removeprefix(PREFIX)


@contextmanager
def named(client: redis.Redis, key: str, kind: str) -> Iterator[list[str]]:
    """What is done meets a key of this type: an error names it, and it is left alone."""
    put(client, key, kind)
    before = client.dump(key)
    told: list[str] = []
    with pytest.raises((LockUnavailable, CommandError)) as caught:
        yield told
    told.append(text := str(caught.value))
    assert f"the key {key!r}, which is a {kind}" in text
    assert "user_script" not in text
    assert client.dump(key) == before


def use(me: Any, **options: Any) -> None:
    """Take the lock, and give it back."""
    lock = Lock(NAME, **options)
    if not me(lock, "acquire", blocking_timeout=0.2):
        raise LockNotAcquired("busy", NAME)
    me(lock, "release")


# -- keys of another type ---------------------------------------------------------------------------------------------

# and the keys that they meet
CALLS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "acquire": (use, [f"lock:{NAME}", f"queue:{NAME}", "index", "fence"]),
    "poll": (lambda me: use(me, poll=True), [f"lock:{NAME}", f"queue:{NAME}", "index", "fence"]),
    "seize": (lambda me: me(Lock(NAME), "seize"), [f"lock:{NAME}", f"queue:{NAME}", "index", "fence"]),
    "status": (lambda me: me(Lock(NAME), "status"), [f"lock:{NAME}"]),
    "info": (lambda me: me(Lock(NAME), "info"), [f"lock:{NAME}"]),
    "force": (lambda me: me(django_redislock, "force_release", NAME), [f"lock:{NAME}"]),
    "show": (lambda me: call_command("redislocks", "show", NAME), [f"lock:{NAME}"]),
    "clear": (lambda me: call_command("redislocks", "clear", NAME, "--noinput"), [f"lock:{NAME}"]),
    "list": (lambda me: me(django_redislock, "list_locks"), ["index"]),
}


@pytest.mark.parametrize(
    ("call", "key", "kind"),
    [(call, *case) for call, (_, keys) in CALLS.items() for case in wrong(**{key: OURS[key] for key in keys})],
    ids=key_of,
)
def test_a_key_of_another_type_is_an_error_that_names_it_and_says_what_it_is(
    call: str, key: str, kind: str, me: Any, client: redis.Redis
) -> None:
    with named(client, key, kind) as told:
        CALLS[call][0](me)
    assert NAME in told[0] or call == "list"


@pytest.mark.parametrize(("key", "kind"), wrong(**{f"waiters:{NAME}": "hash"}), ids=key_of)
def test_queueing_where_the_waiters_are_of_another_type_is_an_error_that_says_so(
    key: str, kind: str, crowd: Crowd, client: redis.Redis
) -> None:
    crowd()(Lock(NAME), "acquire")
    with named(client, key, kind):
        crowd()(Lock(NAME), "acquire", blocking_timeout=5)


@pytest.mark.parametrize(("key", "kind"), wrong(**dict(list(OURS.items())[:3])), ids=key_of)
def test_other_locks_go_on(key: str, kind: str, me: Any, client: redis.Redis) -> None:
    put(client, key, kind)
    for name in ("other", "another"):
        assert me(Lock(name), "acquire", blocking=False)
    assert [lock.name for lock in me(django_redislock, "list_locks")] == ["another", "other"]


@pytest.mark.parametrize(("key", "kind"), wrong(**{f"lock:{NAME}": "string"}), ids=key_of)
def test_a_lock_that_is_overwritten_while_held_is_an_error_at_the_release_and_then_lost(
    key: str, kind: str, me: Any, client: redis.Redis, eventually: Eventually
) -> None:
    lock = Lock(NAME, ttl=0.8)
    me(lock, "acquire")
    with named(client, key, kind):
        me(lock, "release")
    eventually(lambda: me.read(lambda: lock.lost))
    client.delete(key)
    use(me)


POOL_KEYS = dict.fromkeys(("members", "fresh", "free", "busy", "wanted", "queue"), "zset")
POOL_KEYS |= dict.fromkeys(("held", "took", "waiters"), "hash")


@pytest.mark.parametrize(
    ("key", "kind"), wrong(**{f"{word}:{POOL}": kind for word, kind in POOL_KEYS.items()}), ids=key_of
)
def test_a_key_of_a_pool_that_is_of_another_type_is_named(key: str, kind: str, client: redis.Redis) -> None:
    pool = LockPool("accounts")
    pool.assign(["alice", "bob"])
    held = [pool.acquire(blocking_timeout=0) for _ in range(2)]

    def use_all() -> None:
        for ask in (lambda: pool.acquire(blocking_timeout=0.05), Lock(MEMBER, blocking_timeout=0.05).__enter__):
            with pytest.raises(LockNotAcquired):
                ask()
        for member in held:
            member.release()
        pool.acquire(blocking_timeout=0).release()
        pool.info()

    with named(client, key, kind):
        use_all()
    others = LockPool("others")
    others.assign(["bob"])
    others.acquire(blocking_timeout=0).release()


@pytest.mark.parametrize("call", [lambda: Counter("hits").incr(), lambda: ConditionalValue("high").setgt(1)])
@pytest.mark.parametrize("kind", ["list", "hash", "zset"])
def test_a_slot_of_another_type_is_named_and_not_used_again(
    call: Callable[[], Any], kind: str, client: redis.Redis
) -> None:
    Counter("other").incr()
    slots: Any = client.keys(f"{PREFIX}slot:*")
    for slot in slots:
        put(client, slot.decode(), kind)
    with pytest.raises(LockUnavailable, match=r"the key 'redislock\{0\}:slot:.*', which is a"):
        call()
    assert call()


# -- the fence ------------------------------------------------------------------------------------------------------

NO_FENCES = ["foreign", "", "nan", "inf", "1e400", "9" * 400, str(9 * 10**15), "9" * 18, str(2**63 - 1), "\0"]


@pytest.mark.parametrize("text", NO_FENCES)
@pytest.mark.parametrize("alias", ["default", "memory"])
def test_an_invalid_last_fence_is_named_and_left_alone_and_nothing_is_locked(text: str, alias: str) -> None:
    command("FLUSHALL", using=alias)
    command("SET", FENCE, text, using=alias)
    for _ in range(2):
        with pytest.raises(
            LockUnavailable, match=r"the key 'redislock\{0\}:fence', which does not hold a fence\. Delete it"
        ):
            Lock(NAME, using=alias).acquire()
    assert command("GET", FENCE, using=alias) == text.encode()
    assert not command("EXISTS", LOCK, using=alias)
    command("DEL", FENCE, using=alias)
    assert Lock(NAME, using=alias).acquire(blocking_timeout=0)


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_an_incompatible_version_is_named_and_nobody_acquires_or_waits(
    held: bool, crowd: Crowd, client: redis.Redis
) -> None:
    holder, first, mark = crowd(), Lock(NAME), "protocol 2 1795402524825498"
    if held:
        holder(first, "acquire")
    client.set(FENCE, mark)
    for poll in (False, True):
        with pytest.raises(
            LockUnavailable, match=r"marked 'redislock\{0\}:fence' for protocol 2, and .* protocol 1: up"
        ):
            crowd()(Lock(NAME, blocking_timeout=30, poll=poll), "acquire")
    assert client.get(FENCE) == mark.encode()
    assert not client.exists(QUEUE, WAITERS)
    if held:
        holder(first, "release")
    assert not client.exists(LOCK)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("last", [2**53 - 2, 2**53 - 3, 9 * 10**15 - 2, 8 * 10**15])
def test_deleting_an_absurd_fence_heals_and_no_fence_is_granted_twice(last: int, me: Any, client: redis.Redis) -> None:
    drawn: list[int] = []
    lock = Lock(NAME)

    def draw(times: int) -> None:
        for _ in range(times):
            me(lock, "acquire")
            drawn.append(me.read(lambda: lock.fence))
            me(lock, "release")

    client.set(FENCE, last)
    with suppress(LockUnavailable):
        draw(3)
    client.delete(FENCE)
    draw(3)
    assert len({*drawn}) == len(drawn)
    assert drawn[-3:] == sorted(drawn[-3:])
    client.flushall()
    draw(1)
    assert drawn[-1] == max(drawn[-4:])


# -- forged locks ---------------------------------------------------------------------------------------------------

FORGED = [
    "",
    "foreign",
    "channel c 1 1 -",
    "channel c -1 1 - owner",
    "channel c nan 1 - x",
    "channel d 1 1",
    f"channel c {'9' * 400} 1 - owner",
    f"channel d {'9' * 17} 1 - owner",
]


@pytest.mark.parametrize("rest", FORGED, ids=lambda rest: rest[:30])
@pytest.mark.parametrize("ours", [True, False], ids=["our token", "another"])
@pytest.mark.parametrize("poll", [False, True])
def test_a_lock_with_a_foreign_value_is_held_and_not_by_us(
    rest: str, ours: bool, poll: bool, client: redis.Redis
) -> None:
    client.set(LOCK, f"{TOKEN if ours else 'x' * 22} {rest}", px=60_000)
    assert not Lock(NAME, token=TOKEN).acquire(blocking=False)
    assert not Lock(NAME, token=TOKEN, poll=poll).acquire(blocking_timeout=0.05)
    force_release(NAME)
    assert Lock(NAME).acquire(blocking_timeout=GENEROUS)


def test_a_token_with_the_same_prefix_as_the_holders_releases_nothing(crowd: Crowd) -> None:
    me, you, lock = crowd(), crowd(), Lock(NAME)
    me(lock, "acquire", token=TOKEN)
    for forged in (TOKEN[:-1], f"{TOKEN}x", TOKEN.swapcase()):
        with pytest.raises(LockError):
            you(Lock(NAME, token=forged), "release")
    assert me(lock, "owned")
    me(lock, "release")


def test_waiters_look_at_a_lock_without_expiry_no_more_often_than_at_others(client: redis.Redis) -> None:
    client.set(LOCK, "foreign")
    with pytest.raises(LockNotAcquired) as caught, Lock(NAME, blocking_timeout=0.7):
        pass
    assert caught.value.attempts <= 4
